package journal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// segments are the bytes of one session, by epoch. Tests damage a copy.
type segments map[uint64][]byte

// healthy is a session of three writers: one released it, one died, one died
// and is the newest.
//
//	000001  claim, 1 seal, 2 session_started, 3 message, 4 call c1, 5 start, 6 result, 7 released
//	000002  claim, 8 seal, 9 message, 10 call c2, 11 start
//	000003  claim, 12 seal, 13 result of c2, 14 message, 15 message
//
// So the line of number n is line n+1 of the first segment, n-6 of the second,
// n-10 of the third, and 14 is the highest number known to be durable.
func healthy(t testing.TB) segments {
	t.Helper()
	store := journaltest.NewMemory()
	j := journaltest.Open(t, store, "s1")
	for _, e := range []journal.Entry{
		journaltest.Message("hello"), journaltest.Call("c1", "read", `{"path":"a"}`),
		journaltest.Started("c1", 1), journaltest.Result("c1", 1, `"text"`),
	} {
		journaltest.Append(t, j, e)
	}
	journaltest.Release(t, j)
	j = journaltest.Open(t, store, "s1")
	for _, e := range []journal.Entry{
		journaltest.Message("go on"), journaltest.Call("c2", "list", `{}`), journaltest.Started("c2", 1),
	} {
		journaltest.Append(t, j, e)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = journaltest.Open(t, store, "s1")
	for _, e := range []journal.Entry{
		journaltest.Result("c2", 1, `["a"]`), journaltest.Message("thanks"), journaltest.Message("bye"),
	} {
		journaltest.Append(t, j, e)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return segmentsOf(t, store)
}

func segmentsOf(t testing.TB, store journal.Store) segments {
	t.Helper()
	list, err := store.Segments(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	s := segments{}
	for _, g := range list {
		f, err := store.Read(ctx, "s1", g.Epoch, 0)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		s[g.Epoch] = b.Bytes()
	}
	return s
}

func (s segments) store() *journaltest.Memory {
	m := journaltest.NewMemory()
	for epoch, b := range s {
		m.Put("s1", epoch, b)
	}
	return m
}

func (s segments) clone() segments {
	c := maps.Clone(s)
	for epoch, b := range c {
		c[epoch] = bytes.Clone(b)
	}
	return c
}

// lines splits a segment, newlines included.
func (s segments) lines(epoch uint64) [][]byte {
	all := bytes.SplitAfter(s[epoch], []byte("\n"))
	if len(all[len(all)-1]) == 0 {
		all = all[:len(all)-1]
	}
	return all
}

func (s segments) line(epoch uint64, n int) []byte { return s.lines(epoch)[n-1] }

// set replaces one line, newline included, by any number of bytes.
func (s segments) set(epoch uint64, n int, with ...[]byte) {
	s[epoch] = bytes.Join(slices.Replace(s.lines(epoch), n-1, n, with...), nil)
}

// insert puts bytes before a line.
func (s segments) insert(epoch uint64, n int, b []byte) { s.set(epoch, n, b, s.line(epoch, n)) }

func (s segments) replace(epoch uint64, n int, old, new string) {
	line := s.line(epoch, n)
	changed := bytes.Replace(line, []byte(old), []byte(new), 1)
	if bytes.Equal(line, changed) {
		panic("nothing to replace: " + old)
	}
	s.set(epoch, n, changed)
}

// event decodes a line, lets change alter it, and gives the line of the event
// that it is then, with a sum that checks.
func (s segments) event(epoch uint64, n int, change func(e *schema.Event)) []byte {
	var e schema.Event
	if err := e.Decode(bytes.TrimSuffix(s.line(epoch, n), []byte("\n"))); err != nil {
		panic(err)
	}
	change(&e)
	return e.Append(nil)
}

// A place is what a finding must say of the bytes it is about.
type place struct {
	kind       schema.Kind
	reason     schema.Reason
	segment    uint64
	line       int
	last, next uint64
	offset     int64 // of a place that is no line
	rest       int64 // its end, where it is more than the line; -1 is the end of the segment
}

// finding is what a place amounts to, computed from the damaged bytes without
// the reader's help.
func (p place) finding(s segments) schema.Finding {
	f := schema.Finding{Kind: p.kind, Reason: p.reason, Severity: schema.SeverityNotice, Segment: p.segment, Line: p.line,
		Offset: p.offset, LastGoodSeq: p.last, NextGoodSeq: p.next}
	switch p.kind {
	case schema.CorruptLogLine, schema.TailSuspect, schema.UnsupportedSchemaVersion:
		f.Severity = schema.SeverityError
	case schema.VoidClaim, schema.TakeoverInProgress:
		return f
	}
	var b []byte
	switch {
	case p.rest != 0:
		to := p.rest
		if to < 0 {
			to = int64(len(s[p.segment]))
		}
		b = s[p.segment][p.offset:to]
	case p.line > 0 && len(s[p.segment]) > 0:
		lines := s.lines(p.segment)
		for _, l := range lines[:p.line-1] {
			f.Offset += int64(len(l))
		}
		b = lines[p.line-1]
		if p.kind == schema.TornTail {
			b = s[p.segment][f.Offset:]
		}
	}
	if p.kind != schema.Surplus { // which is not about lines
		b = bytes.TrimSuffix(b, []byte("\n"))
	}
	sum := sha256.Sum256(b)
	f.Bytes, f.SHA256 = int64(len(b)), hex.EncodeToString(sum[:])
	return f
}

// seqs gives the numbers of a log's events.
func seqs(l *journaltest.Log) (out []uint64) {
	for _, e := range l.Events {
		out = append(out, e.Seq)
	}
	return out
}

func TestTheHealthyLogIsHealthy(t *testing.T) {
	l := journaltest.Verify(t, healthy(t).store(), "s1")
	if len(l.Findings) > 0 || len(l.Events) != 15 || l.Epochs != 3 {
		t.Errorf("%d events in %d epochs, findings %v", len(l.Events), l.Epochs, l.Findings)
	}
}
