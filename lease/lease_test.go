package lease_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"steno/lease"
	"steno/schema"
)

// folder is a session's folder and the one it is in.
func folder(t *testing.T, faults *lease.Faults) (d *lease.Dir, path string) {
	t.Helper()
	parent, err := os.OpenRoot(t.TempDir())
	must(t, err)
	t.Cleanup(func() { parent.Close() })
	must(t, parent.Mkdir("s1", 0o700))
	d, err = lease.Open(parent, "s1", faults)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d, filepath.Join(parent.Name(), "s1")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, err error, kind schema.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %s", err, kind)
	}
}

func header(t *testing.T, epoch uint64) ([]byte, schema.Holder) {
	t.Helper()
	c := schema.Claim{Session: "s1", Epoch: epoch, Time: time.Now(), Holder: lease.Self("lease.test")}
	b, err := c.Append(nil)
	must(t, err)
	return b, c.Holder
}

func claim(t *testing.T, d *lease.Dir, epoch uint64) *lease.Slot {
	t.Helper()
	b, _ := header(t, epoch)
	s, err := d.Claim(epoch, b)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// event is a line of the type, as a writer of this epoch would write it.
func event(session string, epoch uint64, typ string) []byte {
	e := schema.Event{Session: session, Seq: 9, Epoch: epoch, Time: time.Now(), Type: typ, Data: []byte(`{"reason":"done"}`), Dur: 8}
	return e.Append(nil)
}

func TestTheStateFollowsFromTheNewestSegment(t *testing.T) {
	released := func(epoch uint64) []byte { return event("s1", epoch, schema.TypeWriterReleased) }
	note := event("s1", 1, schema.TypeNote)
	for _, c := range []struct {
		name   string
		behind [][]byte // what stands behind the claim
		held   bool
		state  lease.State
		kind   schema.Kind
	}{
		{"a claim that is held", nil, true, lease.Ambiguous, schema.SessionWriterAmbiguous},
		{"a claim that nobody holds", nil, false, lease.Stale, schema.SessionWriterStale},
		{"events, held", [][]byte{note}, true, lease.Active, schema.SessionWriterActive},
		{"events, not held", [][]byte{note}, false, lease.Stale, schema.SessionWriterStale},
		{"released", [][]byte{note, released(1)}, false, lease.Available, ""},
		{"released and still held", [][]byte{note, released(1)}, true, lease.Active, schema.SessionWriterActive},
		{"released behind a long line", [][]byte{bytes.Repeat([]byte("x"), 1<<20), []byte("\n"), released(1)}, false, lease.Available, ""},
		{"a note that speaks of a release", [][]byte{[]byte(`{"type":"writer_released"}` + "\n")}, false, lease.Stale, schema.SessionWriterStale},
		{"released in another epoch", [][]byte{released(2)}, false, lease.Stale, schema.SessionWriterStale},
		{"released in another session", [][]byte{event("s2", 1, schema.TypeWriterReleased)}, false, lease.Stale, schema.SessionWriterStale},
		{"released and something behind it", [][]byte{released(1), []byte("{")}, false, lease.Stale, schema.SessionWriterStale},
		{"a release that is torn", [][]byte{bytes.TrimSuffix(released(1), []byte("\n"))}, false, lease.Stale, schema.SessionWriterStale},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, _ := folder(t, nil)
			b, holder := header(t, 1)
			slot, err := d.Claim(1, b)
			must(t, err)
			defer slot.Close()
			for _, b := range c.behind {
				must(t, slot.Append(b, false))
			}
			if !c.held {
				must(t, slot.Close())
			}
			st, err := d.Status(nil)
			must(t, err)
			if st.State != c.state || st.Kind != c.kind || st.Epoch != 1 {
				t.Errorf("got %+v, want %s (%s)", st, c.state, c.kind)
			}
			if st.Holder == nil || *st.Holder != holder {
				t.Errorf("the holder is %+v, want %+v", st.Holder, holder)
			}
			if held, err := d.Held(1); err != nil || held != c.held {
				t.Errorf("held: %t, %v", held, err)
			}
		})
	}
}

func TestAnEmptyFolderIsAvailable(t *testing.T) {
	d, _ := folder(t, nil)
	if st, err := d.Status(nil); err != nil || st != (lease.Status{State: lease.Available}) {
		t.Errorf("got %+v, %v", st, err)
	}
	_, err := d.Held(1)
	want(t, err, schema.NotFound)
}

