package journal_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// These tests use processes of their own: what such a writer has printed is
// what somebody was told, and must be in the log whatever happened to it.

func TestOfTwoProcessesOneWritesAndTheOtherIsTold(t *testing.T) {
	store := journaltest.FilesIn(t, t.TempDir())
	w := journaltest.Writer{Dir: store.Dir(), Session: "s1", Entries: 3, Step: true}
	a, b := journaltest.StartWriter(t, w), journaltest.StartWriter(t, w)
	// Neither can end before it is let: the one that has the session holds it
	// while the other asks.
	var won, refused *journaltest.Process
	for _, p := range []*journaltest.Process{a, b} {
		if p.WaitForEither("open", "error") == "open" {
			won = p
		} else {
			refused = p
		}
	}
	if won == nil || refused == nil {
		t.Fatalf("both or neither got the session: %q, %q", a.Lines(), b.Lines())
	}
	err := refused.Err()
	if !errors.Is(err, schema.SessionWriterActive) {
		t.Errorf("the refused one got %v", err)
	}
	if pid, _ := schema.AsError(err).Details["pid"].(float64); int(pid) != won.PID() {
		t.Errorf("the refusal names process %v; %d holds the session", pid, won.PID())
	}
	won.Step(4)
	won.WaitFor("released", 1)
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(won.Acknowledged()); len(gone) > 0 || len(l.Findings) > 0 {
		t.Errorf("acknowledged and not there: %v; findings %v", gone, l.Findings)
	}
}

// Where a process is killed, and what of its second append is in the log then.
// Epoch 1 writes twice and syncs four times before its first append.
var kills = []kill{
	{journaltest.Write, 1, false, 0},
	{journaltest.Sync, 1, false, 0},
	{journaltest.Claimed, 1, false, 0},
	{journaltest.Sync, 2, false, 0},
	{journaltest.Sync, 3, false, 0},
	{journaltest.Write, 2, false, 0},
	{journaltest.Written, 1, false, 2},
	{journaltest.Sync, 4, false, 2},
	{journaltest.Synced, 1, false, 2},
	{journaltest.Checked, 1, false, 2},
	{journaltest.Write, 4, true, 3},
	{journaltest.Written, 3, true, 4},
	{journaltest.Sync, 6, true, 4},
	{journaltest.Synced, 3, true, 4},
	{journaltest.Checked, 3, true, 4},
}

// With a commit log an append has these in the place of the sync.
var logKills = []kill{
	{journaltest.LogWrite, 2, true, 4},
	{journaltest.LogSync, 2, true, 4},
}

type kill struct {
	point  string
	nth    int
	opened bool
	events int // in the log; 2 are the seal and session_started
}

func TestAWriterKilledAtAnyPointHasLostNothing(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		all := kills
		if logged {
			all = append(slices.DeleteFunc(slices.Clone(kills), func(k kill) bool { return k.point == journaltest.Sync && k.nth == 6 }), logKills...)
		}
		for _, k := range all {
			t.Run(k.point+string(rune('0'+k.nth)), func(t *testing.T) { killed(t, k, logged) })
		}
	})
}

func killed(t *testing.T, k kill, logged bool) {
	t.Parallel()
	store := journaltest.Files(t)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Entries: 5, KillAt: k.point, KillNth: k.nth, Plain: !logged})
	if killed, err := p.Wait(); !killed {
		t.Fatalf("the writer was not killed: %v, %q", err, p.Lines())
	}
	told := p.Acknowledged()
	if opened := len(told) > 0; opened != k.opened || k.opened && len(told) != 2 {
		t.Errorf("the writer was told of %v", told)
	}
	if k.events > 0 {
		if l := journaltest.Verify(t, store, "s1"); len(l.Events) != k.events || len(l.Missing(told)) > 0 {
			t.Errorf("the log has %d events, want %d; acknowledged were %v", len(l.Events), k.events, told)
		}
	}
	for range 2 { // and again, after the next writer died too
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		if err != nil {
			t.Fatal(err)
		}
		if k.events > 0 && j.How() != schema.HowTakeover {
			t.Errorf("the next writer came by the session as %s", j.How())
		}
		journaltest.Append(t, j, journaltest.Note("goes on"))
		told = append(told, j.Head())
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(told); len(gone) > 0 {
		t.Errorf("acknowledged and not there: %v", gone)
	}
	if left, _ := filepath.Glob(filepath.Join(store.Dir(), "sessions", "s1", ".claim-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestWritersKilledAtRandomHaveLostNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	store := journaltest.Files(t)
	var told []schema.Head
	const rounds = 12
	for range rounds {
		// The first of two to arrive writes; the other forces it out, or dies.
		one := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Plain: r.IntN(3) == 0})
		one.WaitFor("ack", 1+r.IntN(8))
		two := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", Force: r.IntN(2) == 0, Plain: r.IntN(3) == 0})
		if r.IntN(2) == 0 {
			two.WaitForEither("open", "error")
		} else {
			one.WaitForEither("ack", "error")
		}
		one.Kill()
		two.Kill()
		told = append(append(told, one.Acknowledged()...), two.Acknowledged()...)
		l := journaltest.Verify(t, store, "s1")
		if gone := l.Missing(told); len(gone) > 0 {
			t.Fatalf("acknowledged and not there: %v", gone)
		}
	}
	journaltest.Append(t, journaltest.Open(t, store, "s1"), journaltest.Note("goes on"))
	if len(told) < 2*rounds {
		t.Errorf("only %d acknowledgements were given", len(told))
	}
}

