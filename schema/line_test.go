package schema_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// sample is an event whose every field is set.
func sample() schema.Event {
	return schema.Event{
		Session: "s1",
		Seq:     8,
		Epoch:   2,
		ID:      ulid.MustParseStrict("01KDYAK623R4DAPT6SZ6GP1RRW"),
		Time:    time.Date(2026, 11, 30, 9, 30, 0, 1999, time.FixedZone("one hour east", 3600)),
		Type:    "note",
		Data:    []byte(`{"n":1e400,"s":"é\u00e9"}`),
		Dur:     5,
		Prev:    schema.Sum{0: 0xAB, 31: 0x01},
	}
}

// line is the line of e without its newline.
func line(e *schema.Event) []byte {
	b := e.Append(nil)
	return b[:len(b)-1]
}

func TestEventHasExactlyTheseBytes(t *testing.T) {
	const head = `{"v":1,"session":"s1","seq":8,"epoch":2,"id":"01KDYAK623R4DAPT6SZ6GP1RRW","ts":"2026-11-30T08:30:00.000001Z",` +
		`"type":"note","data":{"n":1e400,"s":"é\u00e9"},"dur":5,` +
		`"prev":"ab00000000000000000000000000000000000000000000000000000000000001"`
	e := sample()
	got := string(e.Append([]byte("before\n")))
	sum := sha256.Sum256([]byte(head))
	if want := "before\n" + head + `,"sum":"` + hex.EncodeToString(sum[:]) + "\"}\n"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if e.Sum != sum {
		t.Errorf("Append set the sum %s, want %x", e.Sum, sum)
	}
}

func TestDurIsLeftOutWhereItIsTheNumberBefore(t *testing.T) {
	for _, c := range []struct {
		seq, dur uint64
		text     string
	}{{1, 0, ""}, {2, 1, ""}, {2, 0, `,"dur":0,`}, {9, 8, ""}, {9, 7, `,"dur":7,`}, {9, 0, `,"dur":0,`}} {
		e := sample()
		e.Seq, e.Dur = c.seq, c.dur
		b := line(&e)
		if has := bytes.Contains(b, []byte(`"dur"`)); has != (c.text != "") || !bytes.Contains(b, []byte(c.text)) {
			t.Errorf("seq %d, dur %d: %s", c.seq, c.dur, b)
		}
		var back schema.Event
		if err := back.Decode(b); err != nil || back.Dur != c.dur || back.Seq != c.seq {
			t.Errorf("seq %d, dur %d: read as seq %d, dur %d, %v", c.seq, c.dur, back.Seq, back.Dur, err)
		}
	}
}

func TestDecodeGivesBackEveryField(t *testing.T) {
	e := sample()
	b := line(&e)
	var got schema.Event
	if err := got.Decode(b); err != nil {
		t.Fatal(err)
	}
	if got.Session != e.Session || got.Seq != e.Seq || got.Epoch != e.Epoch || got.ID != e.ID || got.Type != e.Type ||
		string(got.Data) != string(e.Data) || got.Dur != e.Dur || got.Prev != e.Prev || got.Sum != e.Sum {
		t.Errorf("got %+v, want %+v", got, e)
	}
	if want := e.Time.UTC().Truncate(time.Microsecond); !got.Time.Equal(want) || got.Time.Location() != time.UTC {
		t.Errorf("got the time %v, want %v", got.Time, want)
	}
	if got.Head() != (schema.Head{Epoch: 2, Seq: 8, Sum: e.Sum}) {
		t.Errorf("its head is %s", got.Head())
	}
}

func TestDecodeOverwritesWhatWasThere(t *testing.T) {
	a, b := sample(), sample()
	b.Session, b.Type, b.Seq, b.Dur, b.Data = "another", "x.own", 1, 0, []byte("null")
	var e schema.Event
	for _, want := range []schema.Event{a, b, a} {
		if err := e.Decode(line(&want)); err != nil {
			t.Fatal(err)
		}
		if e.Session != want.Session || e.Type != want.Type || e.Seq != want.Seq || e.Dur != want.Dur || string(e.Data) != string(want.Data) {
			t.Errorf("got %+v, want %+v", e, want)
		}
	}
}

