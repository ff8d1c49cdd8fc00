package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Control groups bound what the processes of a command have together. They are
// used where this process may make some, without moving itself: below its own
// group or, in version 2, which wants no processes beside groups, next to it.

// A group is a control group of one command, and where its helper goes back to.
type group struct{ Dir, Home string }

type groups []group

// parents are groups in which others can be made, zero if there is none.
type parents struct{ memory, processes group }

// groupParents finds them once, by a trial.
var groupParents = sync.OnceValue(func() (p parents) {
	w, err := tried()
	if err != nil || w.why != nil {
		return p
	}
	for _, want := range []struct {
		at *group
		of bounds
	}{{&p.memory, bounds{Memory: 64 << 20}}, {&p.processes, bounds{Processes: 64}}} {
		for _, in := range groupFolders(want.of) {
			if g, err := newGroup(in, want.of); err == nil {
				if err = w.trial(groups{g}); errors.Join(err, groups{g}.remove()) == nil {
					*want.at = in
					break
				}
			}
		}
	}
	return p
})

const groupMount = "/sys/fs/cgroup"

// groupFolders are the folders where a group for b might be made.
func groupFolders(b bounds) []group {
	const mount = groupMount
	controller := "pids"
	if b.Memory > 0 {
		controller = "memory"
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	_, err = os.Stat(mount + "/cgroup.controllers")
	unified := err == nil
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) != 3:
		case unified && part[0] == "0":
			own := filepath.Join(mount, part[2])
			return []group{{own, own}, {filepath.Dir(own), own}}
		case !unified && part[1] == controller:
			own := filepath.Join(mount, controller)
			below := filepath.Join(own, part[2])
			return []group{{below, below}, {own, own}} // a container may see its own as the root
		}
	}
	return nil
}

// newGroup makes a group with bounds.
func newGroup(in group, b bounds) (group, error) {
	g, err := os.MkdirTemp(in.Dir, "steno-")
	if err != nil {
		return group{}, err
	}
	if b.Memory > 0 {
		bound := strconv.FormatUint(b.Memory, 10)
		if err = setGroup(g, bound, "memory.max", "memory.limit_in_bytes"); err == nil {
			// Without this what is over the bound goes to the swap; not all have it.
			_ = setGroup(g, "0", "memory.swap.max")
			_ = setGroup(g, bound, "memory.memsw.limit_in_bytes")
		}
	}
	if err == nil && b.Processes > 0 {
		// The helper is in it until it has started the command.
		err = setGroup(g, strconv.FormatUint(b.Processes+helperThreads, 10), "pids.max")
	}
	if err != nil {
		return group{}, errors.Join(err, os.Remove(g))
	}
	return group{g, in.Home}, nil
}

const helperThreads = 32

// setGroup writes to the first of the files that is there.
func setGroup(dir, value string, files ...string) error {
	err := os.ErrNotExist
	for _, name := range files {
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(value)
			return errors.Join(err, f.Close())
		}
	}
	return err
}

// groups makes those for a command.
func (w walls) groups(b bounds) (made groups, err error) {
	if b.Memory == 0 && b.Processes == 0 {
		return nil, nil
	}
	p := groupParents()
	type want struct {
		in group
		of bounds
	}
	list := []want{{p.memory, bounds{Memory: b.Memory}}, {p.processes, bounds{Processes: b.Processes}}}
	if p.memory == p.processes { // version 2: a process is in one group only
		list = []want{{p.memory, bounds{Memory: b.Memory, Processes: b.Processes}}}
	}
	for _, l := range list {
		if l.in == (group{}) || l.of == (bounds{}) {
			continue
		}
		g, err := newGroup(l.in, l.of)
		if err != nil {
			return nil, errors.Join(err, made.remove())
		}
		made = append(made, g)
	}
	return made, nil
}

// remove removes the groups. The last process of one that has ended may still be
// on its way out.
func (g groups) remove() (err error) {
	for _, dir := range g {
		for end := time.Now().Add(bashGrace); ; time.Sleep(time.Millisecond) {
			one := os.Remove(dir.Dir)
			if !errors.Is(one, unix.EBUSY) || time.Now().After(end) {
				err = errors.Join(err, one)
				break
			}
		}
	}
	return err
}

// reached says which bounds the command came up against.
func (g groups) reached() string {
	var list []string
	for _, dir := range g {
		for _, sign := range []struct{ file, key, what string }{
			{"memory.events", "oom_kill", "memory"}, {"memory.oom_control", "oom_kill", "memory"}, {"pids.events", "max", "processes"},
		} {
			text, _ := os.ReadFile(filepath.Join(dir.Dir, sign.file))
			for line := range strings.Lines(string(text)) {
				if n, is := strings.CutPrefix(strings.TrimSpace(line), sign.key+" "); is && n != "0" {
					list = append(list, sign.what)
				}
			}
		}
	}
	return strings.Join(list, " and ")
}

// join puts this process, and what it starts, into the control groups of its
// command. What it gives takes it out again, which works also behind the walls.
func (o *orders) join() (out []func() error, err error) {
	for _, g := range o.Groups {
		home, err := os.OpenFile(filepath.Join(g.Home, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("a control group cannot be opened: %w", err)
		}
		most, _ := os.OpenFile(filepath.Join(g.Dir, "pids.max"), os.O_WRONLY, 0) // not in one for memory
		if err := os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("a control group cannot be joined: %w", err)
		}
		out = append(out, func() error {
			_, err := home.WriteString("0")
			if err == nil && most != nil && o.Bounds.Processes > 0 {
				_, err = most.WriteString(strconv.FormatUint(o.Bounds.Processes, 10))
			}
			return err
		})
	}
	if len(out) == 0 {
		return nil, nil
	}
	// A command of root could leave them otherwise.
	return out, unix.Mount("tmpfs", groupMount, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
}
