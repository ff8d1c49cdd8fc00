package journal_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// fixed is a log of three segments that has the same bytes in every run and on
// every machine, so that a failing input stays one.
func fixed() segments {
	s := segments{}
	var last schema.Event
	at := time.Date(2026, 11, 30, 8, 30, 0, 0, time.UTC)
	claim := func(epoch uint64) string {
		c := schema.Claim{Session: "s1", Epoch: epoch, Time: at, Holder: schema.Holder{ID: ulid.ULID{15: byte(epoch)}.String(), Program: "p"}}
		b, err := c.Append(nil)
		if err != nil {
			panic(err)
		}
		s[epoch] = b
		return c.Sum.String()
	}
	add := func(epoch uint64, e journal.Entry) {
		next := schema.Event{Session: "s1", Seq: last.Seq + 1, Epoch: epoch, ID: ulid.ULID{15: byte(last.Seq + 1)}, Time: at,
			Type: e.Type, Data: e.Data, Dur: last.Seq, Prev: last.Sum}
		s[epoch] = next.Append(s[epoch])
		last = next
	}
	seal := func(epoch uint64, how string) {
		d := schema.Seal{Claim: claim(epoch), How: how}
		if last.Seq > 0 {
			length := int64(len(s[epoch-1]))
			size := length
			if epoch == 2 { // a torn tail that is sealed over
				s[1] = append(s[1], `{"v":1,"ses`...)
				size = int64(len(s[1]))
			}
			d.Previous = &schema.Previous{Epoch: last.Epoch, Len: &length, Size: &size, Seq: last.Seq, Sum: last.Sum}
		}
		add(epoch, journal.Entry{Type: schema.TypeWriterOpened, Data: d.Data()})
	}
	seal(1, schema.HowNew)
	add(1, journal.Entry{Type: schema.TypeSessionStarted, Data: []byte("{}")})
	add(1, journaltest.Call("c1", "read", `{"n":1e400}`))
	add(1, journaltest.Started("c1", 1))
	seal(2, schema.HowTakeover)
	add(2, journaltest.Result("c1", 1, `"text"`))
	seal(3, schema.HowResumed)
	add(3, journaltest.Message("hello"))
	add(3, journaltest.Note("x"))
	s[2] = append(s[2], "late\n"...) // surplus
	return s
}

// edit changes a log as the bytes of a script say, six for each edit. It says
// whether a line was given a new sum: such a log may be sound and yet another.
func edit(s segments, script []byte) (forged bool) {
	for ; len(script) >= 6; script = script[6:] {
		epochs := slices.Sorted(maps.Keys(s))
		if len(epochs) == 0 {
			return forged
		}
		op, epoch, value, length := script[0], epochs[int(script[1])%len(epochs)], script[4], int(script[5])
		b := s[epoch]
		at := min(int(script[2])<<8|int(script[3]), len(b))
		to := min(at+length, len(b))
		lines := bytes.SplitAfter(b, newline)
		line := at % len(lines)
		switch op % 13 {
		case 0:
			if at < len(b) {
				b[at] = value
			}
		case 1:
			if at < len(b) {
				b[at] ^= 1 << (value % 8)
			}
		case 2:
			s[epoch] = slices.Insert(b, at, bytes.Repeat([]byte{value}, length)...)
		case 3:
			s[epoch] = slices.Delete(b, at, to)
		case 4:
			s[epoch] = slices.Insert(b, at, bytes.Clone(b[at:to])...)
		case 5:
			s[epoch] = b[:at]
		case 6:
			s[epoch] = bytes.Join(slices.Delete(lines, line, line+1), nil)
		case 7:
			other := int(value) % len(lines)
			lines[line], lines[other] = lines[other], lines[line]
			s[epoch] = bytes.Join(lines, nil)
		case 8:
			delete(s, epoch)
		case 9: // a line of one segment into another
			from := bytes.SplitAfter(s[epochs[int(value)%len(epochs)]], newline)
			s[epoch] = bytes.Join(slices.Insert(lines, line, from[length%len(from)]), nil)
		case 10: // a claim above all
			top := epochs[len(epochs)-1] + 1
			if top < 9 {
				c := schema.Claim{Session: "s1", Epoch: top, Time: time.Unix(0, 0)}
				s[top], _ = c.Append(nil)
			}
		case 11: // zeros, as a file system leaves them
			clear(b[at:to])
		case 12: // another event with a right sum
			var e schema.Event
			if e.Decode(bytes.TrimSuffix(lines[line], newline)) != nil {
				continue
			}
			forged = true
			switch length % 8 {
			case 0:
				e.Seq = 1 + uint64(value)%12
				e.Dur = min(e.Dur, e.Seq-1)
			case 1:
				e.Epoch = 1 + uint64(value)%4
			case 2:
				e.Prev[0] ^= value
			case 3:
				e.Session = "s2"
			case 4:
				e.Dur = uint64(value) % e.Seq
			case 5:
				e.Type = "x.mine"
			case 6: // a seal that says anything
				e.Type = schema.TypeWriterOpened
				n, m := int64(int8(value)), int64(at)-100
				e.Data = (&schema.Seal{Claim: "c", How: schema.HowForced, Void: []uint64{uint64(value) % 5, e.Epoch},
					Previous: &schema.Previous{Epoch: uint64(value) % 5, Len: &n, Size: &m},
					Skipped:  []schema.Skipped{{Epoch: uint64(value) % 5, Line: at % 7, Lines: 1, Offset: n, Bytes: m, Reason: schema.SumMismatch, Next: uint64(length)}}}).Data()
				e.Data = bytes.ReplaceAll(e.Data, []byte("18446744073709551"), []byte("-"))
			case 7:
				e.Data = []byte(`{}`)
			}
			lines[line] = e.Append(nil)
			s[epoch] = bytes.Join(lines, nil)
		}
	}
	return forged
}

