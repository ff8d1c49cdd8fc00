//go:build unix

package executor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// An outcome is how a command ended.
type outcome struct {
	code     int
	signal   string // that ended it, or ""
	killed   bool   // by us, because ctx had ended
	outlived bool   // its output is still held by something out of reach
	reached  string // the limits that it came up against
}

// runGroup runs cmd, which was made with ctx for c, within walls where there are
// some, and in a process group of its own. It returns an error only if cmd was
// not started.
//
// What it has started ends with the command: when ctx ends, and also when the
// command has ended and left something running. Otherwise that would go on
// changing files after the result is on record. Walls end all of it, else the
// group is killed: a process that has left it (setsid) is not reached by this
// and not waited for either.
func runGroup(ctx context.Context, cmd *exec.Cmd, c command, call *Invocation, temp string) (res ran, err error) {
	keepDescriptors()
	// The pipes are ours, not os/exec's, so that Wait returns with the command
	// and the group can be killed then. Nothing else is inherited; os/exec makes
	// stdin /dev/null where there is nothing to read.
	p := pipes{}
	defer p.close()
	res.out = &capture{most: c.most}
	if cmd.Stdout, err = p.from(res.out); err != nil {
		return ran{}, err
	}
	cmd.Stderr = cmd.Stdout // one pipe keeps what was written in order
	if c.apart {
		res.errs = &tail{tell: c.tell}
		if cmd.Stderr, err = p.from(res.errs); err != nil {
			return ran{}, err
		}
	}
	if len(c.stdin) > 0 {
		if cmd.Stdin, err = p.to(c.stdin); err != nil {
			return ran{}, err
		}
	}
	// A session of its own is a group of its own, and has no terminal: a command
	// must not answer there in a person's name.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	wall, err := around(cmd, c, call, &p, temp)
	if err != nil {
		return ran{}, err
	}
	defer wall.down()

	// The parent-death signal, where there is one, is sent when the thread that
	// started the command ends. So this goroutine keeps its thread until the
	// command has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	p.started()
	if err != nil {
		return ran{}, err
	}
	read := p.copy()

	// When ctx ends, os/exec kills the command itself, and the rest of its group
	// follows below. What Wait says is in ProcessState.
	_ = cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if res.code = status.ExitStatus(); status.Signaled() {
		res.code = 128 + int(status.Signal())
		res.signal = status.Signal().String()
		// A command that ended by itself just before has a result of its own,
		// even if ctx has ended too.
		res.killed = status.Signal() == syscall.SIGKILL && ctx.Err() != nil
	}
	if wall != nil {
		if err := wall.failed(); err != nil {
			<-read // nobody holds the other ends any more
			return ran{}, err
		}
		if wall.ended(&res.outcome) {
			res.killed = false
		}
	}

	grace := time.NewTimer(bashGrace)
	defer grace.Stop()
	select {
	case <-read: // all output is here, but something may run on without holding it
		killGroup(cmd)
		return res, nil
	case <-ctx.Done():
	case <-grace.C:
	}
	killGroup(cmd)
	p.deadline(time.Now().Add(bashGrace))
	res.outlived = errors.Is(<-read, os.ErrDeadlineExceeded)
	return res, nil
}

// pipes are our ends of a command's streams, and until it has started also its
// own.
type pipes struct {
	ours, its []*os.File
	work      []func() error // what is to be copied
}

// A sink is where a stream goes: room is where its next bytes belong, and is
// never empty; took says how many came.
type sink interface {
	room() []byte
	took(n int)
}

// from gives the end of a pipe whose content goes to w.
func (p *pipes) from(w sink) (*os.File, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours, p.its = append(p.ours, in), append(p.its, out)
	p.work = append(p.work, func() error {
		for {
			n, err := in.Read(w.room())
			w.took(n)
			if err != nil {
				return err
			}
		}
	})
	return out, nil
}

// to gives the end of a pipe from which text is read. A command need not read
// it: who reads no more gets no more.
func (p *pipes) to(text []byte) (*os.File, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours, p.its = append(p.ours, out), append(p.its, in)
	p.work = append(p.work, func() error {
		_, err := out.Write(text)
		return errors.Join(err, out.Close())
	})
	return in, nil
}

// started closes what only the command holds from now on.
func (p *pipes) started() {
	for _, f := range p.its {
		f.Close()
	}
	p.its = nil
}

// copy begins to copy, and says when all streams have ended.
func (p *pipes) copy() <-chan error {
	done, all := make(chan error, len(p.work)), make(chan error, 1)
	for _, work := range p.work {
		go func() { done <- work() }()
	}
	go func() {
		var err error
		for range p.work {
			err = errors.Join(err, <-done)
		}
		all <- err
	}()
	return all
}

func (p *pipes) deadline(t time.Time) {
	for _, f := range p.ours {
		_ = f.SetDeadline(t)
	}
}

func (p *pipes) close() {
	for _, f := range append(p.ours, p.its...) {
		f.Close()
	}
}

// keepDescriptors keeps descriptors that this process was started with, above
// the standard three, from being handed on: a supervisor's socket is nothing for
// a command. All others are opened close-on-exec by Go, so once is enough.
var keepDescriptors = sync.OnceFunc(func() {
	open, _ := os.ReadDir("/dev/fd") // on Linux a link to /proc/self/fd
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
})

// killGroup kills what is left of the command's process group. The number of a
// group is not used again while it has a process; in the moment after the last
// one is gone it could in theory, once all other numbers have been.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if nothing is left
}
