package lease_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/lease"
	"steno/schema"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// aside gives what was set aside in a folder, and the names of all else.
func aside(t *testing.T, dir string) (damaged, other []string) {
	t.Helper()
	for _, name := range list(t, dir) {
		if !strings.HasPrefix(name, ".damaged-") {
			other = append(other, name)
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		damaged = append(damaged, string(b))
	}
	return damaged, other
}

// Whoever sweeps, and whenever: a damaged blob that is replaced stays.
func TestADamagedBlobHasNoNameThatIsSwept(t *testing.T) {
	var blobs string
	var other *lease.Slot
	steps := 0
	d, path := folder(t, &lease.Faults{Sync: func(f *os.File) error {
		if steps++; other == nil {
			return nil
		}
		if _, names := aside(t, blobs); !slices.Equal(names, []string{"b"}) {
			t.Errorf("at step %d there are %v, which a Sweep may take", steps, names)
		}
		other.Sweep()
		return nil
	}})
	s := claim(t, d, 1)
	blobs = filepath.Join(path, "blobs")
	must(t, s.WriteBlob("b", false, text("damaged")))
	other = s // which sweeps as any other does
	steps = 0
	must(t, s.WriteBlob("b", true, text("sound")))
	if steps < 2 {
		t.Errorf("there were %d steps", steps)
	}
	s.Sweep()
	b, err := os.ReadFile(filepath.Join(blobs, "b"))
	if old, names := aside(t, blobs); err != nil || string(b) != "sound" || !slices.Equal(old, []string{"damaged"}) || len(names) != 1 {
		t.Errorf("the blob is %q, %v; set aside are %q", b, err, old)
	}
}

func TestADamagedBlobStaysWhereNothingCanBeExchanged(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	none := func(*os.Root, string, string) error { return errors.ErrUnsupported }
	write(filepath.Join(dir, "b"), []byte("damaged"))
	if err := lease.SetAside(root, ".damaged-missing", "b", none); err == nil {
		t.Error("a file that is not there has got the name")
	}
	if old, names := aside(t, dir); len(old) != 0 || !slices.Equal(names, []string{"b"}) {
		t.Errorf("what failed has left %v, %v", old, names)
	}
	for _, name := range []string{"b", "new"} { // nothing has to be there
		write(filepath.Join(dir, ".damaged-x"), []byte("sound"))
		must(t, lease.SetAside(root, ".damaged-x", name, none))
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "sound" {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	if old, names := aside(t, dir); !slices.Equal(old, []string{"damaged"}) || len(names) != 2 {
		t.Errorf("set aside are %v, beside %v", old, names)
	}
}

// A name whose sync failed is given anew, also in the next epoch.
func TestANameWhoseSyncFailedIsDoubtfulBehindARoll(t *testing.T) {
	fail := false
	d, path := folder(t, &lease.Faults{Sync: func(f *os.File) error {
		if fail && filepath.Base(filepath.Clean(f.Name())) == "blobs" {
			return errors.New("the disk says no")
		}
		return nil
	}})
	s := claim(t, d, 1)
	must(t, s.WriteBlob("sure", false, text("x")))
	fail = true
	want(t, s.WriteBlob("doubtful", false, text("x")), schema.LogWriteFailed)
	fail = false
	if _, err := os.Stat(filepath.Join(path, "blobs", "doubtful")); err != nil {
		t.Fatal(err)
	}
	next, folder, err := s.Next([]byte("claim\n"), 0)
	must(t, err)
	defer folder.Close()
	defer next.Close()
	read := func(f *os.File, _ io.Writer) error { return f.Close() }
	must(t, next.SettleBlob("sure", read))
	want(t, next.SettleBlob("doubtful", read), schema.NotFound)
	must(t, next.WriteBlob("doubtful", false, text("x")))
	must(t, next.SettleBlob("doubtful", read))
}

// What is to be read is on the disk: synced, then dropped from the page cache.
func TestWhatIsSettledIsSyncedAndDropped(t *testing.T) {
	var did []string
	step := func(what string) func(f *os.File) error {
		return func(f *os.File) error {
			did = append(did, what+" "+filepath.Base(f.Name()))
			return nil
		}
	}
	d, _ := folder(t, &lease.Faults{Sync: step("sync"), Drop: step("drop")})
	s := claim(t, d, 1)
	must(t, s.WriteBlob("b", false, text("x")))
	did = nil
	_, err := s.Settle(1)
	must(t, err)
	if !slices.Equal(did, []string{"sync 000001.jsonl", "drop 000001.jsonl"}) {
		t.Errorf("a segment is settled by %q", did)
	}
	did = nil
	must(t, s.SettleBlob("b", func(f *os.File, _ io.Writer) error { did = append(did, "read"); return f.Close() }))
	if len(did) != 4 || did[0] != "sync b" || did[1] != "drop b" || did[3] != "read" {
		t.Errorf("a blob is settled by %q", did)
	}
}
