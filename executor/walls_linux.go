package executor

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"steno/schema"

	"golang.org/x/sys/unix"
)

const hasWalls = true

// confinement says what is around commands with these bounds, for people: what
// there is, and what is missing.
func confinement(how Commands, b bounds) string {
	if !helperCalled.Load() {
		return "no command runs: main must call executor.Helper"
	}
	w, err := tried()
	if err != nil {
		return "not known now: " + err.Error()
	}
	if w.why == nil {
		w.why = w.able(how)
	}
	switch {
	case w.why != nil && (how.as != nil || how.Writable != nil):
		return "no command runs: " + w.why.Error()
	case w.why != nil:
		return "a process group only: " + w.why.Error()
	}
	list := []string{"pid namespace", "store hidden"}
	if w.flags&unix.CLONE_NEWUSER != 0 {
		list[0] = "pid and user namespace"
	}
	if how.as != nil {
		list = append(list, "user "+how.as.name)
	}
	if w.landlock > 0 {
		list = append(list, fmt.Sprintf("landlock %d", w.landlock))
	} else {
		list = append(list, "no landlock")
	}
	if how.Writable != nil {
		list = append(list, "writes only in "+strings.Join(append([]string{"the workspace", "TMPDIR"}, how.Writable...), " and "))
	}
	together := parents{}
	if b.Memory > 0 || b.Processes > 0 {
		together = groupParents()
	}
	switch most := min(uint64(w.processes), max(b.Processes, leastProcesses)); {
	case b.Processes > 0 && together.processes != (group{}):
		list = append(list, fmt.Sprintf("processes %d", b.Processes))
	case w.processes == 0:
		list = append(list, "processes not bounded")
	case b.Processes > 0:
		list = append(list, fmt.Sprintf("processes %d", most))
	default:
		list = append(list, fmt.Sprintf("processes %d", w.processes))
	}
	switch {
	case b.Memory == 0:
		list = append(list, "memory not bounded")
	case together.memory == (group{}):
		list = append(list, fmt.Sprintf("memory %d MiB for each process", b.Memory>>20))
	default:
		list = append(list, fmt.Sprintf("memory %d MiB", b.Memory>>20))
	}
	for _, more := range []struct {
		n    uint64
		unit string
	}{{b.CPU, "cpu %d s"}, {b.FileSize >> 10, "files of %d KiB"}, {b.Files, "%d open files"}} {
		if more.n > 0 {
			list = append(list, fmt.Sprintf(more.unit, more.n))
		}
	}
	return strings.Join(list, ", ")
}

// aside has a program that goes on beside the calls run within walls. It gets those
// of commands, but for bounds: it may write anywhere and keeps its user.
func aside(cmd *exec.Cmd, protect []string, p *pipes) (*wall, error) {
	if !helperCalled.Load() {
		return nil, schema.Errorf(schema.BashDisabled, "this program cannot confine others, so it runs none").
			With("next", "its main must call executor.Helper first of all")
	}
	w, err := tried()
	if err != nil {
		return nil, schema.Errorf(schema.BashDisabled, "whether programs can be confined cannot be found out now").
			With("next", "try again later: the machine is short of something").Cause(err)
	}
	if w.why != nil {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		return nil, nil
	}
	o := orders{Path: cmd.Path, Argv: cmd.Args, Dir: cmd.Dir, Env: cmd.Env, Processes: w.processes, Landlock: w.landlock > 0}
	for _, dir := range protect {
		place, err := hide(dir)
		if err != nil {
			return nil, cannotRun(cmd.Path, err)
		}
		o.Hide = append(o.Hide, place)
	}
	return w.around(cmd, o, p)
}
