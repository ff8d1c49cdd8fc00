package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/schema"
)

// A terminal is where the person sits who has started this command. It is asked
// what a policy wants a person to be asked about, one question at a time.
type terminal struct {
	mu sync.Mutex
	f  *os.File
}

// openTerminal is the terminal of this process, nil if it has none, or runs in
// the background: who reads there is stopped.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	t := &terminal{f: f}
	if !t.ours() {
		_ = f.Close()
		return nil
	}
	return t
}

// ours reports whether what is typed comes to this process.
func (t *terminal) ours() (ours bool) {
	t.control(func(fd int) {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		ours = err == nil && group == unix.Getpgrp()
	})
	return ours
}

// control does something with the descriptor. Fd would make reading wait for ever.
func (t *terminal) control(f func(fd int)) {
	if c, err := t.f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// typed reports whether what is read there is typed at a terminal.
func typed(in io.Reader) bool {
	f, is := in.(*os.File)
	if !is {
		return false
	}
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil
}

// shownArgs is how many bytes of the arguments a question shows.
const shownArgs = 4000

// ask puts a question and reads the answer, a line. Only a yes allows the call. The
// end of the input denies it; the end of ctx, as by a signal, is no answer.
func (t *terminal) ask(ctx context.Context, q executor.ApprovalInfo) (executor.AnswerRequest, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil { // it came while another question stood
		return executor.AnswerRequest{}, ctx.Err()
	}
	a := executor.AnswerRequest{Session: q.Session, CallID: q.CallID, ApprovalID: q.ApprovalID, ArgsSHA256: q.ArgsSHA256, Redacted: q.Redacted,
		Decision: "deny", Actor: executor.Actor{ID: byUser()}}
	if !t.ours() {
		a.Reason = "nobody is at the terminal"
		return a, nil
	}
	t.control(forgetTyped) // it was no answer to what is asked now
	var text strings.Builder
	fmt.Fprintf(&text, "\ncall %s of session %s wants %s, tier %d", q.CallID, q.Session, q.Tool, q.Tier)
	if q.Program != "" {
		fmt.Fprintf(&text, ", program %s", inert(short(q.Program, 60)))
	}
	if q.Actor.ID != "" {
		fmt.Fprintf(&text, ", for %s", inert(short(q.Actor.ID, 60)))
	}
	args, _ := schema.Truncate(string(q.Args), shownArgs)
	text.WriteString("\n  " + inert(args) + "\n  " + inert(q.Reason))
	if q.Expires != "" {
		text.WriteString(", until " + inert(q.Expires))
	}
	text.WriteString("\nallow it once? [y/N] ")
	if _, err := t.f.WriteString(text.String()); err != nil {
		a.Reason = "the terminal is gone"
		return a, nil
	}
	until, _ := time.Parse(time.RFC3339Nano, q.Expires) // for ever, where that is no time
	_ = t.f.SetReadDeadline(until)
	defer context.AfterFunc(ctx, func() { _ = t.f.SetReadDeadline(time.Unix(1, 0)) })()
	line, err := t.line()
	switch {
	case ctx.Err() != nil:
		_, _ = t.f.WriteString("\nno answer; it goes on to wait\n")
		return a, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		_, _ = t.f.WriteString("\nit is too late\n")
		a.Reason = "nobody answered in time" // which its holder has recorded, or does now
	case err != nil:
		a.Reason = "no answer at the terminal"
	case strings.EqualFold(line, "y") || strings.EqualFold(line, "yes"):
		a.Decision = "allow"
	default:
		a.Reason = "denied at the terminal"
	}
	return a, nil
}

// line reads a line, of which a terminal gives one at a time.
func (t *terminal) line() (string, error) {
	var line []byte
	b := make([]byte, 256)
	for {
		n, err := t.f.Read(b)
		if line = append(line, b[:n]...); n > 0 && line[len(line)-1] == '\n' {
			return strings.TrimSpace(string(line)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// callTool makes a call, and asks the person at the terminal where there is one
// and the policy wants somebody to be asked. A question ends with the signal, the
// call it is about goes on to wait.
func (b *backend) callTool(signal, ctx context.Context, session string, req executor.Request) (executor.Answer, error) {
	for {
		answer, err := b.client.Call(ctx, session, req)
		e, waits := errors.AsType[*schema.Error](err)
		id := ""
		if waits {
			id, _ = e.Details["approval_id"].(string)
		}
		if b.terminal == nil || id == "" {
			return answer, err
		}
		list, err := executor.Approvals(ctx, b.store, session)
		if err != nil {
			return answer, err
		}
		for _, q := range list {
			if q.CallID != req.CallID || q.ApprovalID != id {
				continue // the answer is there, or the question has expired
			}
			patience, cancel := context.WithCancel(ctx)
			stop := context.AfterFunc(signal, cancel)
			said, stopped := b.terminal.ask(patience, q)
			stop()
			cancel()
			if stopped != nil {
				return answer, e
			}
			_, err = b.client.Answer(ctx, said)
			if k := schema.KindOf(err); err != nil && k != schema.ApprovalExpired && k != schema.ApprovalDenied && k != schema.CallConflict {
				return answer, err // else somebody was faster, and the call has its result
			}
		}
	}
}
