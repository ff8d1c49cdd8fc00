package schema_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

func compact(t testing.TB, text string, level int) (string, int) {
	t.Helper()
	b, n, err := schema.Compact(nil, []byte(text), level)
	if err != nil {
		t.Fatalf("%.80q: %v", text, err)
	}
	return string(b), n
}

func TestCompactKeepsEveryByteButWhiteSpace(t *testing.T) {
	for in, want := range map[string]string{
		"1e400":                   "1e400",
		"-0":                      "-0",
		"1.0":                     "1.0",
		"12345678901234567890123": "12345678901234567890123",
		"1E+05":                   "1E+05",
		`"\u0061\/\u00E9\"\\"`:    `"\u0061\/\u00E9\"\\"`,
		"\"\u2028\u007f<&>\"":     "\"\u2028\u007f<&>\"",
		`"\ud83d\ude00"`:          `"\ud83d\ude00"`,
		" \t\r\n{ \"b\" :\n[ 1\t, 2 ]\r,\"a\": { } } ": `{"b":[1,2],"a":{}}`,
		`" a  b "`:                   `" a  b "`,
		`{"z":1,"a":2,"Z":3}`:        `{"z":1,"a":2,"Z":3}`,
		`[[],{},"",null,true,false]`: `[[],{},"",null,true,false]`,
		`{"":{"":{"":0}}}`:           `{"":{"":{"":0}}}`,
	} {
		if got, n := compact(t, in, 1); got != want || n != 0 {
			t.Errorf("%q: got %q, %d replaced", in, got, n)
		}
	}
}

func TestCompactAppends(t *testing.T) {
	dst := make([]byte, 0, 64)
	dst = append(dst, "before"...)
	got, _, err := schema.Compact(dst, []byte(" [ 1 ] "), 1)
	if err != nil || string(got) != "before[1]" || &got[0] != &dst[0] {
		t.Errorf("got %q, %v", got, err)
	}
	got, n, err := schema.Compact(dst, []byte("[\"\xff\", 2, x]"), 1)
	if err == nil || string(got) != "before" || n != 0 {
		t.Errorf("a refusal gives %q, %d, %v", got, n, err)
	}
}

// What counts as one replaced character: RFC 3629, one U+FFFD for each maximal
// subpart. The first rows are those of the Unicode standard, tables 3-8 to 3-11.
func TestBrokenTextIsReplacedOncePerMaximalSubpart(t *testing.T) {
	for _, c := range []struct {
		in, want string
		n        int
	}{
		{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", strings.Repeat("\uFFFD", 8) + "A", 8},
		{"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", strings.Repeat("\uFFFD", 8) + "A", 8},
		{"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", strings.Repeat("\uFFFD", 5) + "A\uFFFD\uFFFDB", 7},
		{"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", strings.Repeat("\uFFFD", 4) + "A", 4},
		{"\xFF", "\uFFFD", 1},
		{"\xC3", "\uFFFD", 1},
		{"\xC3(", "\uFFFD(", 1},
		{"\xE2\x82", "\uFFFD", 1},
		{"\xF0\x9F\x98", "\uFFFD", 1},
		{"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\U0001F600", 1},
		{"\xF4\x90\x80\x80", strings.Repeat("\uFFFD", 4), 4},
		{"\xF8\x88\x80\x80\x80", strings.Repeat("\uFFFD", 5), 5},
		{"\uFFFD", "\uFFFD", 0}, // one that was there before is not counted
		{"a\uFFFDb\xFFc", "a\uFFFDb\uFFFDc", 1},
	} {
		if got, n := compact(t, `["`+c.in+`"]`, 1); got != `["`+c.want+`"]` || n != c.n {
			t.Errorf("Compact of %q: got %q, %d replaced, want %q, %d", c.in, got, n, c.want, c.n)
		}
		if got, n := schema.ValidUTF8(c.in); got != c.want || n != c.n {
			t.Errorf("ValidUTF8 of %q: got %q, %d replaced, want %q, %d", c.in, got, n, c.want, c.n)
		}
	}
}

// begins reports whether some well-formed sequence begins with b.
func begins(b []byte) bool {
	ends := []byte{0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF}
	if r, n := utf8.DecodeRune(b); n == len(b) && (r != utf8.RuneError || n > 1) {
		return true
	}
	if len(b) >= 4 {
		return false
	}
	for _, c := range ends {
		if begins(append(b[:len(b):len(b)], c)) {
			return true
		}
	}
	return false
}

// maximalSubparts replaces by the definition: what cannot be decoded is, up to
// the longest part that could have begun a character, one U+FFFD.
func maximalSubparts(b []byte) (text string, replaced int) {
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			text, b = text+string(r), b[n:]
			continue
		}
		n := 1
		for n < len(b) && begins(b[:n+1]) {
			n++
		}
		text, replaced, b = text+"\uFFFD", replaced+1, b[n:]
	}
	return text, replaced
}

