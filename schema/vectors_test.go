package schema_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"steno/schema"
)

// A row is one row of a file of vectors. Its title is the comment above it.
type row struct {
	title, text string
}

func vectors(t testing.TB, name string) []row {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "testdata", "lines", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []row
	title := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		if c, ok := strings.CutPrefix(s.Text(), "# "); ok {
			title = c
			continue
		}
		rows = append(rows, row{title, s.Text()})
	}
	if len(rows) == 0 {
		t.Fatalf("%s holds no vectors", name)
	}
	return rows
}

// raw undoes the escapes of a vector.
func raw(t testing.TB, s string) []byte {
	t.Helper()
	var b []byte
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '\\':
			b = append(b, s[i])
		case strings.HasPrefix(s[i:], `\\`):
			b, i = append(b, '\\'), i+1
		case strings.HasPrefix(s[i:], `\x`) && i+4 <= len(s):
			c, err := hex.DecodeString(s[i+2 : i+4])
			if err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			b, i = append(b, c[0]), i+3
		default:
			t.Fatalf("no escape at %d of %q", i, s)
		}
	}
	return b
}

// reseal gives the bytes before the last 74 a fresh sum.
func reseal(line []byte) []byte {
	head := line[:max(0, len(line)-74)]
	sum := sha256.Sum256(head)
	return append(append(append([]byte(nil), head...), `,"sum":"`+hex.EncodeToString(sum[:])...), `"}`...)
}

// reason is what Decode says of a line, "ok" for nothing. What decodes must
// encode to the same bytes.
func reason(t testing.TB, line []byte) string {
	t.Helper()
	var e schema.Event
	err := e.Decode(line)
	if err == nil {
		want := string(line) + "\n"
		sum := e.Sum
		if got := string(e.Append(nil)); got != want || e.Sum != sum {
			t.Errorf("decodes, and then encodes to other bytes\n got %q\nwant %q", got, want)
		}
		return "ok"
	}
	return refusal(t, err)
}

// refusal is the text of an error that must be a bare Reason or Kind: readers
// put it into a finding as it is.
func refusal(t testing.TB, err error) string {
	t.Helper()
	if r, ok := errors.AsType[schema.Reason](err); ok {
		return string(r)
	}
	if err == error(schema.UnsupportedSchemaVersion) {
		return string(schema.UnsupportedSchemaVersion)
	}
	t.Errorf("%v is neither a Reason nor a Kind", err)
	return err.Error()
}

func TestLinesMatchTheVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range vectors(t, "lines.txt") {
		want, line, _ := strings.Cut(r.text, " ")
		seen[want] = true
		if got := reason(t, raw(t, line)); got != want {
			t.Errorf("%s: got %s, want %s\n%s", r.title, got, want, line)
		}
	}
	for _, r := range []schema.Reason{schema.InvalidJSON, schema.InvalidUTF8, schema.NULBytes, schema.GluedLines,
		schema.NotAnObject, schema.BadEnvelope, schema.SumMismatch, schema.TooDeep, schema.DuplicateKey} {
		if !seen[string(r)] {
			t.Errorf("no vector shows %s", r)
		}
	}
}

func TestEditsOfALineMatchTheVectors(t *testing.T) {
	rows := vectors(t, "edits.txt")
	text, ok := strings.CutPrefix(rows[0].text, "base ")
	base := raw(t, text)
	if !ok || reason(t, base) != "ok" {
		t.Fatal("the first row is not a sound base")
	}
	n := 0
	for _, r := range rows[1:] {
		f := strings.Fields(r.text)
		if len(f) != 5 {
			t.Fatalf("not a row: %q", r.text)
		}
		from, err1 := strconv.Atoi(f[3])
		to, err2 := strconv.Atoi(f[4])
		if err1 != nil || err2 != nil {
			t.Fatalf("not a row: %q", r.text)
		}
		for at := from; at <= to; at++ {
			line := edit(t, base, f[2], at)
			if f[1] == "sealed" {
				line = reseal(line)
			}
			n++
			if got := reason(t, line); got != f[0] {
				t.Errorf("%s %s at %d: got %s, want %s\n%q", f[1], f[2], at, got, f[0], line)
			}
		}
	}
	if n < 10*len(base) {
		t.Errorf("only %d edits", n)
	}
}

