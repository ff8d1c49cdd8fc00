package lease_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gofrs/flock"

	"steno/lease"
	"steno/schema"
)

func TestAClaimIsCompleteLockedAndAlone(t *testing.T) {
	d, path := folder(t, nil)
	b, _ := header(t, 1)
	s, err := d.Claim(1, b)
	must(t, err)
	defer s.Close()
	name := filepath.Join(path, "000001.jsonl")
	got, err := os.ReadFile(name)
	must(t, err)
	fi, err := os.Stat(name)
	must(t, err)
	if string(got) != string(b) || fi.Mode() != 0o600 {
		t.Errorf("the claim is %q, mode %v", got, fi.Mode())
	}
	if held, err := d.Held(1); err != nil || !held {
		t.Errorf("held: %t, %v", held, err)
	}
	if names := list(t, path); !slices.Equal(names, []string{"000001.jsonl"}) {
		t.Errorf("the folder holds %v", names)
	}
	must(t, s.Close())
	if held, err := d.Held(1); err != nil || held {
		t.Errorf("held after close: %t, %v", held, err)
	}
}

func TestAClaimThatFailsLeavesNothing(t *testing.T) {
	disk := errors.New("the disk says no")
	for name, c := range map[string]struct {
		faults lease.Faults
		kind   schema.Kind
	}{
		"write":       {lease.Faults{Write: func(*os.File, []byte) (int, error) { return 0, disk }}, schema.LogWriteFailed},
		"short write": {lease.Faults{Write: func(f *os.File, b []byte) (int, error) { return f.Write(b[:9]) }}, schema.LogWriteFailed},
		"sync":        {lease.Faults{Sync: func(*os.File) error { return disk }}, schema.SyncFailed},
	} {
		d, path := folder(t, &c.faults)
		b, _ := header(t, 1)
		_, err := d.Claim(1, b)
		want(t, err, c.kind)
		if names := list(t, path); len(names) > 0 {
			t.Errorf("%s: left over: %v", name, names)
		}
	}
	for name, take := range map[string]func(slot string) error{
		"file":          func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"folder":        func(p string) error { return os.Mkdir(p, 0o700) },
		"dangling link": func(p string) error { return os.Symlink("nowhere", p) },
	} {
		d, path := folder(t, nil)
		must(t, take(filepath.Join(path, "000001.jsonl")))
		b, _ := header(t, 1)
		_, err := d.Claim(1, b)
		want(t, err, schema.AlreadyExists)
		if names := list(t, path); len(names) != 1 {
			t.Errorf("slot taken by a %s: the folder holds %v", name, names)
		}
	}
}

// Between its creation and its lock a claim looks like one that a dead process
// has left. Whoever swept it away has the session.
func TestAClaimThatIsSweptAwayHasLostTheRace(t *testing.T) {
	var path string
	faults := &lease.Faults{Write: func(f *os.File, b []byte) (int, error) {
		names, err := filepath.Glob(filepath.Join(path, ".claim-*"))
		if err != nil || len(names) != 1 {
			t.Errorf("the claim is %v, %v", names, err)
		}
		for _, n := range names {
			must(t, os.Remove(n))
		}
		return f.Write(b)
	}}
	d, path := folder(t, faults)
	b, _ := header(t, 1)
	_, err := d.Claim(1, b)
	want(t, err, schema.AlreadyExists)
}

func TestSweepRemovesOnlyDeadClaims(t *testing.T) {
	d, path := folder(t, nil)
	s := claim(t, d, 1)
	put := func(name string) string {
		p := filepath.Join(path, name)
		must(t, os.WriteFile(p, []byte("x"), 0o600))
		return p
	}
	put(".claim-dead")
	put(".claim-")
	live := flock.New(put(".claim-live"))
	if ok, err := live.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer live.Close()
	put("claim-x")
	put(".claims")
	put("000002.jsonl.claim-x")
	must(t, os.Mkdir(filepath.Join(path, ".claim-folder"), 0o700))
	must(t, syscall.Mkfifo(filepath.Join(path, ".claim-fifo"), 0o600))
	must(t, os.Symlink("claim-x", filepath.Join(path, ".claim-link")))
	s.Sweep()
	left := []string{".claim-fifo", ".claim-folder", ".claim-link", ".claim-live", ".claims", "000001.jsonl", "000002.jsonl.claim-x", "claim-x"}
	if names := list(t, path); !slices.Equal(names, left) {
		t.Errorf("left are %v, want %v", names, left)
	}
	if ok, err := flock.New(filepath.Join(path, ".claim-live")).TryLock(); ok || err != nil {
		t.Errorf("the living claim has lost its lock: %t, %v", ok, err)
	}
}

