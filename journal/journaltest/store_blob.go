package journaltest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/go-json-experiment/json"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// Large is text of n bytes that belongs to a number. An even one gives text
// that packing makes smaller.
func Large(number uint64, n int) string {
	if number%2 == 0 {
		line := fmt.Sprintf("line of %d, with \"quotes\"\n", number)
		return strings.Repeat(line, n/len(line)+1)[:n]
	}
	r, b := rand.New(rand.NewPCG(number, 1)), make([]byte, n)
	for i := range b {
		b[i] = ' ' + byte(r.Uint32()%95)
	}
	return string(b)
}

var blobTests = []storeTest{
	{"a value that is too large for a line comes back byte for byte", suite.large},
	{"a patch in a blob means what it means in a line", suite.largePatch},
	{"a caller's key blobs is refused and a caller's reference stays one", suite.blobsKey},
	{"the same value again is the same blob", suite.sameBlob},
	{"a blob that is not there is not_found, and no blob has another name", suite.noBlob},
}

func (s suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// blob reads a blob as the store has it.
func (s suite) blob(sum string) []byte {
	s.Helper()
	r, size, err := s.store.Blob(ctx, "s1", sum)
	if err != nil {
		s.Fatalf("blob %s: %v", sum, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil || size >= 0 && size != int64(len(b)) {
		s.Fatalf("blob %s: %d bytes, said to be %d: %v", sum, len(b), size, err)
	}
	return b
}

func (s suite) large() {
	j := Open(s, s.store, "s1")
	long := Large(2, 400_000)
	var args, odd schema.Object
	args.Raw("z", []byte("1e400")).Text("a", long).Raw("n", []byte("123456789012345678901234567890"))
	entries := []journal.Entry{
		Message(long),
		{Type: "x.mine", Data: odd.Text("text", long[1:]).Bytes()},
		{Type: "x.spelt", Data: []byte(`{"item":"` + strings.Repeat(`\u0041\/\ufffd`, 40_000) + `"}`)},
		Call("c1", "shell", string(args.Bytes())),
		Started("c1", 1),
		Result("c1", 1, `"`+strings.Repeat("x", schema.MaxInline-2)+`"`),
		Call("c2", "shell", `{}`),
		Result("c2", 0, `"`+strings.Repeat("x", schema.MaxInline-1)+`"`),
		Result("c3", 0, `[`+strings.Repeat("1.0,", 100_000)+`-0]`),
	}
	entries[8].Type = "x.result"
	for i := range entries {
		entries[i].ID = eventID(byte(10 + i))
	}
	records := Append(s, j, entries...)
	for when := range 2 {
		for i, r := range records {
			want := i != 4 && i != 5 && i != 6
			blobs, err := schema.Refs(r.Data)
			if err != nil || (len(blobs) == 1) != want || len(r.Line) > schema.MaxInline+1000 {
				s.Errorf("event %d has %d blobs and a line of %d bytes: %v", r.Seq, len(blobs), len(r.Line), err)
			}
			whole, err := journal.Whole(ctx, s.store, "s1", r.Data)
			if err != nil || !bytes.Equal(whole, entries[i].Data) {
				s.Errorf("event %d comes back with %d bytes, %d were appended: %v", r.Seq, len(whole), len(entries[i].Data), err)
			}
		}
		// The same bytes from the log, under the ids from the record, and after
		// another has opened the session.
		if again := Append(s, j, entries...); len(again) != len(records) || !bytes.Equal(again[0].Line, records[0].Line) {
			s.Error("a repeat is not answered with the record")
		}
		back, err := j.Event(ctx, records[0].Seq)
		if err != nil || !bytes.Equal(back.Line, records[0].Line) {
			s.Errorf("a line with a blob is not read back: %v", err)
		}
		if when == 0 {
			s.must(j.Close())
			j = Open(s, s.store, "s1")
		}
	}
	l := Verify(s, s.store, "s1")
	if len(l.Findings) > 0 || len(l.Events) != 2+len(entries)+1 {
		s.Errorf("%d events, findings %v", len(l.Events), l.Findings)
	}
	j.View(func(st journal.State) {
		if live := st.(*replay.State); live.Digest() != l.State.Digest() {
			s.Error("the live state is not the one that the log amounts to")
		}
	})
}

func (s suite) largePatch() {
	patch := func(text string) journal.Entry {
		var o, p schema.Object
		return journal.Entry{Type: schema.TypeStateChanged, Data: o.Raw("patch", p.Text("text", text).Raw("n", []byte("1e400")).Bytes()).Bytes()}
	}
	long := Large(4, 300_000)
	small := replay.New()
	j := Open(s, s.store, "s1")
	for i, e := range []journal.Entry{patch("small"), patch(long), {Type: schema.TypeStateChanged, Data: []byte(`{"patch":{"n":null}}`)}} {
		r := Append(s, j, e)[0]
		if blobs, err := schema.Refs(r.Data); err != nil || (len(blobs) == 1) != (i == 1) {
			s.Errorf("%d blobs: %v", len(blobs), err)
		}
		r.Event.Data = e.Data
		small.Apply(&r.Event)
	}
	want, err := json.Marshal(&small.Working)
	s.must(err)
	if !strings.Contains(string(want), "line of 4") {
		s.Fatalf("the state is %.100s", want)
	}
	for _, who := range []string{"its writer", "whoever opens it next"} {
		l := Verify(s, s.store, "s1")
		j.View(func(st journal.State) {
			live := st.(*replay.State)
			if got, err := json.Marshal(&live.Working); err != nil || !bytes.Equal(got, want) {
				s.Errorf("%s has %.100s: %v", who, got, err)
			}
			if live.Digest() != l.State.Digest() {
				s.Errorf("%s has another state than the log amounts to", who)
			}
		})
		s.must(j.Close())
		j = Open(s, s.store, "s1")
	}
}

func (s suite) blobsKey() {
	j := Open(s, s.store, "s1")
	ref := `{"ref":{"sha256":"` + strings.Repeat("a", 64) + `","bytes":1,"media_type":"text/plain"},"preview":"x"}`
	head := j.Head()
	for _, e := range []journal.Entry{
		{Type: schema.TypeNote, Data: []byte(`{"blobs":[]}`)},
		{Type: schema.TypeUserMessage, Data: []byte(`{"text":` + ref + `,"blobs":["/text"]}`)},
		{Type: "x.mine", Data: []byte(`{"blob\u0073":["/text"],"text":` + ref + `}`)},
	} {
		_, err := j.Append(ctx, Note("beside it"), e)
		s.want(err, schema.InvalidArgs, string(e.Data))
	}
	if j.Head() != head || j.Err() != nil {
		s.Error("what was refused has moved the head, or ended the journal")
	}
	r := Append(s, j, journal.Entry{Type: schema.TypeNote, Data: []byte(`{"output":` + ref + `}`)})[0]
	if blobs, err := schema.Refs(r.Data); err != nil || len(blobs) > 0 {
		s.Errorf("a caller's reference passes for %v: %v", blobs, err)
	}
}

func (s suite) sameBlob() {
	j := Open(s, s.store, "s1")
	var sums []string
	for _, number := range []uint64{5, 6, 5, 6} {
		r := Append(s, j, Note(Large(number, 300_000)))
		blobs, err := schema.Refs(r[0].Data)
		if err != nil || len(blobs) != 1 {
			s.Fatalf("%v: %v", blobs, err)
		}
		sums = append(sums, blobs[0].SHA256)
		if got := s.blob(blobs[0].SHA256); string(got) != Large(number, 300_000) {
			s.Errorf("blob %d has %d bytes", number, len(got))
		}
	}
	if sums[0] != sums[2] || sums[1] != sums[3] || sums[0] == sums[1] {
		s.Errorf("the blobs are %q", sums)
	}
}

func (s suite) noBlob() {
	j := Open(s, s.store, "s1")
	_, _, err := s.store.Blob(ctx, "s1", strings.Repeat("a", 64))
	s.want(err, schema.NotFound, "before there is any")
	Append(s, j, Note(Large(7, 300_000)))
	_, _, err = s.store.Blob(ctx, "s1", strings.Repeat("a", 64))
	s.want(err, schema.NotFound, "beside one")
	_, _, err = s.store.Blob(ctx, "s2", strings.Repeat("a", 64))
	s.want(err, schema.NotFound, "of no session")
	for _, name := range []string{"", "../000001.jsonl", strings.Repeat("A", 64), strings.Repeat("a", 63) + "/"} {
		if _, _, err := s.store.Blob(ctx, "s1", name); !errors.Is(err, schema.InvalidArgs) {
			s.Errorf("blob %q: %v", name, err)
		}
	}
}
