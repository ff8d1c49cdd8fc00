package schema_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

func bytesOf(t testing.TB, b schema.Blob) []byte {
	t.Helper()
	var buf bytes.Buffer
	n, err := b.WriteTo(&buf)
	if err != nil || n != int64(buf.Len()) {
		t.Fatalf("%d bytes of %d: %v", n, buf.Len(), err)
	}
	sum := sha256.Sum256(buf.Bytes())
	if n != b.Bytes || hex.EncodeToString(sum[:]) != b.SHA256 {
		t.Fatalf("the reference says %d bytes and %s, the blob has %d and %x", b.Bytes, b.SHA256, n, sum)
	}
	return buf.Bytes()
}

// takeOut checks that data is given back byte for byte from its reference and
// the bytes of its blobs alone.
func takeOut(t testing.TB, data string) (small []byte, blobs []schema.Blob) {
	t.Helper()
	small, blobs, err := schema.TakeOut([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string][]byte{}
	for _, b := range blobs {
		stored[b.SHA256] = bytesOf(t, b)
		if q, _ := jsontext.AppendQuote(nil, b.Preview); len(q) > 64<<10 || !utf8.ValidString(b.Preview) {
			t.Errorf("a preview has %d bytes", len(q))
		}
	}
	if text, n, err := schema.Compact(nil, small, 1); err != nil || n > 0 || !bytes.Equal(text, small) {
		t.Fatalf("what is left is no compact JSON: %v\n%.200s", err, small)
	}
	back, err := schema.PutBack(small, func(b schema.Blob) (jsontext.Value, error) { return b.Value(stored[b.SHA256]) })
	if err != nil || string(back) != data {
		t.Fatalf("%d bytes come back as %d: %v", len(data), len(back), err)
	}
	return small, blobs
}

func TestLargeValuesBecomeBlobsAndComeBackByteForByte(t *testing.T) {
	long := strings.Repeat("0123456789 ä\\n", 30_000)
	quoted := `"` + long + `"`
	just := `"` + strings.Repeat("x", schema.MaxInline-2) + `"`
	over := `"` + strings.Repeat("x", schema.MaxInline-1) + `"`
	digits := strings.Repeat("9", 300_000)
	for what, c := range map[string]struct {
		data  string
		blobs string // key and media type of each
	}{
		"nothing large":            {`{"output":"small","n":1}`, ""},
		"just not large":           {`{"output":` + just + `}`, ""},
		"one byte more":            {`{"output":` + over + `}`, "output text/plain"},
		"a text":                   {`{"call_id":"c","output":` + quoted + `,"ok":true}`, "output text/plain"},
		"another key":              {`{"pad":` + quoted + `}`, ""},
		"a key that is spelt":      {`{"\u006futput":` + quoted + `}`, "output text/plain"},
		"every key":                {`{"args":` + quoted + `,"output":` + quoted + `,"structured":` + quoted + `,"content":` + quoted + `,"text":` + quoted + `,"item":` + quoted + `,"patch":` + quoted + `}`, "args text/plain output text/plain structured text/plain content text/plain text text/plain item text/plain patch text/plain"},
		"an object":                {`{"args":{"b":` + quoted + `,"a":1e400},"x":{"args":` + quoted + `}}`, "args application/json"},
		"a number":                 {`{"patch":` + digits + `}`, "patch application/json"},
		"needless escapes":         {`{"output":"\/` + long + `"}`, "output application/json"},
		"an escape in capitals":    {`{"output":"\u001B` + long + `"}`, "output application/json"},
		"an escape as it must be":  {`{"output":"\u001b` + long + `"}`, "output text/plain"},
		"half a surrogate, stored": {`{"output":"\ufffd` + long + `"}`, "output application/json"},
		"U+FFFD itself":            {`{"output":"` + "\uFFFD" + long + `"}`, "output text/plain"},
		"a pair that is spelt":     {`{"output":"` + strings.Repeat(`\ud83d\ude00`, 30_000) + `"}`, "output application/json"},
		"a pair":                   {`{"output":"` + strings.Repeat("\U0001F600", 70_000) + `"}`, "output text/plain"},
		"nothing but NULs":         {`{"output":"` + strings.Repeat(`\u0000`, 50_000) + `"}`, "output text/plain"},
		"no object":                {`[` + quoted + `]`, ""},
		"a reference of another's": {`{"output":{"ref":{"sha256":"` + strings.Repeat("a", 64) + `","bytes":1,"media_type":"text/plain"},"preview":""},"text":` + quoted + `}`, "text text/plain"},
	} {
		small, blobs := takeOut(t, c.data)
		var got []string
		for _, b := range blobs {
			got = append(got, b.Key+" "+b.MediaType)
		}
		if s := strings.Join(got, " "); s != c.blobs {
			t.Errorf("%s: got %q, want %q", what, s, c.blobs)
		}
		read, err := schema.Refs(small)
		if err != nil || len(read) != len(blobs) {
			t.Errorf("%s: %d blobs are read back: %v", what, len(read), err)
			continue
		}
		for i, b := range read {
			if b.Ref != blobs[i].Ref || b.Key != blobs[i].Key || b.Preview != blobs[i].Preview {
				t.Errorf("%s: %+v is read back as %+v", what, blobs[i].Ref, b.Ref)
			}
		}
		for _, key := range []string{"args", "output", "text"} {
			if shown := string(schema.Previews(small)); strings.Contains(shown, `"ref"`) != (what == "a reference of another's") {
				t.Errorf("%s: %s is shown as %.200s", what, key, shown)
			}
		}
	}
}

// The length at which a text is cut into pieces must not matter.
func TestPiecesOfATextFallOnBorders(t *testing.T) {
	for shift := range 40 {
		text := strings.Repeat("a", shift) + strings.Repeat("ä\U0001F600\n\"\x01\\", 25_000)
		var o schema.Object
		small, blobs := takeOut(t, string(o.Text("output", text).Bytes()))
		if len(blobs) != 1 || blobs[0].MediaType != schema.MediaText || string(bytesOf(t, blobs[0])) != text {
			t.Fatalf("shift %d: %.200s", shift, small)
		}
	}
}

func TestAPreviewHasBothEndsAndSaysWhatIsLeftOut(t *testing.T) {
	lines := make([]string, 60_000)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %06d", i)
	}
	text := strings.Join(lines, "\n")
	var o schema.Object
	_, blobs := takeOut(t, string(o.Text("output", text).Bytes()))
	p := blobs[0].Preview
	head, rest, ok := strings.Cut(p, "\n[… ")
	marker, tail, ok2 := strings.Cut(rest, " bytes left out …]\n")
	if !ok || !ok2 || !strings.HasPrefix(text, head) || !strings.HasSuffix(text, tail) || len(p) < 50<<10 {
		t.Fatalf("the preview has %d bytes, begins %.40q", len(p), p)
	}
	if want := fmt.Sprintf("%d of %d", len(text)-len(head)-len(tail), len(text)); marker != want {
		t.Errorf("it says %q, want %q", marker, want)
	}
}