func TestAClaimThatCannotBeReadIsAmbiguous(t *testing.T) {
	newer, _ := header(t, 1)
	other, _ := header(t, 2)
	kinds := map[string]schema.Kind{"of a newer version": schema.UnsupportedSchemaVersion}
	for name, b := range map[string][]byte{
		"empty":                {},
		"garbage":              []byte("garbage\n"),
		"no newline":           bytes.TrimSuffix(newer, []byte("\n")),
		"of another epoch":     other,
		"of a newer version":   bytes.Replace(newer, []byte(`"v":1`), []byte(`"v":2`), 1),
		"longer than any line": bytes.Repeat([]byte("x"), schema.MaxLine+1),
	} {
		d, path := folder(t, nil)
		must(t, os.WriteFile(filepath.Join(path, "000001.jsonl"), b, 0o600))
		if kinds[name] == "" {
			kinds[name] = schema.SessionWriterAmbiguous
		}
		st, err := d.Status(nil)
		if err != nil || st.State != lease.Ambiguous || st.Kind != kinds[name] || st.Undecided || st.Holder != nil || st.Epoch != 1 {
			t.Errorf("%s: got %+v, %v", name, st, err)
		}
	}
}

func TestARefusalSaysWhoHoldsTheSession(t *testing.T) {
	holder := schema.Holder{ID: "01J", Host: "h", PID: 7, Program: "p"}
	for state, kind := range map[lease.State]schema.Kind{
		lease.Active: schema.SessionWriterActive, lease.Ambiguous: schema.SessionWriterAmbiguous,
	} {
		err := lease.Status{State: state, Evidence: lease.Evidence{Epoch: 3, Holder: &holder}}.Err("s1")
		want(t, err, kind)
		d := schema.AsError(err).Details
		if d["session"] != "s1" || d["epoch"] != uint64(3) || d["holder"] != "01J" || d["host"] != "h" || d["pid"] != 7 || d["program"] != "p" {
			t.Errorf("%s: the details are %v", state, d)
		}
	}
	for _, state := range []lease.State{lease.Available, lease.Stale} {
		if err := (lease.Status{State: state}).Err("s1"); err != nil {
			t.Errorf("%s refuses: %v", state, err)
		}
	}
}

func TestAProbeMakesAndChangesNothing(t *testing.T) {
	d, path := folder(t, nil)
	slot := claim(t, d, 1)
	name := filepath.Join(path, "000001.jsonl")
	before, err := os.Stat(name)
	must(t, err)
	for range 3 {
		if held, err := d.Held(1); err != nil || !held {
			t.Errorf("held: %t, %v", held, err)
		}
		_, err := d.Held(2)
		want(t, err, schema.NotFound)
	}
	after, err := os.Stat(name)
	must(t, err)
	if !before.ModTime().Equal(after.ModTime()) || before.Size() != after.Size() || before.Mode() != after.Mode() {
		t.Errorf("the segment was %v and is %v", before, after)
	}
	if names := list(t, path); !slices.Equal(names, []string{"000001.jsonl"}) {
		t.Errorf("the folder holds %v", names)
	}
	must(t, slot.Append([]byte("the writer has not noticed\n"), false))
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSegmentsAreListedByNumber(t *testing.T) {
	d, path := folder(t, nil)
	for _, name := range []string{"000010.jsonl", "000002.jsonl", "1000000.jsonl", "999999.jsonl", "0000003.jsonl", "000000.jsonl", "+00001.jsonl", "x.jsonl"} {
		must(t, os.WriteFile(filepath.Join(path, name), []byte(name), 0o600))
	}
	got, err := d.Segments()
	must(t, err)
	want := []lease.Segment{{Epoch: 2, Size: 12}, {Epoch: 10, Size: 12}, {Epoch: 999999, Size: 12}, {Epoch: 1000000, Size: 13}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAFolderThatIsNoneOfOursIsNotOpened(t *testing.T) {
	parent, err := os.OpenRoot(t.TempDir())
	must(t, err)
	defer parent.Close()
	open := func(name string) error {
		d, err := lease.Open(parent, name, nil)
		if err == nil {
			d.Close()
		}
		return err
	}
	want(t, open("missing"), schema.NotFound)
	must(t, parent.WriteFile("file", nil, 0o600))
	want(t, open("file"), schema.UnsafeStatePath)
	must(t, parent.Mkdir("mine", 0o700))
	must(t, parent.Symlink("mine", "link"))
	want(t, open("link"), schema.UnsafeStatePath)
	must(t, parent.Symlink("/", "away"))
	want(t, open("away"), schema.UnsafeStatePath)
	must(t, parent.Chmod("mine", 0o770))
	want(t, open("mine"), schema.UnsafeStatePath)
}

func TestAHolderIsNewForEveryCall(t *testing.T) {
	a, b := lease.Self("p"), lease.Self("p")
	if a.ID == b.ID || len(a.ID) != 26 {
		t.Errorf("the ids are %s and %s", a.ID, b.ID)
	}
	a.ID = b.ID
	if a != b || a.PID != os.Getpid() || a.Program != "p" {
		t.Errorf("one process is %+v and %+v", a, b)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil && (a.BootID == "" || strings.Trim(a.PIDStarted, "0123456789") != "" || a.PIDStarted == "") {
		t.Errorf("with /proc a holder is %+v", a)
	}
}