// A reader keeps the line buffer; what it appends to Data must not run into
// the rest of the line.
func TestDataAliasesTheLineAndEndsWithItself(t *testing.T) {
	e := sample()
	b := line(&e)
	keep := bytes.Clone(b)
	var got schema.Event
	if err := got.Decode(b); err != nil {
		t.Fatal(err)
	}
	if at := bytes.Index(b, []byte(`{"n"`)); &got.Data[0] != &b[at] {
		t.Error("Data is a copy")
	}
	_ = append(got.Data, "overwritten"...)
	if !bytes.Equal(b, keep) {
		t.Errorf("appending to Data changed the line: %s", b)
	}
}

// No-silent-damage, as far as one line goes: no flipped bit, no lost and no
// added byte gives a sound line.
func TestEveryFlippedBitIsFound(t *testing.T) {
	e := sample()
	good := line(&e)
	var got schema.Event
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			if got.Decode(b) == nil {
				t.Errorf("bit %d of byte %d flipped: decodes: %q", bit, i, b)
			}
		}
		if got.Decode(good[:i]) == nil || got.Decode(good[i+1:]) == nil {
			t.Errorf("a piece cut at %d decodes", i)
		}
	}
}

func TestLineLimit(t *testing.T) {
	e := sample()
	e.Data = []byte(`""`)
	fill := schema.MaxLine - len(line(&e))
	e.Data = []byte(`"` + strings.Repeat("x", fill) + `"`)
	b := line(&e)
	if len(b) != schema.MaxLine {
		t.Fatalf("the line has %d bytes", len(b))
	}
	var got schema.Event
	if err := got.Decode(b); err != nil {
		t.Errorf("a line of MaxLine bytes: %v", err)
	}
	e.Data = []byte(`"` + strings.Repeat("x", fill+1) + `"`)
	if err := got.Decode(line(&e)); err != error(schema.OverLimit) {
		t.Errorf("a line of one byte more: %v", err)
	}
	// Nothing else is looked at: the length is known before the bytes are.
	if err := got.Decode(make([]byte, schema.MaxLine+1)); err != error(schema.OverLimit) {
		t.Errorf("NUL bytes over the limit: %v", err)
	}
	if err := got.Decode(make([]byte, schema.MaxLine)); err != error(schema.NULBytes) {
		t.Errorf("NUL bytes at the limit: %v", err)
	}
}

func TestEmptyLineIsNoJSON(t *testing.T) {
	var e schema.Event
	for _, b := range []string{"", " ", "\r", "\n"} {
		if err := e.Decode([]byte(b)); err != error(schema.InvalidJSON) {
			t.Errorf("%q: %v", b, err)
		}
	}
	if err := e.Decode([]byte("\n[]")); err != error(schema.NotAnObject) {
		t.Errorf("an array behind a newline: %v", err)
	}
	if err := e.Decode([]byte("\n{}")); err != error(schema.BadEnvelope) {
		t.Errorf("an object behind a newline: %v", err)
	}
}

// Many records on one line: the search for one that ends the line is bounded
// by bytes, not by how many there are.
func TestGluedLinesAreFoundBehindManyOthers(t *testing.T) {
	e := sample()
	whole := string(line(&e))
	for _, n := range []int{0, 1, 15, 16, 17, 100} {
		parts := ""
		for i := range n {
			parts += whole[:40+i]
		}
		var got schema.Event
		want := error(schema.GluedLines)
		if n == 0 {
			want = nil
		}
		if err := got.Decode([]byte(parts + whole)); err != want {
			t.Errorf("behind %d beginnings: %v, want %v", n, err, want)
		}
	}
	// A quote in front turns the first brace into text; the record is there
	// all the same.
	var got schema.Event
	if err := got.Decode([]byte(`"` + whole)); err != error(schema.GluedLines) {
		t.Errorf("behind a quote: %v", err)
	}
}

