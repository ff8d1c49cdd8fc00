package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	bashDefault = 120 * time.Second
	bashMax     = 3600 * time.Second

	// bashGrace is how long after a command's own end its output is awaited
	// while something that it started still holds the pipe. Then its process
	// group is killed, and what has left the group is awaited as long again.
	bashGrace = time.Second

	maxKilledOutput = 4000 // bytes of output in the error of a command that was killed
)

func bashTool() Tool {
	return Tool{
		Name: "bash",
		Description: "Run a command in the workspace: command is run by a shell, argv without one; give one of them. " +
			"Gives standard output and standard error as they came, and the exit code. Standard input is empty. " +
			"The command is killed after timeout_s seconds (120 by default), and what it leaves running in its process group when it ends.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"command":{"type":"string","minLength":1,"description":"for bash -c, or sh -c where there is no bash"},
			"argv":{"type":"array","items":{"type":"string"},"minItems":1,"description":"the program and its arguments"},
			"timeout_s":{"type":"integer","minimum":1,"maximum":3600,"description":"seconds after which it is killed"}},
			"oneOf":[{"required":["command"]},{"required":["argv"]}],"additionalProperties":false}`),
		Tier:    3,
		Timeout: bashMax + 10*time.Second, // the tool's own deadline comes first
		Run:     runBash,
	}
}

type bashArgs struct {
	Command  *string  `json:"command"`
	Argv     []string `json:"argv"`
	TimeoutS *int     `json:"timeout_s"`
}

type bashResult struct {
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitzero"`   // that ended it
	Bytes    int    `json:"bytes"`             // of output
	Dropped  int    `json:"dropped,omitzero"`  // bytes of output that are not recorded
	Outlived bool   `json:"outlived,omitzero"` // something that it started goes on, out of reach, and holds its output
}

func runBash(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[bashArgs](call)
	if err != nil {
		return Result{}, err
	}
	argv, err := args.program()
	if err != nil {
		return Result{}, err
	}
	if call.noFolder != nil {
		return Result{}, call.noFolder
	}
	if call.Workspace == nil {
		return Result{}, schema.Errorf(schema.CommandFailed, "the session has no workspace to run a command in")
	}
	if err := ctxError(ctx); err != nil {
		return Result{}, err
	}
	if call.DryRun {
		plan := "would run " + shorten(strings.Join(argv, " "), 4*maxShown)
		return Result{OK: true, Output: plan, Summary: plan}, nil
	}
	limit := bashDefault
	if args.TimeoutS != nil {
		limit = min(time.Duration(max(*args.TimeoutS, 1))*time.Second, bashMax)
	}
	dir := call.Workspace.Dir()
	if err := call.Workspace.inPlace(); err != nil {
		return Result{}, cannotRun(dir, err)
	}
	run, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(run, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = commandEnv(os.Getenv, call, dir)
	out, ran, err := runGroup(run, cmd)
	if err != nil {
		if stop := ctxError(ctx); stop != nil {
			return Result{}, stop
		}
		return Result{}, cannotRun(argv[0], err)
	}
	if ran.killed {
		tail, _ := out.text(maxKilledOutput)
		stop := schema.Errorf(schema.Timeout, "the command did not end within %d s and was killed", int(limit.Seconds()))
		if err := ctxError(ctx); err != nil { // not the command's limit but the call's
			stop = schema.AsError(err)
			stop.Message += "; the command was killed"
		}
		return Result{}, stop.With("output", tail)
	}
	text, dropped := out.text(MaxOutput)
	res := bashResult{ExitCode: ran.code, Signal: ran.signal, Bytes: out.total, Dropped: dropped, Outlived: ran.outlived}
	whole := 0
	if dropped > 0 {
		whole = out.total
	}
	return Result{
		OK:         ran.code == 0,
		Output:     text,
		Bytes:      whole,
		ExitCode:   &ran.code,
		Summary:    res.summary(),
		Structured: asJSON(res),
	}, nil
}

// program is what to run. A shell gets -c alone: no start-up files, for it is
// neither a login shell nor interactive, and BASH_ENV and ENV are not passed on.
func (a bashArgs) program() ([]string, error) {
	if (a.Command == nil) == (a.Argv == nil) {
		return nil, invalidArg("", "exactly one of command and argv must be given")
	}
	argv, at := a.Argv, "/argv"
	if a.Command != nil {
		at = "/command"
		shell := "bash"
		if _, err := exec.LookPath(shell); err != nil {
			shell = "sh"
		}
		argv = []string{shell, "-c", *a.Command}
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, invalidArg(at, "there is no program to run")
	}
	for _, s := range argv {
		if strings.ContainsRune(s, 0) {
			return nil, invalidArg(at, "a zero character cannot be passed to a program")
		}
	}
	return argv, nil
}

func (r bashResult) summary() string {
	s := fmt.Sprintf("exit %d", r.ExitCode)
	if r.Signal != "" {
		s = fmt.Sprintf("ended by signal %d (%s), exit %d", r.ExitCode-128, r.Signal, r.ExitCode)
	}
	s += fmt.Sprintf(", %d bytes of output", r.Bytes)
	if r.Dropped > 0 {
		s += fmt.Sprintf(", %d left out", r.Dropped)
	}
	if r.Outlived {
		s += ", left a process behind that holds its output"
	}
	return s
}

// passedOn are the variables of this process that a command gets: what it takes
// to find programs and to speak the user's language, and where Go keeps its
// caches and gets its modules. All others may hold secrets and stay here.
var passedOn = []string{
	"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR",
	"GOCACHE", "GOPATH", "GOMODCACHE", "GOFLAGS", "GOTOOLCHAIN", "GOPROXY", "GOSUMDB",
}

// commandEnv is the whole environment of a command.
func commandEnv(getenv func(string) string, call *Invocation, dir string) []string {
	env := []string{
		"PWD=" + dir,
		"STENO_SESSION=" + call.Session,
		"STENO_CALL_ID=" + call.CallID,
		"STENO_KEY=" + call.Key,
		"STENO_ATTEMPT=" + strconv.Itoa(call.Attempt),
		"STENO_EPOCH=" + strconv.FormatUint(call.Epoch, 10),
		"STENO_SEQ=" + strconv.FormatUint(call.Seq, 10),
	}
	for _, name := range passedOn {
		v := getenv(name)
		if v == "" || name == "GOPROXY" && strings.Contains(v, "@") {
			continue // https://user:password@proxy is a secret
		}
		env = append(env, name+"="+v)
	}
	return env
}

// cannotRun is kind command_failed: there is no process, or none was started.
func cannotRun(program string, err error) error {
	why := lastWords(err)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		why = "there is no such program"
	}
	return schema.Errorf(schema.CommandFailed, "%s cannot be run: %s", quoted(program), why).
		With("cause", why).Cause(err)
}

// inPlace fails if the folder's path leads to another folder by now: a command
// is started by path.
func (w *Workspace) inPlace() error {
	there, err := os.Stat(w.dir)
	if err != nil {
		return err
	}
	here, err := w.root.Stat(".")
	if err == nil && !os.SameFile(there, here) {
		err = errors.New("another folder has taken the workspace's place")
	}
	return err
}
