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
)

// A command is a program to be run for a call, in its workspace. bash and the
// tools of a tools file are run in the same way.
type command struct {
	argv  []string
	how   Commands
	stdin []byte        // what it reads; nothing if empty
	env   []string      // besides what every command gets
	apart bool          // standard error is kept apart from standard output
	tell  func(string)  // of its lines, if it is kept apart; nil tells nobody
	limit time.Duration // it is killed after that
	most  int           // bytes of its output that are kept
	bounds
}

// bounds of a command that has walls; 0 is none.
type bounds struct {
	CPU, FileSize, Files uint64 // of each process: seconds, bytes, open at a time
	Memory, Processes    uint64 // of all together: bytes, processes and threads
}

// A ran is what a command that ended by itself has left.
type ran struct {
	outcome
	out  *capture // standard output, and standard error if that is not apart
	errs *tail    // standard error, if that is apart
}

// run runs the command for call. Kind command_failed says that it was not
// started, kind timeout or cancelled that it was killed; details.output is then
// what it said.
func (c command) run(ctx context.Context, call *Invocation) (ran, error) {
	return untilBegun(ctx, call, c.once)
}

func (c command) once(ctx context.Context, call *Invocation) (ran, error) {
	if err := ctxError(ctx); err != nil {
		return ran{}, err
	}
	dir := call.Workspace.Dir()
	if err := call.Workspace.inPlace(); err != nil {
		return ran{}, cannotRun(dir, err)
	}
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	temp, held, err := c.how.tempDir()
	if temp != "" {
		defer func() {
			defer held.Close()
			if err := removeTemp(temp); err != nil && call.log != nil {
				call.log.Warn("the folder for temporary files of a command cannot be removed", "path", temp, "err", err)
			}
		}()
	}
	if noFiles(err) {
		return ran{}, tooManyFiles(err)
	}
	if err != nil {
		return ran{}, schema.Errorf(schema.CommandFailed, "the command's folder for temporary files cannot be made: %s", lastWords(err)).
			With("next", "look at TMPDIR, or /tmp, of the executor").Cause(err)
	}
	cmd := exec.CommandContext(limited, c.argv[0], c.argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(c.how.environment(commandEnv(os.Getenv, call, dir), temp), c.env...)
	r, err := runGroup(limited, cmd, c, call, temp)
	switch stop := ctxError(ctx); {
	case err != nil && stop != nil:
		return ran{}, stop
	case noFiles(err):
		return ran{}, tooManyFiles(err)
	case errors.Is(err, schema.BashDisabled):
		return ran{}, err
	case err != nil:
		return ran{}, cannotRun(c.argv[0], err)
	case !r.killed:
		return r, nil
	}
	killed := schema.Errorf(schema.Timeout, "the command did not end within %d s and was killed", int(c.limit.Seconds()))
	if err := ctxError(ctx); err != nil { // not the command's limit but the call's
		killed = schema.AsError(err)
		killed.Message += "; the command was killed"
	}
	said := r.out.text(maxKilledOutput)
	if c.apart {
		said += r.errs.text()
	}
	return ran{}, killed.With("output", longText(said))
}

// runnable is nil if there is a workspace to run a command in.
func (call *Invocation) runnable() error {
	switch {
	case call.noFolder != nil:
		return call.noFolder
	case call.Workspace == nil:
		return schema.Errorf(schema.CommandFailed, "the session has no workspace to run a command in").With("next", nextWorkspace)
	}
	return nil
}

// A commandResult is the structured answer about a command.
type commandResult struct {
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitzero"`   // that ended it
	Bytes    int    `json:"bytes"`             // of output
	Dropped  int    `json:"dropped,omitzero"`  // bytes of output that are not recorded
	Outlived bool   `json:"outlived,omitzero"` // something that it started goes on, out of reach, and holds its output
	Reached  string `json:"reached,omitzero"`  // the limits that it came up against: memory, processes
}

// result is what is told of a command that ended.
func (r *ran) result() Result {
	limit := r.out.most
	text := r.out.text(limit) // it is cut when it is recorded
	dropped := 0
	if len(text) > limit {
		dropped = schema.Dropped(text, text, max(len(text), r.out.total), limit)
	}
	res := commandResult{ExitCode: r.code, Signal: r.signal, Bytes: r.out.total, Dropped: dropped, Outlived: r.outlived, Reached: r.reached}
	whole := 0
	if dropped > 0 {
		whole = r.out.total
	}
	code := r.code
	return Result{
		OK:         code == 0,
		Output:     text,
		Bytes:      whole,
		limit:      limit,
		ExitCode:   &code,
		Summary:    res.summary(),
		Structured: asJSON(res),
	}
}

func (r commandResult) summary() string {
	s := fmt.Sprintf("exit %d", r.ExitCode)
	if r.Signal != "" {
		s = fmt.Sprintf("ended by signal %d (%s), exit %d", r.ExitCode-128, r.Signal, r.ExitCode)
	}
	s += fmt.Sprintf(", %d bytes of output", r.Bytes)
	if r.Dropped > 0 {
		s += fmt.Sprintf(", %d left out", r.Dropped)
	}
	if r.Reached != "" {
		s += ", reached its limit of " + r.Reached
	}
	if r.Outlived {
		s += ", left a process behind that holds its output"
	}
	return s
}

// planned is the answer to a dry run of a command.
func planned(argv []string) Result {
	plan := "would run " + shorten(strings.Join(argv, " "), 4*maxShown)
	return Result{OK: true, Output: plan, Summary: plan}
}

// passedOn are the variables of this process that a command gets: what it takes
// to find programs and to speak the user's language, and where Go keeps its
// caches and gets its modules. All others may hold secrets and stay here.
var passedOn = []string{
	"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ",
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
	if call.Actor.ID != "" {
		env = append(env, "STENO_ACTOR="+call.Actor.ID, "STENO_ACTOR_VIA="+call.Actor.Via)
	}
	return append(env, inherited(getenv)...)
}

// inherited are the usual few variables.
func inherited(getenv func(string) string) (env []string) {
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
