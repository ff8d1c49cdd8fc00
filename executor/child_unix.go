//go:build unix

package executor

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"steno/schema"
)

// A Child is a program that goes on beside the calls and is spoken to over its
// standard input and output, as an MCP server is. It is confined as commands are,
// and ends with this process, also where that is killed; unlike a command it may
// write wherever the user of this process may, but for what is protected.
type Child struct {
	In  *os.File // its standard input; closing it asks it to end
	Out *os.File // its standard output, to be closed by whoever reads it
	cmd *exec.Cmd
	// done is closed when it has ended, with all that it had started and that could
	// be reached; err then says how.
	done chan struct{}
	err  error
}

// ChildSpec says what a [Child] is.
type ChildSpec struct {
	Argv    []string // an absolute path, and arguments
	Dir     string
	Env     []string // NAME=value, besides the usual few variables
	Protect []string // folders that it must not see
	Stderr  io.Writer
}

// StartChild starts a program. Kind command_failed says that it cannot be started,
// bash_disabled that it cannot be confined.
func StartChild(spec ChildSpec) (*Child, error) {
	keepDescriptors()
	failed := func(err error, files ...*os.File) (*Child, error) {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	its, in, err := os.Pipe()
	if err != nil {
		return failed(cannotRun(spec.Argv[0], err))
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return failed(cannotRun(spec.Argv[0], err), its, in)
	}
	p := &pipes{its: []*os.File{its, theirs}} // what is ours there is the word of the walls
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Dir, its, theirs, spec.Stderr
	cmd.WaitDelay = bashGrace // for whoever has left the group and holds standard error
	cmd.Env = append(inherited(os.Getenv), "PWD="+spec.Dir)
	if dir := os.Getenv("TMPDIR"); dir != "" {
		cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	}
	cmd.Env = append(cmd.Env, spec.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	wall, err := aside(cmd, spec.Protect, p)
	if err != nil {
		p.close()
		return failed(err, in, out)
	}
	c := &Child{In: in, Out: out, cmd: cmd, done: make(chan struct{})}
	begun := make(chan error)
	go func() {
		// See runGroup: the parent-death signal comes with the end of this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer p.close()
		err := cmd.Start()
		p.started()
		begun <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // what it says is in ProcessState
		killGroup(cmd)
		c.err = ending(cmd, wall)
		wall.down()
		close(c.done)
	}()
	if err := <-begun; err != nil {
		return failed(cannotRun(spec.Argv[0], err), in, out)
	}
	return c, nil
}

// Done is closed when the program has ended; Err then says how, which is nil where
// it ended by itself and all was well.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err is how it ended.
func (c *Child) Err() error {
	<-c.done
	return c.err
}

// End ends it: by closing its standard input; if it goes on then, by SIGTERM, and
// by SIGKILL in the end, with patience before each. It returns when the program
// has ended.
func (c *Child) End(patience time.Duration) {
	_ = c.In.Close() // a second time does no harm
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-c.done:
			return
		case <-time.After(patience):
		}
		_ = syscall.Kill(-c.cmd.Process.Pid, s) // it may have ended just now
	}
	<-c.done
}

// ending is how a child ended.
func ending(cmd *exec.Cmd, wall *wall) error {
	res := outcome{}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if res.code = status.ExitStatus(); status.Signaled() {
		res.code, res.signal = 128+int(status.Signal()), status.Signal().String()
	}
	if wall != nil {
		if err := wall.failed(); err != nil {
			return err
		}
		wall.ended(&res)
	}
	switch {
	case res.signal != "":
		return schema.Errorf(schema.CommandFailed, "it was ended by a signal: %s", res.signal)
	case res.code != 0:
		return schema.Errorf(schema.CommandFailed, "it ended with exit code %d", res.code)
	}
	return nil
}