func TestTheLockOutlivesGarbageCollection(t *testing.T) {
	d, _ := folder(t, nil)
	s := claim(t, d, 1)
	for range 5 {
		runtime.GC() // would close a handle that nobody refers to, and free its lock
	}
	if held, err := d.Held(1); err != nil || !held {
		t.Errorf("held: %t, %v", held, err)
	}
	runtime.KeepAlive(s)
}

func TestTheCheckNoticesASuccessorAndAMove(t *testing.T) {
	type change func(path string) error
	rename := func(path string) error { return os.Rename(path, path+"-moved") }
	for _, c := range []struct {
		name string
		do   change
		why  string // "" is not lost
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"a claim that has no slot yet", func(p string) error { return os.WriteFile(filepath.Join(p, ".claim-x"), nil, 0o600) }, ""},
		{"a later slot alone", func(p string) error { return os.WriteFile(filepath.Join(p, "000003.jsonl"), nil, 0o600) }, ""},
		{"bytes that are not ours", func(p string) error {
			f, err := os.OpenFile(filepath.Join(p, "000001.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x\n")
			return errors.Join(err, f.Close())
		}, "changed"},
		{"bytes cut off", func(p string) error { return os.Truncate(filepath.Join(p, "000001.jsonl"), 3) }, "changed"},
		{"the next slot taken", func(p string) error { return os.WriteFile(filepath.Join(p, "000002.jsonl"), nil, 0o600) }, "claimed"},
		{"the next slot taken by a folder", func(p string) error { return os.Mkdir(filepath.Join(p, "000002.jsonl"), 0o700) }, "claimed"},
		{"the next slot taken by a dangling link", func(p string) error { return os.Symlink("nowhere", filepath.Join(p, "000002.jsonl")) }, "claimed"},
		{"our segment deleted", func(p string) error { return os.Remove(filepath.Join(p, "000001.jsonl")) }, "segment"},
		{"our segment moved", func(p string) error { return rename(filepath.Join(p, "000001.jsonl")) }, "segment"},
		{"our segment moved and linked", func(p string) error {
			return errors.Join(rename(filepath.Join(p, "000001.jsonl")), os.Symlink("000001.jsonl-moved", filepath.Join(p, "000001.jsonl")))
		}, "segment"},
		{"our segment replaced", func(p string) error {
			return errors.Join(rename(filepath.Join(p, "000001.jsonl")), os.WriteFile(filepath.Join(p, "000001.jsonl"), nil, 0o600))
		}, "segment"},
		{"the folder moved", rename, "folder"},
		{"the folder moved, another in its place", func(p string) error {
			return errors.Join(rename(p), os.CopyFS(p, os.DirFS(p+"-moved")))
		}, "folder"},
		{"the folder moved, a link in its place", func(p string) error {
			return errors.Join(rename(p), os.Symlink(filepath.Base(p)+"-moved", p))
		}, "folder"},
		{"the folder moved and superseded there", func(p string) error {
			return errors.Join(rename(p), os.WriteFile(filepath.Join(p+"-moved", "000002.jsonl"), nil, 0o600))
		}, "claimed"},
		{"the folder deleted", os.RemoveAll, "segment"},
		{"the store moved", func(p string) error { return rename(filepath.Dir(p)) }, "folder"},
		{"the store moved, a copy in its place", func(p string) error {
			p = filepath.Dir(p)
			return errors.Join(rename(p), os.CopyFS(p, os.DirFS(p+"-moved")))
		}, "folder"},
		{"the store deleted", func(p string) error { return os.RemoveAll(filepath.Dir(p)) }, "segment"},
	} {
		check := func(t *testing.T, letGo bool) {
			d, path := folder(t, nil)
			s := claim(t, d, 1)
			must(t, s.Append([]byte("seal\n"), false))
			if letGo && !lease.LetGo(s) {
				t.Fatal("the folder is still open")
			}
			must(t, c.do(path))
			err := s.Check()
			if c.why == "" {
				must(t, err)
				must(t, s.Append([]byte("more\n"), false))
				return
			}
			want(t, err, schema.SessionWriterLost)
			// A folder that is looked for and not found is not looked into.
			if !strings.Contains(err.Error(), c.why) && !(letGo && strings.Contains(err.Error(), "folder")) {
				t.Errorf("got %v, want a word about the %s", err, c.why)
			}
			err = s.Append([]byte("more\n"), false)
			want(t, err, schema.SessionWriterLost)
			if d := schema.AsError(err).Details; d["outcome"] != "unknown" || d["session"] != "s1" || d["epoch"] != uint64(1) {
				t.Errorf("the details are %v", d)
			}
		}
		t.Run(c.name+", of a writer with a commit log", func(t *testing.T) {
			d, path := folder(t, nil)
			s := claim(t, d, 1)
			must(t, s.Append([]byte("seal\n"), false))
			store, err := os.OpenRoot(t.TempDir()) // which stays where it is
			must(t, err)
			holders := lease.NewHolders(store)
			t.Cleanup(holders.Close)
			s.BeatIn(holders.Join(lease.Self("test")), true)
			must(t, s.Append([]byte("first\n"), false))
			must(t, c.do(path))
			err = s.Append([]byte("more\n"), false)
			if c.why == "" {
				must(t, err)
				return
			}
			want(t, err, schema.SessionWriterLost)
			if !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want a word about the %s", err, c.why)
			}
		})
		t.Run(c.name, func(t *testing.T) { check(t, false) })
		t.Run(c.name+", of a folder that does not stay open", func(t *testing.T) { check(t, true) })
	}
}

