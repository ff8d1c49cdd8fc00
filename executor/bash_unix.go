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
}

// runGroup runs cmd, which was made with ctx, in a process group of its own.
// It returns an error only if cmd was not started.
//
// The group ends with the command: when ctx ends, and also when the command has
// ended and left something running. Otherwise that would go on changing files
// after the result is on record. A process that has left the group (setsid) is
// not reached by this; it is not waited for either.
func runGroup(ctx context.Context, cmd *exec.Cmd) (*capture, outcome, error) {
	keepDescriptors()
	// One pipe for both streams keeps what was written in order. It is ours, not
	// os/exec's, so that Wait returns with the command and the group can be
	// killed then. Nothing else is inherited; os/exec makes stdin /dev/null.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, outcome{}, err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	// The parent-death signal, where there is one, is sent when the thread that
	// started the command ends. So this goroutine keeps its thread until the
	// command has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setDeathSignal(cmd.SysProcAttr)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, outcome{}, err
	}
	out := &capture{}
	read := make(chan error, 1)
	go func() { read <- out.fill(r) }()

	// When ctx ends, os/exec kills the command itself, and the rest of its group
	// follows below. What Wait says is in ProcessState.
	_ = cmd.Wait()
	var res outcome
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if res.code = status.ExitStatus(); status.Signaled() {
		res.code = 128 + int(status.Signal())
		res.signal = status.Signal().String()
		// A command that ended by itself just before has a result of its own,
		// even if ctx has ended too.
		res.killed = status.Signal() == syscall.SIGKILL && ctx.Err() != nil
	}

	grace := time.NewTimer(bashGrace)
	defer grace.Stop()
	select {
	case <-read: // all output is here, but something may run on without holding it
		killGroup(cmd)
		return out, res, nil
	case <-ctx.Done():
	case <-grace.C:
	}
	killGroup(cmd)
	_ = r.SetReadDeadline(time.Now().Add(bashGrace))
	res.outlived = errors.Is(<-read, os.ErrDeadlineExceeded)
	return out, res, nil
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