// zombie stops a writer in the middle of its work, takes its session over, and
// lets it go on. It returns what that writer was told and the log at the end.
func zombie(t *testing.T, noCheck, plain bool) (old *journaltest.Process, l *journaltest.Log) {
	t.Helper()
	store := journaltest.Files(t)
	old = journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1", NoCheck: noCheck, Plain: plain})
	old.WaitFor("ack", 5)
	old.Stop()

	_, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if !errors.Is(err, schema.SessionWriterActive) {
		t.Errorf("a stopped writer still holds its lock; opening gives %v", err)
	}
	next := journaltest.Force(t, store, "s1")
	journaltest.Append(t, next, journaltest.Note("mine"))

	before := len(old.Lines())
	old.Continue()
	if noCheck {
		old.WaitFor("ack", before+3)
		old.Kill()
	} else if err := old.Err(); !errors.Is(err, schema.SessionWriterLost) {
		t.Errorf("the woken writer ended in %v", err)
	}
	journaltest.Append(t, next, journaltest.Note("undisturbed"))
	l = journaltest.Verify(t, store, "s1")
	if gone := l.Missing([]schema.Head{next.Head()}); len(gone) > 0 {
		t.Errorf("the new writer's events are gone: %v", gone)
	}
	return old, l
}

func TestAWokenWriterHasLostAndAcknowledgesNothing(t *testing.T) {
	for n := range 6 { // it is stopped wherever it happens to be
		old, l := zombie(t, false, n%2 == 0)
		if gone := l.Missing(old.Acknowledged()); len(gone) > 0 {
			t.Errorf("acknowledged and not there: %v", gone)
		}
		for _, f := range l.Findings {
			if f.Kind != schema.Surplus && f.Kind != schema.TornTail {
				t.Errorf("a zombie has left %v", f)
			}
		}
	}
}

// Without the check the same writer acknowledges lines that are nowhere, and
// the comparison above must see it.
func TestTheZombieTestNoticesAMissingCheck(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		old, l := zombie(t, true, !logged)
		if gone := l.Missing(old.Acknowledged()); len(gone) < 2 {
			t.Errorf("without the check only %v of what was acknowledged is missing", gone)
		}
		if l.Count(schema.Surplus) != 1 {
			t.Errorf("its lines are no surplus: %v", l.Findings)
		}
	})
}

