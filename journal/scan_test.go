package journal_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

const corrupt = schema.CorruptLogLine

var newline = []byte("\n")

// Each case damages the healthy log and says all that a reader must find, and
// which events it must not give.
var damages = []struct {
	name string
	edit func(s segments)
	want []place
	gone []uint64
}{
	// A line by itself.
	{"an edited line", func(s segments) { s.replace(1, 4, "hello", "hullo") },
		[]place{{kind: corrupt, reason: schema.SumMismatch, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"an edited line below what is durable", func(s segments) { s.replace(3, 4, "thanks", "THANKS") },
		[]place{{kind: corrupt, reason: schema.SumMismatch, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"an edited last line", func(s segments) { s.replace(3, 5, "bye", "BYE") },
		[]place{{kind: schema.TailSuspect, reason: schema.SumMismatch, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"an edited seal", func(s segments) { s.replace(2, 2, `"how":"resumed"`, `"how":"rosumed"`) },
		[]place{{kind: corrupt, reason: schema.SumMismatch, segment: 2, line: 2, last: 7, next: 9}}, []uint64{8}},
	{"an edited claim", func(s segments) { s.replace(2, 1, "journaltest", "journalt3st") },
		[]place{{kind: corrupt, reason: schema.ClaimCorrupt, segment: 2, line: 1}}, nil},
	{"a sum in upper case", func(s segments) {
		line := s.line(1, 4)
		at := bytes.LastIndex(line, []byte(`"sum":"`)) + 7
		copy(line[at:], bytes.ToUpper(line[at:at+64])) // in place
	},
		[]place{{kind: corrupt, reason: schema.BadEnvelope, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"a line that is no JSON", func(s segments) { s.replace(1, 4, `"text":`, `"text"!`) },
		[]place{{kind: corrupt, reason: schema.InvalidJSON, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"broken text", func(s segments) { s.replace(1, 4, "hello", "h\xffllo") },
		[]place{{kind: corrupt, reason: schema.InvalidUTF8, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"zeros in a durable line", func(s segments) { s.replace(1, 4, "hello", "h\x00\x00lo") },
		[]place{{kind: corrupt, reason: schema.NULBytes, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"zeros in a durable line of the open segment", func(s segments) { s.replace(3, 4, "thanks", "th\x00nks") },
		[]place{{kind: corrupt, reason: schema.NULBytes, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a newline between two lines that became another byte", func(s segments) {
		line := s.line(1, 4)
		line[len(line)-1] = 'x' // in place
	},
		[]place{{kind: corrupt, reason: schema.GluedLines, segment: 1, line: 4, last: 2, next: 5}}, []uint64{3, 4}},
	{"a last newline that became a NUL", func(s segments) { s[3][len(s[3])-1] = 0 },
		[]place{{kind: schema.TornTail, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"a last newline that became another byte", func(s segments) { s[3][len(s[3])-1] ^= 1 },
		[]place{{kind: corrupt, reason: schema.TerminatorDamaged, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"a torn line with a whole one behind it", func(s segments) { s.set(3, 4, s.line(3, 4)[:50]) },
		// Nothing sound is left that says that 14 is durable.
		[]place{{kind: schema.TailSuspect, reason: schema.GluedLines, segment: 3, line: 4, last: 13}}, []uint64{14, 15}},
	{"a string for a line", func(s segments) { s.set(3, 4, []byte("\"text\"\n")) },
		[]place{{kind: corrupt, reason: schema.NotAnObject, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"white space in a line", func(s segments) { s.replace(3, 4, `,"seq":`, `, "seq":`) },
		[]place{{kind: corrupt, reason: schema.BadEnvelope, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a key in other letters", func(s segments) { s.replace(1, 4, `,"seq":`, `,"SEQ":`) },
		[]place{{kind: corrupt, reason: schema.BadEnvelope, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"an envelope key more", func(s segments) { s.replace(3, 4, `"v":1,`, `"v":1,"w":2,`) },
		[]place{{kind: corrupt, reason: schema.BadEnvelope, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a key twice", func(s segments) { s.replace(3, 4, `"text":"thanks"`, `"text":"thanks","text":"you"`) },
		[]place{{kind: corrupt, reason: schema.DuplicateKey, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"deep nesting", func(s segments) {
		s.replace(3, 4, `"thanks"`, strings.Repeat("[", schema.MaxDepth)+strings.Repeat("]", schema.MaxDepth))
	},
		[]place{{kind: corrupt, reason: schema.TooDeep, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a line over the limit", func(s segments) { s.replace(3, 4, "thanks", strings.Repeat("x", schema.MaxLine)) },
		[]place{{kind: corrupt, reason: schema.OverLimit, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a line of a newer version", func(s segments) { s.replace(1, 4, `"v":1`, `"v":2`) },
		[]place{{kind: schema.UnsupportedSchemaVersion, segment: 1, line: 4, last: 2, next: 4}}, []uint64{3}},
	{"a claim of a newer version", func(s segments) { s.replace(2, 1, `"v":1`, `"v":2`) },
		[]place{{kind: schema.UnsupportedSchemaVersion, segment: 2, line: 1}}, nil},
	{"blank lines", func(s segments) { s.insert(3, 4, []byte("\n \t\n")) },
		[]place{{kind: schema.BlankLine, segment: 3, line: 4}, {kind: schema.BlankLine, segment: 3, line: 5}}, nil},
	{"a line cut short in a sealed segment", func(s segments) { s.set(1, 4, s.line(1, 4)[:50], newline) },
		[]place{{kind: corrupt, reason: schema.InvalidJSON, segment: 1, line: 4, last: 2, next: 4},
			{kind: corrupt, reason: schema.SealShort, segment: 2, line: 2}}, []uint64{3}},

	// A line among its neighbours.
	{"an event edited and summed again", func(s segments) {
		s.set(1, 4, s.event(1, 4, func(e *schema.Event) { e.Data = []byte(`{"text":"hullo"}`) }))
	},
		[]place{{kind: corrupt, reason: schema.ChainBroken, segment: 1, line: 5}}, nil},
	{"a last event that follows another", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) { e.Prev[0] ^= 1 }))
	},
		[]place{{kind: schema.TailSuspect, reason: schema.ChainBroken, segment: 3, line: 5}}, nil},
	{"a line that was taken out", func(s segments) { s.set(3, 4) },
		[]place{{kind: corrupt, reason: schema.SeqGap, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},
	{"a bad line, and a line taken out behind it", func(s segments) { s.replace(3, 3, `["a"]`, `["b"]`); s.set(3, 4) },
		[]place{{kind: corrupt, reason: schema.SumMismatch, segment: 3, line: 3, last: 12, next: 15},
			{kind: corrupt, reason: schema.SeqGap, segment: 3, line: 4, last: 12, next: 15}}, []uint64{13, 14}},
	{"a line of another session, and a line taken out behind it", func(s segments) {
		s.set(3, 3, s.event(3, 3, func(e *schema.Event) { e.Session = "s2" }))
		s.set(3, 4)
	},
		[]place{{kind: corrupt, reason: schema.SessionMismatch, segment: 3, line: 3},
			{kind: corrupt, reason: schema.SeqGap, segment: 3, line: 4, last: 12, next: 15}}, []uint64{13, 14}},
	{"two lines that became one", func(s segments) { s.set(3, 3, s.line(3, 3)[:50]) },
		[]place{{kind: corrupt, reason: schema.GluedLines, segment: 3, line: 3, last: 12, next: 15}}, []uint64{13, 14}},
	{"a line twice", func(s segments) { s.insert(3, 4, s.line(3, 3)) },
		[]place{{kind: corrupt, reason: schema.SeqDuplicate, segment: 3, line: 4}}, nil},
	{"two lines in the wrong order", func(s segments) { s.set(3, 3, s.line(3, 4), s.line(3, 3)); s.set(3, 5) },
		[]place{{kind: corrupt, reason: schema.SeqGap, segment: 3, line: 3, last: 12, next: 14},
			{kind: corrupt, reason: schema.SeqDuplicate, segment: 3, line: 4}}, []uint64{13}},
	{"a line of another session in place of ours", func(s segments) {
		s.set(3, 4, s.event(3, 4, func(e *schema.Event) { e.Session = "s2" }))
	},
		[]place{{kind: corrupt, reason: schema.SessionMismatch, segment: 3, line: 4}}, []uint64{14}},
	{"a line of an older epoch", func(s segments) {
		s.insert(3, 4, s.event(3, 4, func(e *schema.Event) { e.Epoch = 2 }))
	},
		[]place{{kind: corrupt, reason: schema.EpochFell, segment: 3, line: 4}}, nil},
	{"a line of a later epoch", func(s segments) {
		s.insert(3, 4, s.event(3, 4, func(e *schema.Event) { e.Epoch = 4 }))
	},
		[]place{{kind: corrupt, reason: schema.BadEnvelope, segment: 3, line: 4}}, nil},
	{"a result without its call", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) {
			r := journaltest.Result("c9", 1, "1")
			e.Type, e.Data = r.Type, r.Data
		}))
	},
		[]place{{kind: schema.TailSuspect, reason: schema.BadEvent, segment: 3, line: 5}}, nil},
	{"an event that does not fit its type", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) { e.Data = []byte(`{}`) }))
	},
		[]place{{kind: schema.TailSuspect, reason: schema.BadEvent, segment: 3, line: 5}}, nil},
	{"an unknown type", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) { e.Type = "of_the.future" }))
	},
		[]place{{kind: schema.UnknownType, segment: 3, line: 5}}, nil},
	{"a type of the caller's own", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) { e.Type = "x.mine" }))
	}, nil, nil},
	{"a clock that was set back", func(s segments) {
		s.set(3, 5, s.event(3, 5, func(e *schema.Event) { e.Time = e.Time.Add(-time.Hour) }))
	},
		[]place{{kind: schema.ClockWentBack, segment: 3, line: 5}}, nil},

	// The end of the log.
	{"half a last line", func(s segments) { s.set(3, 5, s.line(3, 5)[:100]) },
		[]place{{kind: schema.TornTail, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"a whole last line without its newline", func(s segments) { s.set(3, 5, bytes.TrimSuffix(s.line(3, 5), newline)) },
		[]place{{kind: schema.TornTail, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"zeros where the last line was", func(s segments) { s.set(3, 5, make([]byte, len(s.line(3, 5)))) },
		[]place{{kind: schema.TornTail, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"zeros in the last line and its newline", func(s segments) { s.replace(3, 5, "bye", "b\x00\x00") },
		[]place{{kind: schema.TornTail, segment: 3, line: 5, last: 14}}, []uint64{15}},
	{"a torn line below what is durable", func(s segments) { s.set(3, 4, s.line(3, 4)[:100], newline) },
		[]place{{kind: corrupt, reason: schema.InvalidJSON, segment: 3, line: 4, last: 13, next: 15}}, []uint64{14}},

	// Segments.
	{"an end that was cut off at a line", func(s segments) { s.set(3, 5) }, nil, []uint64{15}},
	{"a claim without a seal", func(s segments) { s[4] = claimLine(4) },
		[]place{{kind: schema.VoidClaim, segment: 4}}, nil},
	{"a claim that cannot be read", func(s segments) { s[4] = []byte("garbage\n") },
		[]place{{kind: corrupt, reason: schema.ClaimCorrupt, segment: 4, line: 1}}, nil},
	{"an empty segment", func(s segments) { s[4] = nil },
		[]place{{kind: corrupt, reason: schema.ClaimCorrupt, segment: 4, line: 1}}, nil},
	{"bytes behind a seal", func(s segments) { s[2] = append(s[2], "too late\nand more\n"...) },
		[]place{{kind: schema.Surplus, segment: 2, rest: -1, offset: -1}}, nil},
	{"an edited line and bytes behind its seal", func(s segments) {
		s.replace(2, 5, `"attempt":1`, `"attempt":2`)
		s[2] = append(s[2], "too late"...)
	},
		[]place{{kind: corrupt, reason: schema.SumMismatch, segment: 2, line: 5, last: 10, next: 12},
			{kind: schema.Surplus, segment: 2, rest: -1, offset: -1}}, []uint64{11}},
	{"another claim above a seal", func(s segments) {
		c, err := schema.DecodeClaim(bytes.TrimSuffix(s.line(2, 1), newline), "s1", 2)
		if err != nil {
			panic(err)
		}
		c.Holder.Program = "journalt3st"
		b, _ := c.Append(nil)
		s.set(2, 1, b)
	},
		[]place{{kind: corrupt, reason: schema.SealMismatch, segment: 2, line: 2}}, nil},
	{"a sealed segment that was edited and summed again", func(s segments) {
		s.set(2, 5, s.event(2, 5, func(e *schema.Event) { e.Data = bytes.Replace(e.Data, []byte("journaltest"), []byte("journalt3st"), 1) }))
	},
		[]place{{kind: corrupt, reason: schema.SealMismatch, segment: 3, line: 2}}, nil},
	{"a sealed segment that lost its last line", func(s segments) { s.set(1, 8) },
		[]place{{kind: corrupt, reason: schema.SealShort, segment: 2, line: 2, last: 6, next: 8}}, []uint64{7}},
	{"a sealed segment that lost its last bytes", func(s segments) { s[1] = s[1][:len(s[1])-10] },
		[]place{{kind: corrupt, reason: schema.SealShort, segment: 2, line: 2, last: 6, next: 8}}, []uint64{7}},
	{"a sealed segment that lost everything", func(s segments) { s[1] = nil },
		[]place{{kind: corrupt, reason: schema.SealShort, segment: 2, line: 2, next: 8}}, []uint64{1, 2, 3, 4, 5, 6, 7}},
	{"a segment that is missing", func(s segments) { delete(s, 2) },
		[]place{{kind: corrupt, reason: schema.SegmentMissing, segment: 2, last: 7, next: 12}}, []uint64{8, 9, 10, 11}},
	{"the first segment missing", func(s segments) { delete(s, 1) },
		[]place{{kind: corrupt, reason: schema.SegmentMissing, segment: 1, next: 8}}, []uint64{1, 2, 3, 4, 5, 6, 7}},

	// Many at once: none hides another.
	{"damage everywhere", func(s segments) {
		s.replace(1, 1, "journaltest", "journalt3st")
		s.replace(1, 4, "hello", "hullo")
		s.replace(1, 6, `"attempt":`, `"attempt"!`)
		s.replace(2, 3, "go on", "go\xffon")
		s.insert(3, 3, s.event(3, 3, func(e *schema.Event) { e.Session = "s2" }))
		s.replace(3, 5, "thanks", "THANKS")
		s.set(3, 6, s.line(3, 6)[:60])
	}, []place{
		{kind: corrupt, reason: schema.ClaimCorrupt, segment: 1, line: 1},
		{kind: corrupt, reason: schema.SumMismatch, segment: 1, line: 4, last: 2, next: 4},
		{kind: corrupt, reason: schema.InvalidJSON, segment: 1, line: 6, last: 4, next: 6},
		{kind: corrupt, reason: schema.InvalidUTF8, segment: 2, line: 3, last: 8, next: 10},
		{kind: schema.TailSuspect, reason: schema.SessionMismatch, segment: 3, line: 3},
		{kind: schema.TailSuspect, reason: schema.SumMismatch, segment: 3, line: 5, last: 13},
		{kind: schema.TornTail, segment: 3, line: 6, last: 13},
	}, []uint64{3, 5, 9, 14, 15}},
}

func claimLine(epoch uint64) []byte {
	c := schema.Claim{Session: "s1", Epoch: epoch, Time: time.Now()}
	b, err := c.Append(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func TestEveryDamageIsFoundAndLocated(t *testing.T) {
	base := healthy(t)
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			s := base.clone()
			d.edit(s)
			var want []schema.Finding
			for _, p := range d.want {
				if p.offset < 0 { // behind what the next seal counts
					p.offset = int64(len(base[p.segment]))
				}
				want = append(want, p.finding(s))
			}
			store := s.store()

			l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := slices.Clone(l.Findings)
			for i := range got {
				if got[i].Detail == "" {
					t.Errorf("%v says nothing to people", got[i])
				}
				got[i].Detail = ""
			}
			if !slices.Equal(got, want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, want)
			}
			var given []uint64
			for n := uint64(1); n <= 15; n++ {
				if !slices.Contains(d.gone, n) {
					given = append(given, n)
				}
			}
			if !slices.Equal(seqs(l), given) {
				t.Errorf("the events given are %v, want %v", seqs(l), given)
			}
			strictly(t, store, l)
			openOver(t, store, l)
		})
	}
}

// strictly checks that a strict reading gives what the lenient one gives, and
// ends at its first error, which it names.
func strictly(t *testing.T, store journal.Store, lenient *journaltest.Log) {
	t.Helper()
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
	first := lenient.FirstError
	if first == nil {
		if err != nil || len(l.Events) != len(lenient.Events) || len(l.Findings) != len(lenient.Findings) {
			t.Errorf("strict: %v, %d events, findings %v", err, len(l.Events), l.Findings)
		}
		return
	}
	if !errors.Is(err, first.Kind) {
		t.Fatalf("strict ends in %v; the first error is %+v", err, first)
	}
	d := schema.AsError(err).Details
	if d["segment"] != first.Segment || d["line"] != first.Line || d["offset"] != first.Offset || d["session"] != "s1" ||
		first.Reason != "" && d["reason"] != string(first.Reason) {
		t.Errorf("strict names %v; the first error is %+v", d, first)
	}
	for i, f := range l.Findings {
		last := i == len(l.Findings)-1
		if (f.Severity == schema.SeverityError) != last {
			t.Errorf("finding %d of a strict reading is %v", i, f)
		}
	}
	for i, e := range l.Events {
		if e.Head() != lenient.Events[i].Head() {
			t.Errorf("strict gives event %d as number %d", i, e.Seq)
		}
	}
}

// openOver checks that a writer goes on over notices only, and changes no byte
// of what was there.
func openOver(t *testing.T, store *journaltest.Memory, l *journaltest.Log) {
	t.Helper()
	before := segmentsOf(t, store)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if first := l.FirstError; first != nil {
		want := first.Kind
		if l.Findings[0].Reason == schema.ClaimCorrupt && len(l.Findings) == 1 && first.Segment == 4 {
			want = schema.SessionWriterAmbiguous // whose is it?
		}
		if !errors.Is(err, want) {
			t.Errorf("opening gives %v, want %s", err, want)
		}
		if after := segmentsOf(t, store); len(after) != len(before) {
			t.Errorf("a refused writer has left %d segments of %d", len(after), len(before))
		}
		return
	}
	if err != nil {
		t.Fatalf("opening gives %v", err)
	}
	journaltest.Append(t, j, journaltest.Note("goes on"))
	head := j.Head()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	after := segmentsOf(t, store)
	for epoch, b := range before {
		if !bytes.Equal(b, after[epoch]) {
			t.Errorf("segment %d has changed", epoch)
		}
	}
	again := journaltest.Verify(t, store, "s1")
	if gone := again.Missing([]schema.Head{head}); len(gone) > 0 || len(again.Events) != len(l.Events)+2 {
		t.Errorf("%d events before, %d after a seal and a note", len(l.Events), len(again.Events))
	}
}

// Damage that is no part of the session does not change what it means.
func TestNoticesLeaveTheDigestAsItIs(t *testing.T) {
	base := healthy(t)
	digest := func(s segments) string {
		st := replay.New()
		for _, err := range journal.NewScan(s.store(), "s1", journal.ScanOptions{State: st}).Items(ctx) {
			if err != nil {
				t.Fatal(err)
			}
		}
		return st.Digest()
	}
	want := digest(base)
	for name, edit := range map[string]func(s segments){
		"torn tail":  func(s segments) { s[3] = append(s[3], s[3][:200]...) },
		"surplus":    func(s segments) { s[1] = append(s[1], s.line(3, 5)...) },
		"void claim": func(s segments) { s[4] = claimLine(4) },
		"blank line": func(s segments) { s.insert(3, 4, newline) },
	} {
		s := base.clone()
		edit(s)
		if got := digest(s); got != want {
			t.Errorf("a %s changes the digest", name)
		}
	}
	s := base.clone()
	s.set(3, 5)
	if digest(s) == want {
		t.Error("an event less leaves the digest as it is")
	}
}