func TestBlobsIsAReservedKey(t *testing.T) {
	ref := `{"ref":{"sha256":"` + strings.Repeat("a", 64) + `","bytes":1,"media_type":"text/plain"}}`
	for _, data := range []string{
		`{"blobs":[]}`, `{"text":"x","blobs":null}`, `{"text":` + ref + `,"blobs":["/text"]}`, `{"blob\u0073":["/text"],"text":` + ref + `}`,
	} {
		if _, _, err := schema.TakeOut([]byte(data)); !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%s: %v", data, err)
		}
	}
	if _, blobs, err := schema.TakeOut([]byte(`{"x":{"blobs":[]},"text":"blobs"}`)); err != nil || blobs != nil {
		t.Errorf("another blobs: %v", err)
	}
}

// What is taken out beforehand is the same as what is taken out of data.
func TestBlobsThatWereTakenBeforehand(t *testing.T) {
	text := strings.Repeat("some \"text\"\x01 ä\n", 20_000)
	value := jsontext.Value(`{"a":1e400,"b":"` + strings.Repeat("x", schema.MaxInline) + `"}`)
	var o schema.Object
	want, blobs := takeOut(t, string(o.Text("output", text).Uint("n", 1).Raw("structured", value).Bytes()))
	out, part := schema.TextBlob("output", text), schema.ValueBlob("structured", value)
	data := o.Blob(out).Uint("n", 1).Blob(part).Bytes()
	small, again, err := schema.TakeOut(data, *out, *part)
	if err != nil || !bytes.Equal(small, want) || len(again) != 2 || again[0].Ref != blobs[0].Ref || again[1].Ref != blobs[1].Ref {
		t.Errorf("taken beforehand: %v\n%.300s\nwant\n%.300s", err, small, want)
	}
	if string(bytesOf(t, again[0])) != text || string(bytesOf(t, again[1])) != string(value) {
		t.Error("the bytes are not those")
	}
	if schema.TextBlob("output", text[:1000]) != nil || schema.ValueBlob("structured", value[:1000]) != nil {
		t.Error("what fits is taken out")
	}
	for what, c := range map[string]struct {
		data  []byte
		taken []schema.Blob
	}{
		"no place":      {[]byte(`{"n":1}`), []schema.Blob{*out}},
		"one place":     {o.Blob(out).Bytes(), []schema.Blob{*out, *part}},
		"another value": {[]byte(`{"output":"x"}`), []schema.Blob{*out}},
		"not all":       {data, []schema.Blob{*out}},
	} {
		small, _, err := schema.TakeOut(c.data, c.taken...)
		if what == "not all" { // then it is a value like any other
			if blobs, e := schema.Refs(small); err != nil || e != nil || len(blobs) != 1 {
				t.Errorf("%s: %v, %v", what, err, e)
			}
		} else if !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStoredBlobsMustBePlaces(t *testing.T) {
	ref := func(edit ...string) string {
		return strings.NewReplacer(edit...).Replace(`{"ref":{"sha256":"` + strings.Repeat("a", 64) + `","bytes":7,"media_type":"text/plain"},"preview":"x"}`)
	}
	for data, ok := range map[string]bool{
		`{"text":` + ref() + `,"blobs":["/text"]}`:                                              true,
		`{"blobs":["/te\u0078t"],"text":` + ref() + `}`:                                         true,
		`{"text":` + ref(`,"preview":"x"`, ``) + `,"blobs":["/text"]}`:                          true,
		`{"text":` + ref(`"preview":"x"`, `"preview":{"a":1},"more":2`) + `,"blobs":["/text"]}`: true,
		`{"text":"x","blobs":[]}`:                                                               true,
		`{"text":"x","blobs":{}}`:                                                               false,
		`{"text":"x","blobs":[1]}`:                                                              false,
		`{"text":"x","blobs":["/text"]}`:                                                        false,
		`{"text":"x","blobs":["/output"]}`:                                                      false,
		`{"text":` + ref() + `,"blobs":["text"]}`:                                               false,
		`{"text":` + ref() + `,"blobs":["/text","/text"]}`:                                      false,
		`{"text":"x","name":` + ref() + `,"blobs":["/name"]}`:                                   false,
		`{"text":` + ref("aaaa", "AAAA") + `,"blobs":["/text"]}`:                                false,
		`{"text":` + ref(`":7`, `":-7`) + `,"blobs":["/text"]}`:                                 false,
		`{"text":` + ref(`":7`, `":"7"`) + `,"blobs":["/text"]}`:                                false,
	} {
		_, err := schema.Refs([]byte(data))
		if (err == nil) != ok || err != nil && !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%s: %v", data, err)
		}
		if got := schema.CheckData(schema.TypeUserMessage, []byte(data)); (got == nil) != ok {
			t.Errorf("CheckData of %s: %v", data, got)
		}
	}
	if err := schema.CheckData(schema.TypeUserMessage, []byte(`{"text":`+ref()+`}`)); err == nil {
		t.Error("an object that is not listed passes for a text")
	}
}

func TestABlobMustHoldWhatItsMediaTypeSays(t *testing.T) {
	for _, c := range []struct {
		media, bytes, want string
	}{
		{schema.MediaText, "a\n\"", `"a\n\""`},
		{schema.MediaText, "a\xff", ""},
		{schema.MediaJSON, `{"a":1e400}`, `{"a":1e400}`},
		{schema.MediaJSON, `{"a": 1}`, ""},
		{schema.MediaJSON, `{"a":1,"a":2}`, ""},
		{schema.MediaJSON, `"` + "\xff" + `"`, ""},
		{schema.MediaJSON, ``, ""},
		{"image/png", `1`, ""},
	} {
		r := schema.Ref{MediaType: c.media}
		v, err := r.Value([]byte(c.bytes))
		if string(v) != c.want && err == nil || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, schema.CorruptLogLine) {
			t.Errorf("%s %q: %q, %v", c.media, c.bytes, v, err)
		}
	}
}