func edit(t testing.TB, base []byte, how string, at int) []byte {
	t.Helper()
	head, tail := string(base[:at]), string(base[at:])
	verb, arg, _ := strings.Cut(how, ":")
	c, err := hex.DecodeString(arg)
	if err != nil {
		t.Fatal(err)
	}
	switch verb {
	case "cut":
		return []byte(head)
	case "drop":
		return []byte(head + tail[1:])
	case "twice":
		return []byte(head + tail[:1] + tail)
	case "set":
		return []byte(head + string(c) + tail[1:])
	case "put":
		return []byte(head + string(c) + tail)
	}
	t.Fatalf("no edit: %s", how)
	return nil
}

func TestWeldedLinesMatchTheVectors(t *testing.T) {
	var log [][]byte
	for _, r := range vectors(t, "log.txt") {
		log = append(log, raw(t, r.text))
	}
	for _, r := range vectors(t, "welds.txt") {
		f := strings.Fields(r.text)
		var line []byte
		for _, piece := range f[1:] {
			p := strings.Split(piece, ":")
			var n [3]int
			for i := range n {
				var err error
				if n[i], err = strconv.Atoi(p[i]); err != nil {
					t.Fatal(err)
				}
			}
			line = append(line, log[n[0]][n[1]:n[2]]...)
		}
		if got := reason(t, line); got != f[0] {
			t.Errorf("%s: got %s\n%q", r.text, got, line)
		}
	}
}

func TestClaimsMatchTheVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range vectors(t, "claims.txt") {
		f := strings.SplitN(r.text, " ", 4)
		epoch, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil || len(f) != 4 {
			t.Fatalf("not a row: %q", r.text)
		}
		line := raw(t, f[3])
		c, err := schema.DecodeClaim(line, f[1], epoch)
		got := "ok"
		if err != nil {
			got = refusal(t, err)
		} else if c.Session != f[1] || c.Epoch != epoch {
			t.Errorf("%s: the claim names %s and %d", r.title, c.Session, c.Epoch)
		}
		seen[got] = true
		if got != f[0] {
			t.Errorf("%s: got %s, want %s\n%s", r.title, got, f[0], f[3])
		}
	}
	if len(seen) != 3 {
		t.Errorf("the vectors show only %v", seen)
	}
}

// TestLogChains reads a whole session as a second implementation would: each
// line by itself, then the chain across segments.
func TestLogChains(t *testing.T) {
	var last schema.Event
	var claim schema.Claim
	for i, r := range vectors(t, "log.txt") {
		line := raw(t, r.text)
		segment, err := strconv.ParseUint(strings.TrimLeft(strings.TrimPrefix(r.title, "segment "), "0"), 10, 64)
		if err != nil {
			t.Fatalf("row %d stands under %q", i, r.title)
		}
		if segment != claim.Epoch {
			if claim, err = schema.DecodeClaim(line, "vectors", segment); err != nil {
				t.Fatalf("row %d: %v", i, err)
			}
			// The claim keeps nothing that its line does not say in this form.
			again, err := claim.Append(nil)
			if err != nil || string(again) != string(line)+"\n" {
				t.Errorf("row %d: encodes to %q, %v", i, again, err)
			}
			continue
		}
		var e schema.Event
		if err := e.Decode(line); err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		if e.Seq != last.Seq+1 || e.Prev != last.Sum || e.Epoch != segment || e.Dur > e.Seq-1 {
			t.Errorf("row %d does not continue seq %d", i, last.Seq)
		}
		if err := schema.CheckData(e.Type, e.Data); err != nil {
			t.Errorf("row %d: %v", i, err)
		}
		if e.Type == schema.TypeWriterOpened {
			var s schema.Seal
			if err := schema.Unmarshal(e.Data, &s); err != nil {
				t.Fatalf("row %d: %v", i, err)
			}
			if s.Claim != claim.Sum.String() {
				t.Errorf("row %d seals another claim", i)
			}
			if p := s.Previous; (p == nil) != (segment == 1) || p != nil && (p.Sum != last.Sum || p.Seq != last.Seq) {
				t.Errorf("row %d pins %+v after %s", i, p, last.Head())
			}
			// Seals have one form, so ours and theirs agree byte for byte.
			if got := string(s.Data()); got != string(e.Data) {
				t.Errorf("row %d: the seal encodes to\n%s, not\n%s", i, got, e.Data)
			}
		}
		last = e
	}
	if claim.Epoch != 3 {
		t.Errorf("%d segments, want 3", claim.Epoch)
	}
}

