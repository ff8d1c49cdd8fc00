package executor

import (
	"context"
	"os/exec"
	"strings"
	"time"

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
	maxTail         = 4000 // bytes of standard error, where that is kept apart
)

func bashTool(c Commands) Tool {
	return Tool{
		Name:   "bash",
		DryRun: true,
		Description: "Run a command in the workspace: command is run by a shell, argv without one; give one of them. " +
			"Gives standard output and standard error as they came, and the exit code. Standard input is empty. " +
			"The command is killed after timeout_s seconds (120 by default), and what it leaves running when it ends.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"command":{"type":"string","minLength":1,"description":"for bash -c, or sh -c where there is no bash"},
			"argv":{"type":"array","items":{"type":"string"},"minItems":1,"description":"the program and its arguments"},
			"timeout_s":{"type":"integer","minimum":1,"maximum":3600,"description":"seconds after which it is killed"}},
			"oneOf":[{"required":["command"]},{"required":["argv"]}],"additionalProperties":false}`),
		Tier:    3,
		Program: bashProgram,
		Timeout: bashMax + commandRoom, asked: bashMax,
		Run: func(ctx context.Context, call *Invocation) (Result, error) {
			return runBash(ctx, call, c)
		},
		walls: func() string { return confinement(c, bounds{}) },
	}
}

type bashArgs struct {
	Command  *string  `json:"command"`
	Argv     []string `json:"argv"`
	TimeoutS *int     `json:"timeout_s"`
}

func runBash(ctx context.Context, call *Invocation, how Commands) (Result, error) {
	args, err := decodeArgs[bashArgs](call)
	if err != nil {
		return Result{}, err
	}
	argv, err := args.program()
	if err != nil {
		return Result{}, err
	}
	if err := call.runnable(); err != nil {
		return Result{}, err
	}
	if err := ctxError(ctx); err != nil {
		return Result{}, err
	}
	if call.DryRun {
		return planned(argv), nil
	}
	limit := bashDefault
	if args.TimeoutS != nil {
		limit = min(time.Duration(max(*args.TimeoutS, 1))*time.Second, bashMax)
	}
	r, err := command{argv: argv, how: how, limit: limit, most: MaxOutput}.run(ctx, call)
	if err != nil {
		return Result{}, err
	}
	return r.result(), nil
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
