package lease_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofrs/flock"
	"github.com/oklog/ulid/v2"

	"steno/lease"
)

// What cannot be read at the end of a living holder's log is being written: it
// is there at the next look, and what stands behind it counts then. In a dead
// one's it is what a power cut has left, and what stands behind it counts at once.
func TestALogThatIsBeingWrittenIsReadInOrder(t *testing.T) {
	t.Parallel()
	d, path := folder(t, nil)
	const lines = "a\nb\nc\n"
	segment := filepath.Join(path, "000001.jsonl")
	must(t, os.WriteFile(segment, []byte(lines[:2]), 0o600))
	root := filepath.Dir(path)
	id := ulid.Make().String()
	log := filepath.Join(mkdirAll(filepath.Join(root, "holders", "h1")), "log-"+id)
	file, first, second := []byte{}, 0, 0
	for i := 0; i < len(lines); i += 2 {
		first, second = second, len(file)
		file = lease.AppendRecord(file, id, int64(len(file)), filepath.Base(path), 1, int64(i), []byte(lines[i:i+2]))
	}
	torn := append(append(append([]byte{}, file[:first]...), make([]byte, second-first)...), file[second:]...)
	write := func(b []byte) { // in place
		f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		_, err = f.WriteAt(b, 0)
		must(t, err)
		must(t, f.Close())
	}
	write(torn)
	alive := flock.New(log)
	if ok, err := alive.TryLock(); !ok || err != nil {
		t.Fatalf("%t, %v", ok, err)
	}
	store, err := os.OpenRoot(root)
	must(t, err)
	defer store.Close()
	tail := func(h *lease.Holders) string {
		t.Helper()
		got, err := d.Tail(h, "h1", 1, -1)
		must(t, err)
		if got == nil {
			return ""
		}
		return strings.Repeat("-", int(got.From)) + string(got.Data)
	}
	holders := lease.NewHolders(store)
	if got := tail(holders); got != "" {
		t.Errorf("before the second record is written there is %q", got)
	}
	write(file)
	if got := tail(holders); got != "--b\nc\n" {
		t.Errorf("behind it there is %q", got)
	}
	write(torn)
	must(t, alive.Close())
	must(t, os.WriteFile(segment, []byte(lines[:4]), 0o600))
	if got := tail(lease.NewHolders(store)); got != "----c\n" {
		t.Errorf("behind what a power cut has left there is %q", got)
	}
}

// A file of a log has its name before its lock. Who looks in between, and finds
// neither a lock nor a record, has to look again.
func TestALogThatIsBeingMadeIsReadAgain(t *testing.T) {
	t.Parallel()
	d, path := folder(t, nil)
	must(t, os.WriteFile(filepath.Join(path, "000001.jsonl"), []byte("a\n"), 0o600))
	root := filepath.Dir(path)
	id := ulid.Make().String()
	log := filepath.Join(mkdirAll(filepath.Join(root, "holders", "h1")), "log-"+id)
	must(t, os.WriteFile(log, make([]byte, 4096), 0o600))
	store, err := os.OpenRoot(root)
	must(t, err)
	defer store.Close()
	holders := lease.NewHolders(store)
	if got, err := d.Tail(holders, "h1", 1, -1); got != nil || err != nil {
		t.Errorf("of zeros there is %+v, %v", got, err)
	}
	alive := flock.New(log)
	if ok, err := alive.TryLock(); !ok || err != nil {
		t.Fatalf("%t, %v", ok, err)
	}
	defer alive.Close()
	f, err := os.OpenFile(log, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(lease.AppendRecord(nil, id, 0, filepath.Base(path), 1, 2, []byte("b\n")), 0)
	must(t, err)
	must(t, f.Close())
	got, err := d.Tail(holders, "h1", 1, -1)
	must(t, err)
	if got == nil || got.From != 2 || string(got.Data) != "b\n" {
		t.Errorf("once it is written there is %+v", got)
	}
}
