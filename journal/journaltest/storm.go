package journaltest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"steno/journal"
	"steno/schema"
)

// A Counter is memory that a child and its parent share: the child counts what
// it has handed to Append and what it was answered. So the parent knows of any
// instant, that of a kill or a stop too, whether an append was under way.
type Counter struct {
	path string
	n    *[2]atomic.Uint64
}

// NewCounter makes one for a child that is yet to be started.
func NewCounter(t testing.TB) *Counter {
	t.Helper()
	f, err := os.CreateTemp(TempDir(t), "counter")
	if err == nil {
		err = errors.Join(f.Truncate(16), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := openCounter(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openCounter(path string) (*Counter, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, 16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Counter{path, (*[2]atomic.Uint64)(unsafe.Pointer(&b[0]))}, nil
}

// Handed is how many appends the child has begun.
func (c *Counter) Handed() uint64 { return c.n[0].Load() }

// Unanswered reports whether an append was handed over and has no answer.
func (c *Counter) Unanswered() bool { return c.n[0].Load() > c.n[1].Load() }

// A Stormer is a child that writes into whatever session a line on its stdin
// names, "SESSION" or "SESSION force", until it has lost it: it says what a
// Writer says, then "end ENVELOPE", and waits for the next line. With Again it
// then tries to get the same session back, without force, for ever.
type Stormer struct {
	Dir     string
	Counter string
	NoCheck bool
	NoSync  bool
	NoLog   bool // no sync of the commit log
	Again   bool
	Pad     int  // bytes of a note's text at least
	Plain   bool // without a commit log

	Stamp func() int64 `json:"-"` // taken of each line as it arrives; it only grows
}

// A Storm is a child in role "stormer" with its counter.
type Storm struct {
	*Process
	*Counter
}

// StartStormer starts a child in role "stormer".
func StartStormer(t testing.TB, s Stormer) *Storm {
	t.Helper()
	c := NewCounter(t)
	s.Counter = c.path
	if s.Stamp == nil {
		s.Stamp = func() int64 { return 0 }
	}
	return &Storm{start(t, nil, "stormer", s, s.Stamp), c}
}

// Write tells the child to write into a session.
func (s *Storm) Write(session string, force bool) {
	s.t.Helper()
	if force {
		session += " force"
	}
	if _, err := fmt.Fprintln(s.stdin, session); err != nil {
		s.t.Fatal(err)
	}
}

func stormer(arg []byte) error {
	var s Stormer
	if err := json.Unmarshal(arg, &s); err != nil {
		return err
	}
	c, err := openCounter(s.Counter)
	if err != nil {
		return err
	}
	f, err := journal.OpenFiles(s.Dir, false)
	if err != nil {
		return err
	}
	store, faults := FaultyEither(f, !s.Plain)
	if s.NoSync {
		faults.LeaveOutSync()
	}
	if s.NoLog {
		faults.LeaveOutLogSync()
	}
	if s.NoCheck {
		faults.LeaveOutCheck()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		session, force, _ := strings.Cut(in.Text(), " ")
		for {
			err := s.write(c, store, session, force == "force")
			force = ""
			// Another has it: that is no news, and no line.
			if errors.Is(err, schema.SessionWriterActive) || errors.Is(err, schema.SessionWriterAmbiguous) {
				time.Sleep(time.Millisecond)
				continue
			}
			Say("end %s", schema.Envelope(err))
			if !s.Again {
				break
			}
		}
	}
	return nil
}

func (s *Stormer) write(c *Counter, store journal.Store, session string, force bool) error {
	opt := Options()
	opt.Force, opt.Reason = force, "the test says so"
	ctx := context.Background()
	j, err := journal.Open(ctx, store, session, opt)
	if err != nil {
		return err
	}
	defer j.Close()
	Say("open %s", j.Head())
	for n := 1; ; n++ {
		note := Note(fmt.Sprintf("%0*d of %s", s.Pad, n, opt.Holder.ID))
		c.n[0].Add(1)
		_, err := j.Append(ctx, note)
		c.n[1].Add(1)
		if err != nil {
			return err
		}
		Say("ack %s", j.Head())
	}
}

// A Viewer is a child that reads a session again and again. It says "view
// HEAD" for the last event of each settled view that moved, and "bad TEXT" for
// whatever no reader may ever see.
type Viewer struct{ Dir, Session string }

func viewer(arg []byte) error {
	var v Viewer
	if err := json.Unmarshal(arg, &v); err != nil {
		return err
	}
	store, err := journal.OpenFiles(v.Dir, false)
	if err != nil {
		return err
	}
	var last []schema.Head
	for {
		l, err := Read(store, v.Session, journal.ScanOptions{})
		if errors.Is(err, schema.NotFound) {
			continue
		}
		if err != nil {
			Say("bad %v", err)
			continue
		}
		if l.FirstError != nil {
			Say("bad %v", *l.FirstError)
		}
		// What was settled may become tentative again while somebody claims,
		// but it stays.
		var all []schema.Head
		settled := 0
		for i, e := range l.Events {
			if all = append(all, e.Head()); !l.Places[i].Tentative {
				settled = i + 1
			}
		}
		for i, h := range last {
			if i >= len(all) || all[i] != h {
				Say("bad event %d is no longer the %v that it was", i+1, h)
				break
			}
		}
		if settled > len(last) {
			last = all[:settled]
			Say("view %s", last[settled-1])
		}
	}
}

// Heads gives the heads of all lines that begin with one of these words.
func (p *Process) Heads(words ...string) []schema.Head {
	p.t.Helper()
	return p.HeadsUntil(math.MaxInt64, words...)
}

// HeadsUntil gives those that arrived at a stamp or before it.
func (p *Process) HeadsUntil(stamp int64, words ...string) (heads []schema.Head) {
	p.t.Helper()
	p.mu.Lock()
	lines := p.lines[:sort.Search(len(p.at), func(i int) bool { return p.at[i] > stamp })]
	p.mu.Unlock()
	for _, line := range lines {
		first, rest, _ := strings.Cut(line, " ")
		for _, w := range words {
			if first != w {
				continue
			}
			h, err := schema.ParseHead(rest)
			if err != nil {
				p.t.Fatal(err)
			}
			heads = append(heads, h)
		}
	}
	return heads
}

// Take waits for a line that begins with a word, and takes it and all lines
// before it away.
func (p *Process) Take(word string) (lines []string) {
	p.t.Helper()
	from, at := 0, -1
	p.wait(fmt.Sprintf("%q", word), func() bool {
		for ; from < len(p.lines) && at < 0; from++ {
			if first, _, _ := strings.Cut(p.lines[from], " "); first == word {
				at = from + 1
			}
		}
		if at < 0 {
			return false
		}
		lines, p.lines, p.at = p.lines[:at:at], p.lines[at:], p.at[at:]
		return true
	})
	return lines
}