func TestReplacingFollowsTheDefinition(t *testing.T) {
	for a := range 256 {
		for b := range 256 {
			for _, more := range []string{"", "\x80", "\xBF", "a", "\x80\x80", "\xBF\xBF", "\x80a", "\xBF\xC0"} {
				in := string([]byte{byte(a), byte(b)}) + more
				want, n := maximalSubparts([]byte(in))
				if got, m := schema.ValidUTF8(in); got != want || m != n {
					t.Fatalf("%q: got %q, %d replaced, want %q, %d", in, got, m, want, n)
				}
			}
		}
	}
}

func TestEscapesAreReadToTheLastDigit(t *testing.T) {
	// A surrogate of each end of each half, after each other.
	units := []uint16{0x0000, 0xD7FF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0xFFFF}
	for _, a := range units {
		for _, b := range units {
			for _, form := range []string{`\u%04x\u%04x`, `\u%04X\u%04X`} {
				in := fmt.Sprintf(form, a, b)
				want := 0
				switch r := utf16.DecodeRune(rune(a), rune(b)); {
				case r != utf8.RuneError: // a pair
				default:
					for _, u := range []uint16{a, b} {
						if utf16.IsSurrogate(rune(u)) {
							want++
						}
					}
				}
				if got, n := compact(t, `"`+in+`"`, 1); n != want || n == 0 && got != `"`+in+`"` {
					t.Errorf("%s: got %s, %d replaced, want %d", in, got, n, want)
				}
			}
		}
	}
	for at := range 7 {
		for c := range 256 {
			b := []byte(`"\u00eF"`)
			b[at+1] = byte(c)
			_, n, err := schema.Compact(nil, b, 1)
			if want := jsontext.Value(b).IsValid(); (err == nil && n == 0) != want {
				t.Errorf("%q: %d replaced, %v", b, n, err)
			}
		}
	}
}

func TestLoneSurrogatesAreReplaced(t *testing.T) {
	for _, c := range []struct {
		in, want string
		n        int
	}{
		{`\ud800`, `\ufffd`, 1},
		{`\uDFFF`, `\ufffd`, 1},
		{`\ud800\ud800\udc00`, `\ufffd\ud800\udc00`, 1},
		{`\udc00\ud800`, `\ufffd\ufffd`, 2},
		{`\ud83d\uDE00`, `\ud83d\uDE00`, 0},
		{`\ud83dx\ude00`, `\ufffdx\ufffd`, 2},
		{`\ud83d\u0041`, `\ufffd\u0041`, 1},
		{`\ud83d\\ude00`, `\ufffd\\ude00`, 1},
		{`\ud83d\nDE00`, `\ufffd\nDE00`, 1},
		{`\ud83dxuDE00`, `\ufffdxuDE00`, 1},
		{`\\ud83d`, `\\ud83d`, 0},
		{`\ufffd`, `\ufffd`, 0},
		{`a\ud800` + "\xff", `a\ufffd` + "\uFFFD", 2},
	} {
		if got, n := compact(t, `{"`+c.in+`":"`+c.in+`"}`, 1); got != `{"`+c.want+`":"`+c.want+`"}` || n != 2*c.n {
			t.Errorf("%q: got %q, %d replaced", c.in, got, n)
		}
	}
}