func TestAWriterWhoseFilesAreTakenAwayHasLost(t *testing.T) {
	try := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, take := range map[string]func(t *testing.T, folder string){
		"folder moved": func(t *testing.T, folder string) {
			try(t, os.Rename(folder, folder+"-moved"))
		},
		"folder moved and another in its place": func(t *testing.T, folder string) {
			try(t, os.Rename(folder, folder+"-moved"))
			try(t, os.CopyFS(folder, os.DirFS(folder+"-moved")))
		},
		"folder moved and a link in its place": func(t *testing.T, folder string) {
			try(t, os.Rename(folder, folder+"-moved"))
			try(t, os.Symlink(folder+"-moved", folder))
		},
		"folder deleted": func(t *testing.T, folder string) {
			try(t, os.RemoveAll(folder))
		},
		"segment deleted": func(t *testing.T, folder string) {
			try(t, os.Remove(filepath.Join(folder, "000001.jsonl")))
		},
		"store moved": func(t *testing.T, folder string) {
			dir := filepath.Dir(filepath.Dir(folder))
			try(t, os.Rename(dir, dir+"-moved"))
			t.Cleanup(func() { os.RemoveAll(dir + "-moved") })
		},
		"store moved and a copy in its place": func(t *testing.T, folder string) {
			dir := filepath.Dir(filepath.Dir(folder))
			try(t, os.Rename(dir, dir+"-moved"))
			t.Cleanup(func() { os.RemoveAll(dir + "-moved") })
			// Of sessions alone: the writer makes its log meanwhile.
			try(t, os.CopyFS(filepath.Join(dir, "sessions"), os.DirFS(filepath.Join(dir+"-moved", "sessions"))))
		},
		"store deleted": func(t *testing.T, folder string) {
			dir := filepath.Dir(filepath.Dir(folder))
			err := os.RemoveAll(dir)
			for ; errors.Is(err, syscall.ENOTEMPTY); err = os.RemoveAll(dir) { // the writer makes its log meanwhile
			}
			try(t, err)
		},
		"another file with the same bytes at its name": func(t *testing.T, folder string) {
			name := filepath.Join(folder, "000001.jsonl")
			b, err := os.ReadFile(name)
			try(t, err)
			try(t, os.WriteFile(name+".new", b, 0o600))
			try(t, os.Rename(name+".new", name))
		},
		"successor's slot taken by a folder": func(t *testing.T, folder string) {
			try(t, os.Mkdir(filepath.Join(folder, "000002.jsonl"), 0o700))
		},
		"successor's slot taken by a dangling link": func(t *testing.T, folder string) {
			try(t, os.Symlink("nowhere", filepath.Join(folder, "000002.jsonl")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, noCheck := range []bool{false, true} {
				store := journaltest.Files(t)
				session := map[bool]string{false: "checks", true: "does-not"}[noCheck]
				p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: session, Step: true, NoCheck: noCheck})
				p.Step(1)
				p.WaitFor("ack", 1)
				take(t, filepath.Join(store.Dir(), "sessions", session))
				p.Step(1)
				if noCheck { // the check, and nothing else, is what notices
					p.WaitFor("ack", 2)
					continue
				}
				if err := p.Err(); !errors.Is(err, schema.SessionWriterLost) || schema.AsError(err).Details["outcome"] != "unknown" {
					t.Errorf("the writer ended in %v, %v", err, schema.AsError(err).Details)
				}
				if n := len(p.Acknowledged()); n != 2 {
					t.Errorf("it was told of %d appends, its seal too", n)
				}
			}
		})
	}
}

// A folder is moved and its session goes on there. A check that looks by path
// sees a free slot where the folder was, and acknowledges what is nowhere.
func TestAMovedFolderIsNoticedAndNotByPath(t *testing.T) {
	for _, byPath := range []bool{false, true} {
		here, faults := journaltest.Faulty(journaltest.Files(t))
		there := journaltest.Files(t)
		folder := filepath.Join(here.Dir(), "sessions", "s1")
		if byPath {
			faults.ReplaceCheck(func() error {
				if _, err := os.Lstat(filepath.Join(folder, "000002.jsonl")); err == nil {
					return schema.Errorf(schema.SessionWriterLost, "there is a successor")
				}
				return nil
			})
		}
		old, err := journal.Open(ctx, here, "s1", journaltest.Options())
		must(t, err)
		defer old.Close()
		must(t, os.Rename(folder, filepath.Join(there.Dir(), "sessions", "s1")))
		journaltest.Append(t, journaltest.Force(t, there, "s1"), journaltest.Note("mine"))
		_, err = old.Append(ctx, journaltest.Note("where?"))
		if lost := errors.Is(err, schema.SessionWriterLost); lost == byPath {
			t.Errorf("by path %t: the superseded writer got %v", byPath, err)
		}
		gone := journaltest.Verify(t, there, "s1").Missing([]schema.Head{old.Head()})
		if acknowledged := err == nil; acknowledged != (len(gone) > 0) {
			t.Errorf("by path %t: missing are %v", byPath, gone)
		}
	}
}

func TestAKilledWriterIsStaleAtOnce(t *testing.T) {
	store := journaltest.Files(t)
	p := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s1"})
	p.WaitFor("ack", 1)
	st, err := store.Lease(ctx, "s1")
	if err != nil || st.State != lease.Active || st.Holder == nil || st.Holder.PID != p.PID() {
		t.Errorf("the lease is %+v, %v; process %d writes", st, err, p.PID())
	}
	p.Kill()
	if st, err := store.Lease(ctx, "s1"); err != nil || st.State != lease.Stale || st.Kind != schema.SessionWriterStale {
		t.Errorf("the lease is %+v, %v; its holder is dead", st, err)
	}
}

// A program that a tool has started must not keep its executor's locks.
func TestAChildDoesNotInheritTheLock(t *testing.T) {
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if err != nil {
		t.Fatal(err)
	}
	other := journaltest.StartWriter(t, journaltest.Writer{Dir: store.Dir(), Session: "s2", Step: true})
	other.WaitFor("open", 1) // it is running
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err := store.Lease(ctx, "s1"); err != nil || st.State != lease.Stale {
		t.Errorf("the lease is %+v, %v; its holder has closed it", st, err)
	}
	if err := syscall.Kill(other.PID(), 0); err != nil {
		t.Errorf("the child was gone too early: %v", err)
	}
}