// Seals have one form: what they hold is all there is, in this order.
func TestSealsMatchTheVectors(t *testing.T) {
	places := 0
	for _, r := range vectors(t, "seals.txt") {
		data := raw(t, r.text)
		if err := schema.CheckData(schema.TypeWriterOpened, data); err != nil {
			t.Errorf("%s: %v", r.title, err)
		}
		var s schema.Seal
		if err := schema.Unmarshal(data, &s); err != nil {
			t.Errorf("%s: %v", r.title, err)
		}
		if got := string(s.Data()); got != string(data) {
			t.Errorf("%s: encodes to\n%s, not\n%s", r.title, got, data)
		}
		places += len(s.Skipped)
	}
	if places != 6 {
		t.Errorf("the vectors list %d places", places)
	}
}

func TestDoorMatchesTheVectors(t *testing.T) {
	for _, r := range vectors(t, "door.txt") {
		f := strings.Split(r.text, "\t")
		out, n, err := schema.Compact([]byte("dst"), raw(t, f[0]), 2)
		if len(f) == 2 && f[1] == "refused" {
			if !errors.Is(err, schema.InvalidArgs) {
				t.Errorf("%s: got %q, %v, want a refusal", f[0], out, err)
			}
			if string(out) != "dst" {
				t.Errorf("%s: a refusal left %q", f[0], out)
			}
			continue
		}
		if len(f) != 3 {
			t.Fatalf("not a row: %q", r.text)
		}
		if err != nil || string(out) != "dst"+string(raw(t, f[1])) || strconv.Itoa(n) != f[2] {
			t.Errorf("%s: got %q, %d, %v, want %s, %s", f[0], out, n, err, f[1], f[2])
		}
	}
}

func TestCanonicalFormMatchesTheVectors(t *testing.T) {
	for _, r := range vectors(t, "canonical.txt") {
		f := strings.Split(r.text, "\t")
		if len(f) != 3 {
			t.Fatalf("not a row: %q", r.text)
		}
		args := raw(t, f[0])
		got, err := schema.CanonicalArgs(args)
		if err != nil || string(got) != string(raw(t, f[1])) {
			t.Errorf("%s: got %q, %v, want %s", f[0], got, err, f[1])
		}
		if string(args) != string(raw(t, f[0])) {
			t.Errorf("%s: the arguments were changed in place", f[0])
		}
		sum, err := schema.ArgsSHA256(args)
		if err != nil || sum != f[2] {
			t.Errorf("%s: got %s, %v, want %s", f[0], sum, err, f[2])
		}
	}
}

func TestBlobsMatchTheVectors(t *testing.T) {
	for _, r := range vectors(t, "blobs.txt") {
		f := strings.Split(r.text, "\t")
		n, err := strconv.Atoi(f[2])
		if err != nil {
			t.Fatal(err)
		}
		data := string(raw(t, f[0])) + strings.Repeat(string(raw(t, f[1])), n) + string(raw(t, f[3]))
		var got []string
		_, blobs := takeOut(t, data)
		for _, b := range blobs {
			got = append(got, b.Key+" "+b.MediaType+" "+strconv.FormatInt(b.Bytes, 10)+" "+b.SHA256)
		}
		if !slices.Equal(got, f[4:]) {
			t.Errorf("%s: got %q, want %q", r.title, got, f[4:])
		}
	}
}
