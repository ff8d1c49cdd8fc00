package lease_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"steno/lease"
	"steno/schema"
)

func TestNextClaimsTheSlotBehindAFailure(t *testing.T) {
	disk := errors.New("the disk says no")
	fail := false
	d, path := folder(t, &lease.Faults{Write: func(f *os.File, b []byte) (int, error) {
		if fail {
			return 0, disk
		}
		return f.Write(b)
	}})
	s := claim(t, d, 1)
	must(t, s.Append([]byte("seal\n"), false))
	fail = true
	want(t, s.Append([]byte("x\n"), false), schema.LogWriteFailed)
	_, _, err := s.Next([]byte("claim\n"), 100)
	want(t, err, schema.LogWriteFailed)
	if list, err := d.Segments(); err != nil || len(list) != 1 {
		t.Errorf("a claim that failed has left %v, %v", list, err)
	}
	fail = false
	next, folder, err := s.Next([]byte("claim\n"), 100)
	must(t, err)
	defer folder.Close()
	defer next.Close()
	must(t, next.Append([]byte("seal\n"), false))
	b, err := os.ReadFile(filepath.Join(path, "000002.jsonl"))
	must(t, err)
	if string(b) != "claim\nseal\n" {
		t.Errorf("the room that was set aside shows: %q", b)
	}
	if held, err := d.Held(1); err != nil || !held {
		t.Errorf("the lock before is held: %t, %v", held, err)
	}
	_, _, err = s.Next([]byte("claim\n"), 0)
	want(t, err, schema.AlreadyExists)
	want(t, s.Append([]byte("y\n"), false), schema.LogWriteFailed) // it stays finished
	must(t, s.Close())
	must(t, d.Close())
	must(t, next.Append([]byte("on its own\n"), false))
}

func TestNextGoesWhereTheFolderIsOrNowhere(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"folder moved":    func(p string) error { return os.Rename(p, p+"-moved") },
		"folder replaced": func(p string) error { return errors.Join(os.Rename(p, p+"-moved"), os.Mkdir(p, 0o700)) },
		"segment removed": func(p string) error { return os.Remove(filepath.Join(p, "000001.jsonl")) },
		"store moved":     func(p string) error { return os.Rename(filepath.Dir(p), filepath.Dir(p)+"-moved") },
	} {
		d, path := folder(t, nil)
		s := claim(t, d, 1)
		must(t, s.Append([]byte("seal\n"), false))
		must(t, change(path))
		_, _, err := s.Next([]byte("claim\n"), 0)
		if !errors.Is(err, schema.SessionWriterLost) {
			t.Errorf("%s: got %v", name, err)
		}
		if list, err := d.Segments(); err != nil || len(list) > 1 {
			t.Errorf("%s: there are %v, %v", name, list, err)
		}
		d, path = folder(t, nil)
		s = claim(t, d, 1)
		must(t, s.Append([]byte("seal\n"), false))
		lease.LetGo(s)
		must(t, change(path))
		if _, _, err := s.Next([]byte("claim\n"), 0); !errors.Is(err, schema.SessionWriterLost) {
			t.Errorf("%s, which does not stay open: got %v", name, err)
		}
	}
}

// The Sweep of a former holder may take a claim away in the instant before it
// is locked. Nobody else has the slot, and the roll goes on.
func TestARollWhoseClaimIsSweptAwayTriesAgain(t *testing.T) {
	var path string
	swept := 3
	d, path := folder(t, &lease.Faults{Write: func(f *os.File, b []byte) (int, error) {
		names, err := filepath.Glob(filepath.Join(path, ".claim-*"))
		must(t, err)
		for _, n := range names {
			if swept++; swept <= 3 {
				must(t, os.Remove(n))
			}
		}
		return f.Write(b)
	}})
	s := claim(t, d, 1)
	must(t, s.Append([]byte("seal\n"), false))
	swept = 0
	next, folder, err := s.Next([]byte("claim\n"), 0)
	must(t, err)
	defer folder.Close()
	defer next.Close()
	must(t, next.Append([]byte("seal\n"), false))
	if swept != 4 {
		t.Errorf("it was tried %d times", swept)
	}
}

func TestAFullDiskIsKnownByItsErrors(t *testing.T) {
	for err, want := range map[error]bool{syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EIO: false, nil: false} {
		if got := lease.IsFull(schema.Errorf(schema.LogWriteFailed, "no").Cause(err)); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}