func FuzzTakeOut(f *testing.F) {
	for _, seed := range []string{`{"text":"a\u0041\n","args":[1.0,"x"]}`, `{"output":"\ud800","blob":1}`, `{"item":{"ref":{}}}`, `{"patch":"\/"}`} {
		f.Add([]byte(seed), 0)
	}
	f.Fuzz(func(t *testing.T, src []byte, at int) {
		data, _, err := schema.Compact(nil, src, 1)
		if err != nil {
			return
		}
		// A value grows where a string begins.
		if quotes := bytes.Count(data, []byte(`:"`)); quotes > 0 {
			n := 0
			for range (at%quotes + quotes) % quotes {
				n += bytes.Index(data[n:], []byte(`:"`)) + 2
			}
			n += bytes.Index(data[n:], []byte(`:"`)) + 2
			grown := string(data[:n]) + strings.Repeat("long text\\n", 30_000) + string(data[n:])
			if data, _, err = schema.Compact(nil, []byte(grown), 1); err != nil {
				return
			}
		}
		if _, _, err := schema.TakeOut(data); err != nil {
			if !errors.Is(err, schema.InvalidArgs) {
				t.Fatal(err)
			}
			return
		}
		takeOut(t, string(data))
	})
}

func BenchmarkTakeOut(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 16 << 20} {
		var o schema.Object
		data := o.Text("output", strings.Repeat("some output\n", size/12)).Bytes()
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, _, err := schema.TakeOut(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