// Of a session whose folder does not stay open everything else goes as well.
func TestAFolderIsOpenedWhenItIsNeeded(t *testing.T) {
	d, path := folder(t, nil)
	s := claim(t, d, 1)
	must(t, s.Append([]byte("seal\n"), false))
	closed := func() {
		t.Helper()
		if !lease.LetGo(s) {
			t.Error("the folder is still open")
		}
	}
	closed()
	must(t, os.WriteFile(filepath.Join(path, ".claim-dead"), nil, 0o600))
	s.Sweep()
	closed()
	if names := list(t, path); !slices.Equal(names, []string{"000001.jsonl"}) {
		t.Errorf("the folder holds %v", names)
	}
	must(t, s.WriteBlob("b", false, func(w io.Writer) error { _, err := io.WriteString(w, "blob"); return err }))
	closed()
	must(t, s.SettleBlob("b", func(f *os.File, _ io.Writer) error { return f.Close() }))
	closed()
	if size, err := s.Settle(1); err != nil || size == 0 {
		t.Errorf("settled at %d, %v", size, err)
	}
	closed()
	must(t, s.Append([]byte("more\n"), false))
	next, dir, err := s.Next([]byte("claim\n"), 0)
	must(t, err)
	closed()
	want(t, s.Append([]byte("more\n"), false), schema.SessionWriterLost)
	must(t, next.Append([]byte("seal\n"), false))
	must(t, errors.Join(next.Close(), dir.Close(), s.Close(), d.Close()))
	if _, err := d.Segments(); err == nil {
		t.Error("a closed folder is read")
	}
	if names := list(t, path); !slices.Equal(names, []string{"000001.jsonl", "000002.jsonl", "blobs"}) {
		t.Errorf("the folder holds %v", names)
	}
}

