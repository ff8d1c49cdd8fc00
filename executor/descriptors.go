package executor

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// A process may have so many files open, and sessions, workspaces, connections
// and tools share them. Where there is no more, nothing that fails for it is what
// became of a call: sessions that nobody uses are given back, and the call waits.

// noFiles reports whether this process, or the machine, may have no more files
// open.
func noFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// tooManyFiles is kind unavailable: something was not begun for want of a
// descriptor. Only what had no effect yet fails with it.
func tooManyFiles(err error) *schema.Error {
	return schema.Errorf(schema.Unavailable, "too many files are open").With("cause", lastWords(err)).Cause(err)
}

func notBegun(err error) bool { return errors.Is(err, schema.Unavailable) && noFiles(err) }

// Spare descriptors are kept to have some for giving sessions back, and there must
// be twice as many for this process to be ready.
const spareFiles = 8

// A reserve is those that are kept.
type reserve struct {
	mu    sync.Mutex
	files []*os.File
	last  time.Time // when sessions were last given back for it
}

// fill opens what is missing, and says whether there is room for it.
func (r *reserve) fill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.files) < 2*spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return tooManyFiles(err)
		}
		r.files = append(r.files, f)
	}
	r.drop(spareFiles)
	return nil
}

// drop closes all but some. The caller holds mu.
func (r *reserve) drop(keep int) {
	for _, f := range r.files[min(keep, len(r.files)):] {
		f.Close()
	}
	r.files = r.files[:min(keep, len(r.files))]
}

// filesPause is between two tries of what had no descriptor.
const filesPause = 100 * time.Millisecond

// filesWait is how long a session waits for descriptors to be opened.
const filesWait = time.Second

// outOfFiles makes room: of the sessions that are held one in eight is given back,
// those first that nobody uses, and no more are held until there is room again.
func (x *Executor) outOfFiles(err error) {
	r := &x.reserve
	r.mu.Lock()
	if time.Since(r.last) < filesPause {
		r.mu.Unlock()
		return
	}
	r.last = time.Now()
	full := len(r.files) > 0
	r.drop(0)
	r.mu.Unlock()
	x.mu.Lock()
	held := len(x.sessions) - x.thinned
	x.room = max(1, min(x.room, held)-(held+7)/8)
	x.mu.Unlock()
	if full {
		x.log.Warn("too many files are open: sessions are given back, and calls wait", "sessions", held, "next", schema.NextFiles, "err", err)
	}
	x.thin()
	x.lookAgain()
}

// haveFiles says whether there is room for more, and then as many sessions may be
// held again as before.
func (x *Executor) haveFiles() error {
	if err := x.reserve.fill(); err != nil {
		return err
	}
	x.mu.Lock()
	x.room = x.cfg.Sessions
	x.mu.Unlock()
	return nil
}

// awaitFiles reports whether to try again what failed with err, and when: false
// where it has failed for something else, or ctx has ended.
func (x *Executor) awaitFiles(ctx context.Context, err error) bool {
	if !noFiles(err) || ctx.Err() != nil {
		return false
	}
	x.outOfFiles(err)
	select {
	case <-time.After(filesPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// acquireLease opens the journal. Where there is no descriptor for it sessions that nobody
// uses are given back first.
func (s *session) acquireLease(opt journal.Options) (*journal.Journal, error) {
	wait, stop := context.WithTimeout(s.ctx, filesWait)
	defer stop()
	for {
		j, err := journal.Open(s.ctx, s.x.cfg.Store, s.id, opt)
		if !s.x.awaitFiles(wait, err) {
			return j, err
		}
	}
}

// untilBegun does what a tool does for call, and again where there was no
// descriptor for it to begin, until ctx ends.
func untilBegun[T any](ctx context.Context, call *Invocation, f func(context.Context, *Invocation) (T, error)) (T, error) {
	for {
		r, err := f(ctx, call)
		if call.of == nil || !notBegun(err) {
			return r, err
		}
		if !call.of.x.awaitFiles(ctx, err) {
			return r, ctxError(ctx)
		}
	}
}

// patient is the function of a tool that waits for a descriptor.
func patient(run func(context.Context, *Invocation) (Result, error)) func(context.Context, *Invocation) (Result, error) {
	return func(ctx context.Context, call *Invocation) (Result, error) { return untilBegun(ctx, call, run) }
}

// Workspaces stay open with their session where few enough do; others are open
// while a call uses them.
var (
	keptSpaces    atomic.Int64
	maxKeptSpaces = int64(lease.MaxHeld() / 8)
)

// space is the workspace of the session, opened when it is first asked for, and
// again as long as it cannot be opened: a folder may come back.
func (s *session) space() (*Workspace, error) {
	var dir string
	s.view(func(st *replay.State) {
		if st.Started != nil {
			dir = st.Started.Workspace
		}
	})
	s.spaceMu.Lock()
	defer s.spaceMu.Unlock()
	switch {
	case s.left:
		return nil, s.stopped()
	case s.workspace != nil || dir == "":
		return s.workspace, nil
	}
	var err error
	if s.workspace, err = s.x.openSpace(dir); err == nil {
		s.keepSpace()
	}
	if errors.Is(err, schema.InvalidConfig) { // it names the store's folder, which is no business of a tool
		s.x.log.Error("a workspace cannot be guarded", "session", s.id, "err", err)
		err = schema.Errorf(schema.Internal, "the workspace cannot be guarded").Cause(err)
	}
	return s.workspace, err
}

// keepSpace notes that a workspace was opened. The caller holds spaceMu.
func (s *session) keepSpace() {
	if s.keeps = keptSpaces.Add(1) <= maxKeptSpaces; !s.keeps {
		keptSpaces.Add(-1)
	}
}

// restSpace closes a workspace that does not stay open and that nobody uses.
func (s *session) restSpace() {
	s.spaceMu.Lock()
	defer s.spaceMu.Unlock()
	if s.workspace == nil || s.keeps || s.inside > 0 || s.users.Load() > 0 { // who comes now opens it again
		return
	}
	_ = s.workspace.Close() // nothing was written through it
	s.workspace = nil
}

// guards are the protected folders, opened once for all sessions.
type guards struct {
	mu   sync.Mutex
	list []guarded // nil before the first
}

func (x *Executor) guards() ([]guarded, error) {
	g := &x.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		list, err := guard(x.cfg.Protect)
		if err != nil {
			return nil, err
		}
		g.list = list
	}
	return g.list, nil
}

// openSpace opens a workspace with what is guarded in this process.
func (x *Executor) openSpace(dir string) (*Workspace, error) {
	list, err := x.guards()
	if err != nil {
		return nil, err
	}
	return openWorkspace(&Workspace{alias: dir, guarded: list, shared: true})
}

// closeFiles gives back what is open for all sessions.
func (x *Executor) closeFiles() error {
	x.reserve.mu.Lock()
	x.reserve.drop(0)
	x.reserve.mu.Unlock()
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	err := letGo(x.guard.list)
	x.guard.list = nil
	return err
}