func TestDecodeAllocatesNothingForTheSameSessionAndType(t *testing.T) {
	e := sample()
	e.Session, e.Type = strings.Repeat("s", 128), "x."+strings.Repeat("t", 62)
	e.Data = []byte(`{"call_id":"c","name":"edit","args":{"a":[{"b":{"c":{"d":1,"e":2}}}],"f":"g"},"args_sha256":"` + strings.Repeat("0", 64) + `"}`)
	b := line(&e)
	var got schema.Event
	n := testing.AllocsPerRun(100, func() {
		if err := got.Decode(b); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func claim() schema.Claim {
	return schema.Claim{
		Session: "s1",
		Epoch:   2,
		Time:    time.Date(2026, 11, 30, 8, 30, 0, 1000, time.UTC),
		Holder: schema.Holder{ID: "01KDYAK623R4DAPT6SZ6GP1RRW", Host: "host-a", BootID: "b0", PID: 7,
			PIDStarted: "2026-11-30T08:00:00.000000Z", Program: "steno serve"},
	}
}

func TestClaimHasExactlyTheseBytes(t *testing.T) {
	const head = `{"v":1,"session":"s1","epoch":2,"ts":"2026-11-30T08:30:00.000001Z","claim":{"holder":{"id":"01KDYAK623R4DAPT6SZ6GP1RRW",` +
		`"host":"host-a","boot_id":"b0","pid":7,"pid_started":"2026-11-30T08:00:00.000000Z","program":"steno serve"}}`
	c := claim()
	got, err := c.Append([]byte("before\n"))
	sum := sha256.Sum256([]byte(head))
	if want := "before\n" + head + `,"sum":"` + hex.EncodeToString(sum[:]) + "\"}\n"; string(got) != want || err != nil || c.Sum != sum {
		t.Errorf("got  %q, %v, sum %s\nwant %q", got, err, c.Sum, want)
	}
	back, err := schema.DecodeClaim(got[len("before\n"):len(got)-1], "s1", 2)
	if err != nil || back != c {
		t.Errorf("read as %+v, %v, want %+v", back, err, c)
	}
}

// What the system says of a process is not always text; a session can be
// opened all the same.
func TestClaimOfAHostileHolderReadsBack(t *testing.T) {
	c := claim()
	c.Holder.Host, c.Holder.Program, c.Holder.PID = "h\xff\x00\n\"\\\u2028", "<&>\xe2\x82\xed\xa0\x80", -1
	b, err := c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := schema.DecodeClaim(b[:len(b)-1], "s1", 2)
	if err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	want := c.Holder
	want.Host, want.Program = "h\uFFFD\x00\n\"\\\u2028", "<&>\uFFFD\uFFFD\uFFFD\uFFFD"
	if got.Holder != want {
		t.Errorf("got %+v, want %+v", got.Holder, want)
	}
}

func TestClaimThatNoReaderWouldTakeIsNotWritten(t *testing.T) {
	c := claim()
	c.Holder.Program = strings.Repeat("x", schema.MaxLine)
	b, err := c.Append([]byte("before"))
	if !errors.Is(err, schema.LineTooLong) || string(b) != "before" {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
	c.Holder.Program = ""
	b, err = c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Holder.Program = strings.Repeat("x", schema.MaxLine-len(b)+1)
	if b, err = c.Append(nil); err != nil || len(b) != schema.MaxLine+1 {
		t.Fatalf("the longest claim: %d bytes, %v", len(b), err)
	}
	if _, err := schema.DecodeClaim(b[:len(b)-1], "s1", 2); err != nil {
		t.Errorf("the longest claim: %v", err)
	}
}

// The segment's place is what a claim is checked against, so places that
// cannot be are refused whatever the line says.
func TestClaimOfAnImpossiblePlaceIsCorrupt(t *testing.T) {
	for _, c := range []struct {
		session string
		epoch   uint64
	}{{"../x", 1}, {"", 1}, {"s1", 0}} {
		h := claim()
		h.Session, h.Epoch = c.session, c.epoch
		b, err := h.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := schema.DecodeClaim(b[:len(b)-1], c.session, c.epoch); err != error(schema.ClaimCorrupt) {
			t.Errorf("%q, epoch %d: %v", c.session, c.epoch, err)
		}
	}
}

func TestHolderMayGrowButNotChangeItsKinds(t *testing.T) {
	for holder, want := range map[string]error{
		`{"id":"a","pid":7,"namespace":[1,{"x":null}]}`: nil,
		`{"ID":"a"}`:      nil, // another key, not ours
		`{}`:              nil,
		`{"pid":"7"}`:     schema.ClaimCorrupt,
		`{"pid":7.5}`:     schema.ClaimCorrupt,
		`{"id":7}`:        schema.ClaimCorrupt,
		`[]`:              schema.ClaimCorrupt,
		`{"host":"\ud8"}`: schema.ClaimCorrupt,
	} {
		b := reseal([]byte(`{"v":1,"session":"s1","epoch":1,"ts":"2026-11-30T08:30:00.000001Z","claim":{"holder":` + holder + `}` + strings.Repeat(" ", 74)))
		c, err := schema.DecodeClaim(b, "s1", 1)
		if err != want {
			t.Errorf("%s: %v, want %v", holder, err, want)
		}
		if err == nil && strings.Contains(holder, `"ID"`) && c.Holder.ID != "" {
			t.Errorf("%s: the id is %q", holder, c.Holder.ID)
		}
	}
}

func TestSumIsLowerCaseHexAndNothingElse(t *testing.T) {
	const text = "00ff" + "0123456789abcdef" + "0123456789abcdef" + "0123456789abcdef" + "0123456789ab"
	s, err := schema.ParseSum(text)
	if err != nil || s.String() != text || s[1] != 0xFF {
		t.Fatalf("got %s, %v", s, err)
	}
	if b, err := s.MarshalText(); err != nil || string(b) != text {
		t.Errorf("marshals to %s, %v", b, err)
	}
	var u schema.Sum
	if err := u.UnmarshalText([]byte(text)); err != nil || u != s {
		t.Errorf("unmarshals to %s, %v", u, err)
	}
	if z := (schema.Sum{}).String(); z != strings.Repeat("0", 64) {
		t.Errorf("the zero sum is %s", z)
	}
	for _, bad := range []string{"", text[:63], text + "0", strings.ToUpper(text), text[:63] + "g", text[:63] + " ", " " + text[1:],
		"0x" + text[2:], text[:33], text[:63] + "\x00", "é" + text[2:], text[:62] + "\u0663"} {
		s, err := schema.ParseSum(bad)
		if !errors.Is(err, schema.InvalidArgs) || s != (schema.Sum{}) {
			t.Errorf("%q: got %s, %v", bad, s, err)
		}
	}
}

func TestReasonAndKindStandForThemselves(t *testing.T) {
	if s := fmt.Sprint(schema.SumMismatch); s != "sum_mismatch" {
		t.Errorf("a reason reads %q", s)
	}
	if !errors.Is(fmt.Errorf("line 7: %w", schema.SumMismatch), schema.SumMismatch) {
		t.Error("errors.Is does not find a reason")
	}
}

// What a line's fields hold is read by hand, and what is read is what the
// packages for it read.
func TestTimesIDsAndSumsAreReadAsTheirPackagesRead(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	e := sample()
	good := string(line(&e))
	put := func(old, text string) (schema.Event, error) {
		l := strings.Replace(good, old, text, 1)
		l = l[:len(l)-74] // what stands before the sum
		sum := sha256.Sum256([]byte(l))
		var got schema.Event
		err := got.Decode(fmt.Appendf(nil, `%s,"sum":"%x"}`, l, sum))
		return got, err
	}
	ts := e.Time.UTC().Format(schema.TimeFormat)
	change := func(text, with string) string {
		b := []byte(text)
		for range 1 + r.IntN(2) {
			b[r.IntN(len(b))] = with[r.IntN(len(with))]
		}
		return string(b)
	}
	for n := range 40_000 {
		text := fmt.Sprintf("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", r.IntN(10000), 1+r.IntN(12), 1+r.IntN(31), r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e6))
		if n%2 == 0 {
			text = change(text, "0123456789:-TZ. +/")
		}
		want, err := time.Parse("2006-01-02T15:04:05.000000Z", text)
		sound := err == nil && want.Format(schema.TimeFormat) == text
		if got, err := put(ts, text); sound != (err == nil) || sound && (!got.Time.Equal(want) || got.Time.Location() != time.UTC) {
			t.Fatalf("%s is read as %v, %v; want %v, %t", text, got.Time, err, want, sound)
		}

		id := ulid.ULID{}
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		text = id.String()
		if n%2 == 0 {
			text = change(text, "0123456789ABCDEFGHJKMNPQRSTVWXYZabcilouILOU-\x7f!")
		}
		wantID, err := schema.ParseID(text)
		if got, e := put(e.ID.String(), text); (e == nil) != (err == nil) || err == nil && got.ID != wantID {
			t.Fatalf("%s is read as %v, %v; want %v, %v", text, got.ID, e, wantID, err)
		}
	}
	for at := range 64 {
		for c := range 256 {
			text := []byte(strings.Repeat("0123456789abcdef", 4))
			text[at] = byte(c)
			raw, err := hex.DecodeString(string(text))
			sound := err == nil && hex.EncodeToString(raw) == string(text)
			if sum, err := schema.ParseSum(string(text)); sound != (err == nil) || sound && !bytes.Equal(sum[:], raw) {
				t.Fatalf("%q is read as %v, %v", text, sum, err)
			}
		}
	}
}