func FuzzScan(f *testing.F) {
	f.Add([]byte{})
	for op := range byte(13) {
		f.Add([]byte{op, 0, 1, 200, 0, 3})
		f.Add([]byte{op, 1, 0, 30, 1, 40})
		f.Add([]byte{op, 2, 2, 3, 2, 6})
		f.Add([]byte{op, 2, 0, 2, 200, 6, op, 1, 0, 1, 3, op})
	}
	base, err := journaltest.Read(fixed().store(), "s1", journal.ScanOptions{})
	if err != nil || base.FirstError != nil || len(base.Events) != 9 || base.Count(schema.TornTail) != 1 || base.Count(schema.Surplus) != 1 {
		f.Fatalf("the log to begin with: %v, %d events, %v", err, len(base.Events), base.Findings)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		s := fixed()
		forged := edit(s, script[:min(len(script), 6*16)])
		if len(s) == 0 {
			return
		}
		store := s.store()
		l := read(t, s)
		lines := 0
		for _, b := range s {
			lines += bytes.Count(b, newline) + 1
		}
		if n := len(l.Events) + len(l.Findings); n > 4*(lines+len(s)+4) {
			t.Errorf("%d lines give %d events and findings", lines, n)
		}
		for i, e := range l.Events {
			p := l.Places[i]
			line := e.Append(nil)
			if !bytes.HasPrefix(s[p.Segment][p.Offset:], line) || e.Sum != l.Events[i].Sum {
				t.Fatalf("event %d is not what stands at its place: %s", e.Seq, line)
			}
			if e.Session != "s1" || i > 0 && e.Seq <= l.Events[i-1].Seq {
				t.Fatalf("event %d of session %s was given", e.Seq, e.Session)
			}
		}
		if l.FirstError == nil {
			for i, e := range l.Events {
				if e.Seq != uint64(i)+1 || i > 0 && e.Prev != l.Events[i-1].Sum {
					t.Fatalf("a log without an error has event %d in place %d", e.Seq, i+1)
				}
				if !forged && e.Head() != base.Events[i].Head() {
					t.Fatalf("a log without an error has another event %d", e.Seq)
				}
			}
		}
		strictly(t, store, l)
	})
}

// FuzzBlob: whatever stands in the file of a blob, packed or not, whoever reads
// it is given the bytes that its name says, or an error of a known kind.
func FuzzBlob(f *testing.F) {
	text := bytes.Repeat([]byte("steno "), 100)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	packed := enc.EncodeAll(text, nil)
	for _, b := range [][]byte{text, packed, packed[:len(packed)-1], append(bytes.Clone(packed), packed...), enc.EncodeAll(make([]byte, 1<<20), nil), {}} {
		f.Add(b, false, int64(len(text)))
		f.Add(b, true, int64(len(text)))
		f.Add(b, true, int64(-1))
	}
	store := journaltest.Files(f)
	sum := sha256.Sum256(text)
	folder := filepath.Join(store.Dir(), "sessions", "s1", "blobs")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, pack bool, size int64) {
		name := filepath.Join(folder, hex.EncodeToString(sum[:]))
		if pack {
			name += ".zst"
		}
		must(t, os.WriteFile(name, b, 0o600))
		defer os.Remove(name)
		r, err := journal.OpenBlob(ctx, store, "s1", schema.Ref{SHA256: hex.EncodeToString(sum[:]), Bytes: size})
		if err == nil {
			var got []byte
			got, err = io.ReadAll(r)
			must(t, r.Close())
			if err == nil && !bytes.Equal(got, text) {
				t.Errorf("%d bytes were given that are not the blob", len(got))
			}
		}
		if err != nil && !errors.Is(err, schema.CorruptLogLine) {
			t.Errorf("%v", err)
		}
		if !pack && bytes.Equal(b, text) && (size < 0 || size == int64(len(text))) && err != nil {
			t.Errorf("the blob is as it was: %v", err)
		}
	})
}