// A writer that has lost does not come back, whatever becomes of its files.
func TestALostSlotStaysLost(t *testing.T) {
	d, path := folder(t, nil)
	s := claim(t, d, 1)
	next := filepath.Join(path, "000002.jsonl")
	must(t, os.WriteFile(next, nil, 0o600))
	want(t, s.Append([]byte("x\n"), false), schema.SessionWriterLost)
	must(t, os.Remove(next))
	must(t, s.Check())
	size := func() int64 {
		fi, err := os.Stat(filepath.Join(path, "000001.jsonl"))
		must(t, err)
		return fi.Size()
	}
	before := size()
	want(t, s.Append([]byte("y\n"), false), schema.SessionWriterLost)
	if size() != before {
		t.Error("a lost writer has written again")
	}
}

func TestAFailedAppendEndsTheSlot(t *testing.T) {
	disk := errors.New("the disk says no")
	fail := false
	var faults lease.Faults
	for name, kind := range map[string]schema.Kind{"write": schema.LogWriteFailed, "sync": schema.SyncFailed} {
		calls := 0
		faults = lease.Faults{}
		if name == "write" {
			faults.Write = func(f *os.File, b []byte) (int, error) {
				if calls++; fail {
					return 0, disk
				}
				return f.Write(b)
			}
		} else {
			faults.Sync = func(f *os.File) error {
				if calls++; fail {
					return disk
				}
				return f.Sync()
			}
		}
		fail = false
		d, _ := folder(t, &faults)
		s := claim(t, d, 1)
		must(t, s.Append([]byte("seal\n"), false))
		fail = true
		err := s.Append([]byte("x\n"), false)
		want(t, err, kind)
		if !errors.Is(err, disk) {
			t.Errorf("the cause is lost: %v", err)
		}
		fail = false // the disk is well again; nobody knows what it has
		before := calls
		want(t, s.Append([]byte("y\n"), false), kind)
		if calls != before {
			t.Errorf("%s: it was tried again", name)
		}
	}
}

func TestTheFirstAppendMakesTheNamesDurableBeforeItWrites(t *testing.T) {
	var path string
	var synced []string
	faults := &lease.Faults{Sync: func(f *os.File) error {
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		kind := "segment"
		if fi.IsDir() {
			own, err := os.Stat(path)
			if err != nil {
				return err
			}
			if kind = "parent"; os.SameFile(fi, own) {
				kind = "folder"
			}
		}
		synced = append(synced, kind)
		return f.Sync()
	}}
	d, path := folder(t, faults)
	for epoch := uint64(1); epoch <= 2; epoch++ {
		synced = nil
		s := claim(t, d, epoch)
		must(t, s.Append([]byte("seal\n"), false))
		must(t, s.Append([]byte("more\n"), false))
		if want := []string{"segment", "folder", "parent", "segment", "segment"}; !slices.Equal(synced, want) {
			t.Errorf("epoch %d: synced were %v, want %v", epoch, synced, want)
		}
		must(t, s.Close())
	}
}

func TestSettleGivesTheSizeItHasSynced(t *testing.T) {
	var synced []string
	var fail error
	d, path := folder(t, &lease.Faults{Sync: func(f *os.File) error {
		synced = append(synced, filepath.Base(f.Name()))
		return fail
	}})
	must(t, os.WriteFile(filepath.Join(path, "000001.jsonl"), []byte("12345"), 0o600))
	size, err := d.Settle(1)
	if err != nil || size != 5 || !slices.Equal(synced, []string{"000001.jsonl"}) {
		t.Errorf("settled to %d, %v; synced %v", size, err, synced)
	}
	fail = errors.New("the disk says no")
	_, err = d.Settle(1)
	want(t, err, schema.SyncFailed)
	_, err = d.Settle(2)
	want(t, err, schema.NotFound)
	must(t, os.Symlink("000001.jsonl", filepath.Join(path, "000003.jsonl")))
	_, err = d.Settle(3)
	want(t, err, schema.UnsafeStatePath)
}

func TestAClosedSlotTakesNothing(t *testing.T) {
	d, path := folder(t, nil)
	s := claim(t, d, 1)
	must(t, s.Close())
	want(t, s.Append([]byte("x\n"), false), schema.SessionWriterLost)
	b, err := fs.ReadFile(os.DirFS(path), "000001.jsonl")
	must(t, err)
	if strings.Contains(string(b), "x\n") {
		t.Errorf("the segment holds %q", b)
	}
}