// The two ways into the log count alike, and neither leaves anything broken.
func TestValidUTF8AndCompactAgreeOnRandomBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	lead := []byte{0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0x80, 0x90, 0xA0, 0xBF, 0xFF, 'a'}
	for range 20000 {
		b := make([]byte, r.IntN(8))
		for i := range b {
			b[i] = lead[r.IntN(len(lead))]
		}
		text, n := schema.ValidUTF8(string(b))
		got, m := compact(t, `"`+string(b)+`"`, 1)
		if got != `"`+text+`"` || n != m || !utf8.ValidString(text) {
			t.Fatalf("%q: %q with %d, and %q with %d", b, text, n, got, m)
		}
		if n == 0 != utf8.Valid(b) || n > len(b) {
			t.Fatalf("%q: %d replaced", b, n)
		}
	}
}

func TestRefusalsSayWhyAndWhere(t *testing.T) {
	for _, c := range []struct {
		in     string
		reason schema.Reason
		offset int
	}{
		{``, schema.InvalidJSON, 0},
		{`  `, schema.InvalidJSON, 2},
		{`{"a":1}x`, schema.InvalidJSON, 7},
		{`{"a":1} {}`, schema.InvalidJSON, 8},
		{`{"a":1,}`, schema.InvalidJSON, 7},
		{`{"a":1`, schema.InvalidJSON, 6},
		{`{"a" 1}`, schema.InvalidJSON, 5},
		{`{a:1}`, schema.InvalidJSON, 1},
		{`[1,]`, schema.InvalidJSON, 3},
		{`[1 2]`, schema.InvalidJSON, 3},
		{`[`, schema.InvalidJSON, 1},
		{`]`, schema.InvalidJSON, 0},
		{`"a`, schema.InvalidJSON, 2},
		{"\"a\nb\"", schema.InvalidJSON, 2},
		{"\"\x00\"", schema.InvalidJSON, 1},
		{"\"\x1f\"", schema.InvalidJSON, 1},
		{`"\x"`, schema.InvalidJSON, 1},
		{`"\u12G4"`, schema.InvalidJSON, 1},
		{`"\`, schema.InvalidJSON, 1},
		{`"\u1`, schema.InvalidJSON, 1},
		{"\xEF\xBB\xBF{}", schema.InvalidJSON, 0},
		{"\xff", schema.InvalidJSON, 0},
		{"NaN", schema.InvalidJSON, 0},
		{"-Infinity", schema.InvalidJSON, 1},
		{"nulL", schema.InvalidJSON, 0},
		{"\x00", schema.InvalidJSON, 0},
		{"\v1", schema.InvalidJSON, 0},
		{"\u00A01", schema.InvalidJSON, 0},
		{"// x\n1", schema.InvalidJSON, 0},
		{`{"a":1,"b":{"c":1,"c":2}}`, schema.DuplicateKey, 18},
		{`{"a":1,"\u0061":2}`, schema.DuplicateKey, 7},
		{`{"":1,"":2}`, schema.DuplicateKey, 6},
		// Two keys that were different bytes are one key once they are stored.
		{"{\"\xff\":1,\"\xfe\":2}", schema.DuplicateKey, 7},
		{"{\"\xe2\x82\":1,\"\uFFFD\":2}", schema.DuplicateKey, 8},
		{`{"\ud800":1,"\ud801":2}`, schema.DuplicateKey, 12},
		{`{"\ud800":1,"\ufffd":2}`, schema.DuplicateKey, 12},
		// An object that never ends is no object with a key twice.
		{`{"a":1,"a":2`, schema.InvalidJSON, 12},
		{`{"a":1,"a":2]`, schema.InvalidJSON, 12},
		{`{"a":1,"a":2}}`, schema.DuplicateKey, 7},
	} {
		_, _, err := schema.Compact(nil, []byte(c.in), 1)
		if !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		d := schema.AsError(err).Details
		if d["reason"] != string(c.reason) || d["offset"] != c.offset {
			t.Errorf("%q: got %v at %v, want %s at %d", c.in, d["reason"], d["offset"], c.reason, c.offset)
		}
	}
}

func TestKeysDifferByTheirText(t *testing.T) {
	for _, in := range []string{`{"a":1,"A":2}`, `{"a":{"a":{"a":1}}}`, `[{"a":1},{"a":1}]`, `{"a":1,"a ":2,"":3}`,
		"{\"\u00e9\":1,\"e\u0301\":2}", // one letter for people, two keys for programs
		"{\"\xff\":1,\"\xff\xff\":2}", `{"\\u0061":1,"a":2}`} {
		if _, _, err := schema.Compact(nil, []byte(in), 1); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// Keys are compared one by one, then through a map; the first few of all open
// objects lie in one place, the others elsewhere. Every border is crossed here.
func TestDuplicateKeyIsFoundHoweverManyKeysThereAre(t *testing.T) {
	object := func(from, to int) string {
		var b strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, `,"k%d":%d`, i, i)
		}
		return b.String()
	}
	for n := 1; n <= 80; n++ {
		inner := `{` + object(0, n)[1:] + `}`
		if _, _, err := schema.Compact(nil, []byte(inner), 1); err != nil {
			t.Fatalf("%d keys: %v", n, err)
		}
		for _, twice := range []int{0, n / 2, n - 1} {
			again := fmt.Sprintf(`,"k%d":0}`, twice)
			for form, text := range map[string]string{
				"alone":             inner[:len(inner)-1] + again,
				"behind an object":  inner[:len(inner)-1] + `,"o":` + inner + again,
				"inside an object":  `{"x":[` + inner[:len(inner)-1] + again + `]}`,
				"inside the same":   inner[:len(inner)-1] + `,"o":` + inner[:len(inner)-1] + again + `}`,
				"with many escapes": inner[:len(inner)-1] + strings.Replace(again, "k", `\u006b`, 1),
			} {
				_, _, err := schema.Compact(nil, []byte(text), 1)
				if err == nil || schema.AsError(err).Details["reason"] != string(schema.DuplicateKey) {
					t.Errorf("%d keys, key %d again, %s: %v", n, twice, form, err)
				}
			}
		}
		// The same keys in objects inside each other and side by side are fine.
		for _, text := range []string{
			inner[:len(inner)-1] + `,"o":` + inner + `}`,
			`[` + inner + `,` + inner + `]`,
			inner[:len(inner)-1] + `,"o":[` + inner + `,` + inner + `],"p":` + inner + object(n, n+5) + `}`,
		} {
			if _, _, err := schema.Compact(nil, []byte(text), 1); err != nil {
				t.Errorf("%d keys: %v in %s", n, err, text)
			}
		}
	}
}

func TestDepthIsCountedFromData(t *testing.T) {
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	mixed := func(n int) string {
		return strings.Repeat(`[{"a":`, n/2) + strings.Repeat("[", n%2) + strings.Repeat("]", n%2) + strings.Repeat("}]", n/2)
	}
	for _, c := range []struct {
		depth, level int
		ok           bool
	}{{249, 1, true}, {250, 1, true}, {251, 1, false}, {248, 2, true}, {249, 2, true}, {250, 2, false}, {251, 2, false}, {100000, 1, false}} {
		for _, text := range []string{arrays(c.depth), objects(c.depth), mixed(c.depth)} {
			if c.depth%2 == 0 && strings.Contains(text, "[{") {
				text = strings.Replace(text, ":}", ":1}", 1)
			}
			_, _, err := schema.Compact(nil, []byte(text), c.level)
			if ok := err == nil; ok != c.ok {
				t.Errorf("%d deep at level %d: %v", c.depth, c.level, err)
			}
			if err != nil && schema.AsError(err).Details["reason"] != string(schema.TooDeep) {
				t.Errorf("%d deep at level %d: %v", c.depth, c.level, schema.AsError(err).Details)
			}
		}
	}
	// Side by side is not deep, and brackets in text are text.
	for _, text := range []string{`[` + strings.Repeat("[],", 1000) + `1]`, `"` + strings.Repeat("[", 1000) + `"`} {
		if _, _, err := schema.Compact(nil, []byte(text), 1); err != nil {
			t.Errorf("%.20s: %v", text, err)
		}
	}
}

// What the door has accepted at its level stands in a line that reads back.
func TestWhatCompactAcceptsCanBeStored(t *testing.T) {
	deep := strings.Repeat(`[`, 249)
	for _, in := range []string{deep + strings.Repeat("]", 249), " { \"a\" : [ \"\xff\" , \"\\ud800\" ] } ", `"\u0000"`, "1e400"} {
		v, _, err := schema.Compact(nil, []byte(in), 2)
		if err != nil {
			t.Fatal(err)
		}
		var o schema.Object
		e := sample()
		e.Data = o.Raw("args", v).Bytes()
		var got schema.Event
		if err := got.Decode(line(&e)); err != nil {
			t.Errorf("%.40q: %v", in, err)
		}
	}
}

func TestArgumentsAreEqualByMeaningButNumbersByText(t *testing.T) {
	sum := func(text string) string {
		v, _ := compact(t, text, 2)
		s, err := schema.ArgsSHA256([]byte(v))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return s
	}
	for _, same := range [][]string{
		{`{"a":1,"b":[{"x":1,"y":2}]}`, `{ "b" : [{"y":2,"x":1}], "a":1 }`},
		{`{"é":"/"}`, `{"\u00e9":"\/"}`},
		{`"😀"`, `"\ud83d\ude00"`},
		{`{"x":"\u001f"}`, `{"x":"\u001F"}`},
	} {
		if sum(same[0]) != sum(same[1]) {
			t.Errorf("%s and %s differ", same[0], same[1])
		}
	}
	for _, other := range [][]string{
		{`{"a":1}`, `{"a":1.0}`}, {`1e2`, `100`}, {`0`, `-0`}, {`1E2`, `1e2`}, {`[1,2]`, `[2,1]`}, {`{"a":"1"}`, `{"a":1}`},
		{"\"\u00e9\"", "\"e\u0301\""}, {`12345678901234567890123`, `12345678901234567890124`}, {`{"a":null}`, `{}`},
	} {
		if sum(other[0]) == sum(other[1]) {
			t.Errorf("%s and %s are one", other[0], other[1])
		}
	}
}

func TestCanonicalFormOfItselfIsItself(t *testing.T) {
	for _, r := range vectors(t, "canonical.txt") {
		c := raw(t, strings.Split(r.text, "\t")[1])
		got, err := schema.CanonicalArgs(c)
		if err != nil || string(got) != string(c) {
			t.Errorf("%s became %s, %v", c, got, err)
		}
		again, n, err := schema.Compact(nil, c, 2)
		if err != nil || n != 0 || string(again) != string(c) {
			t.Errorf("%s is not compact: %s, %v", c, again, err)
		}
	}
}

func TestWhatIsNoJSONHasNoCanonicalForm(t *testing.T) {
	for _, in := range []string{"", "{", `{"a":1,"a":2}`, "nul", "\"\xff\""} {
		if _, err := schema.CanonicalArgs([]byte(in)); !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("CanonicalArgs of %q: %v", in, err)
		}
		if s, err := schema.ArgsSHA256([]byte(in)); !errors.Is(err, schema.InvalidArgs) || s != "" {
			t.Errorf("ArgsSHA256 of %q: %q, %v", in, s, err)
		}
	}
}
