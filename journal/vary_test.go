package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// variations are what may become of one line, and what a reader calls it where
// the line was durable. Those that change no length may be done to a segment
// whose length a later seal has.
var variations = []struct {
	name   string
	edit   func(line []byte) []byte // the line with its newline
	reason schema.Reason
	length bool // it changes the length
}{
	{"another sum", func(l []byte) []byte {
		if last := &l[len(l)-4]; *last == '0' {
			*last = '1'
		} else {
			*last = '0'
		}
		return l
	}, schema.SumMismatch, false},
	{"zeros", func(l []byte) []byte { clear(l[:len(l)-1]); return l }, schema.NULBytes, false},
	{"zeros in its middle", func(l []byte) []byte { clear(l[30:50]); return l }, schema.NULBytes, false},
	{"broken text", func(l []byte) []byte { l[bytes.Index(l, []byte(`"ts":"`))+7] = 0xFF; return l }, schema.InvalidUTF8, false},
	{"broken JSON", func(l []byte) []byte { l[5] = ';'; return l }, schema.InvalidJSON, false},
	{"its end is lost", func(l []byte) []byte { return append(l[:100], '\n') }, schema.InvalidJSON, true},
	{"a text", func([]byte) []byte { return []byte("\"text\"\n") }, schema.NotAnObject, true},
	{"a number", func([]byte) []byte { return []byte("17\n") }, schema.NotAnObject, true},
	{"another object", func([]byte) []byte { return []byte("{\"v\":1}\n") }, schema.BadEnvelope, true},
	{"white space", func(l []byte) []byte { return bytes.Replace(l, []byte(`,"id"`), []byte(`, "id"`), 1) }, schema.BadEnvelope, true},
	{"a key in capitals", func(l []byte) []byte { return bytes.Replace(l, []byte(`,"id"`), []byte(`,"ID"`), 1) }, schema.BadEnvelope, false},
	{"a carriage return", func(l []byte) []byte { return append(l[:len(l)-1], '\r', '\n') }, schema.BadEnvelope, true},
	{"a key twice", func(l []byte) []byte { return bytes.Replace(l, []byte(`,"id"`), []byte(`,"v":1,"id"`), 1) }, schema.DuplicateKey, true},
	{"its own beginning before it", func(l []byte) []byte { return append(slices.Clone(l[:100]), l...) }, schema.GluedLines, true},
	{"1 MB of letters", func([]byte) []byte { return append(bytes.Repeat([]byte("x"), 1<<20), '\n') }, schema.OverLimit, true},
}

// The cases have each damage at one line. It is the same at every other.
func TestS6EveryDamageIsTheSameAtEveryLine(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, c := range journaltest.AllCases(t) {
		list, err := filepath.Glob(filepath.Join(c.Dir, "healthy", "*.jsonl"))
		must(t, err)
		if c.Session == "" {
			continue
		}
		base := segments{}
		for _, name := range list {
			var epoch uint64
			_, err := fmt.Sscanf(filepath.Base(name), "%d.jsonl", &epoch)
			must(t, err)
			base[epoch], err = os.ReadFile(name)
			must(t, err)
		}
		for epoch := range base {
			for n := range base.lines(epoch) {
				tried += vary(t, c, base, epoch, n)
			}
		}
	}
	if tried < 2000 {
		t.Errorf("only %d damages were tried", tried)
	}
}

// vary damages line n (from 0) of a segment in every way.
func vary(t *testing.T, c *journaltest.Case, base segments, epoch uint64, n int) (tried int) {
	t.Helper()
	open := len(base[epoch+1]) == 0
	var durable uint64
	var was schema.Event
	for i, line := range base.lines(epoch) {
		var e schema.Event
		if i > 0 {
			must(t, e.Decode(bytes.TrimSuffix(line, newline)))
		}
		if i == n {
			was = e
		} else {
			durable = max(durable, e.Dur)
		}
	}
	// Claims and seals say more than themselves: see damages.
	if n == 0 || was.Type == schema.TypeWriterOpened {
		return 0
	}
	whole := readCase(t, c, base)
	for _, v := range variations {
		if v.length && !open {
			continue
		}
		s := base.clone()
		s.set(epoch, n+1, v.edit(slices.Clone(base.lines(epoch)[n])))
		l := readCase(t, c, s)
		tried++
		kind, given := schema.CorruptLogLine, true // those behind it
		if open && was.Seq > durable {
			if kind = schema.TailSuspect; v.reason == schema.NULBytes {
				kind, given = schema.TornTail, false
			}
		}
		at := fmt.Sprintf("%s, segment %d line %d: %s", c.Name, epoch, n+1, v.name)
		if !slices.ContainsFunc(l.Findings, func(f schema.Finding) bool {
			return f.Segment == epoch && f.Line == n+1 && f.Kind == kind && (f.Reason == v.reason || kind == schema.TornTail)
		}) {
			t.Errorf("%s: found are %+v, want %s/%s", at, l.Findings, kind, v.reason)
		}
		for _, f := range l.Findings {
			if f.Severity == schema.SeverityError && (f.Segment != epoch || f.Line != n+1) && f.Reason != schema.BadEvent {
				t.Errorf("%s: found is %+v", at, f)
			}
		}
		for _, e := range l.Events {
			if e.Seq == was.Seq {
				t.Errorf("%s: it is given", at)
			}
		}
		if given && len(l.Events) != len(whole.Events)-1 {
			t.Errorf("%s: %d of %d events are given", at, len(l.Events), len(whole.Events))
		}
	}
	return tried
}

// readCase reads the segments of a session of a case.
func readCase(t *testing.T, c *journaltest.Case, s segments) *journaltest.Log {
	t.Helper()
	store := journaltest.NewMemory()
	for epoch, b := range s {
		store.Put(c.Session, epoch, b)
	}
	l, err := journaltest.Read(store, c.Session, journal.ScanOptions{})
	must(t, err)
	return l
}
