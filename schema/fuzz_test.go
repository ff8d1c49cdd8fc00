package schema_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// sound asks another parser whether b is JSON.
func sound(b []byte, opts ...jsontext.Options) bool {
	return jsontext.Value(b).IsValid(opts...)
}

// FuzzDecode: what decodes encodes to the same bytes, and the reason of what
// does not is one that another JSON parser agrees with.
func FuzzDecode(f *testing.F) {
	var before [][]byte
	for _, r := range vectors(f, "log.txt") {
		before = append(before, raw(f, r.text))
		f.Add(raw(f, r.text))
	}
	for _, r := range vectors(f, "lines.txt") {
		_, text, _ := strings.Cut(r.text, " ")
		f.Add(raw(f, text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		judge(t, b)
		// With a sum that fits, more of what follows is reached.
		if len(b) > 74 {
			if got := judge(t, reseal(b)); got == string(schema.SumMismatch) {
				t.Errorf("a fresh sum does not fit: %q", reseal(b))
			}
		}
		// What the lines before were changes nothing.
		var used, fresh schema.Event
		for _, line := range append(before[:len(before):len(before)], b, b) {
			got, want := used.DecodeTrusted(line), fresh.DecodeTrusted(line)
			if got != want || want == nil && string(used.Append(nil)) != string(fresh.Append(nil)) {
				t.Errorf("after other lines %q is %v, %+v, and alone %v, %+v", line, got, used, want, fresh)
			}
			fresh = schema.Event{}
		}
	})
}

func judge(t *testing.T, b []byte) string {
	t.Helper()
	got := reason(t, b)
	// Half a surrogate pair is no fault of a stored line, but one for jsontext.
	lax := jsontext.AllowInvalidUTF8(true)
	unique, valid := sound(b, lax), sound(b, lax, jsontext.AllowDuplicateNames(true))
	switch schema.Reason(got) {
	case "ok", schema.NotAnObject, schema.BadEnvelope, schema.SumMismatch, schema.Reason(schema.UnsupportedSchemaVersion):
		if !unique {
			t.Errorf("%s, but it is no JSON: %q", got, b)
		}
	case schema.InvalidJSON, schema.GluedLines:
		if valid {
			t.Errorf("%s, but it is JSON: %q", got, b)
		}
	case schema.DuplicateKey:
		if unique {
			t.Errorf("%s, but no key stands twice: %q", got, b)
		}
	case schema.NULBytes, schema.InvalidUTF8, schema.TooDeep, schema.OverLimit:
	default:
		t.Errorf("no reason of a line: %s", got)
	}
	return got
}

// FuzzDecodeClaim: what decodes is of the place that was asked for, has the
// sum of its bytes, and reads the same once it is written again.
func FuzzDecodeClaim(f *testing.F) {
	for _, r := range vectors(f, "claims.txt") {
		w := strings.SplitN(r.text, " ", 4)
		n, err := strconv.ParseUint(w[2], 10, 64)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw(f, w[3]), w[1], n)
	}
	f.Fuzz(func(t *testing.T, b []byte, session string, epoch uint64) {
		lines := [][]byte{b}
		if len(b) > 74 {
			lines = append(lines, reseal(b))
		}
		for _, b := range lines {
			c, err := schema.DecodeClaim(b, session, epoch)
			if err != nil {
				if r := refusal(t, err); r != "claim_corrupt" && r != "unsupported_schema_version" || c != (schema.Claim{}) {
					t.Errorf("%s with %+v", r, c)
				}
				continue
			}
			sum := sha256.Sum256(b[:len(b)-74])
			if c.Session != session || !schema.ValidSession(session) || c.Epoch != epoch || epoch == 0 || c.Sum != sum ||
				string(b[len(b)-74:]) != `,"sum":"`+hex.EncodeToString(sum[:])+`"}` {
				t.Errorf("got %+v from %q", c, b)
			}
			if !sound(b, jsontext.AllowInvalidUTF8(true)) {
				t.Errorf("no JSON: %q", b)
			}
			w, err := c.Append(nil)
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			back, err := schema.DecodeClaim(w[:len(w)-1], session, epoch)
			if err != nil || back != c {
				t.Errorf("%+v came back as %+v, %v", c, back, err)
			}
		}
	})
}

// FuzzCompact compares with another implementation: both accept the same
// texts, and give the same bytes.
func FuzzCompact(f *testing.F) {
	for _, r := range vectors(f, "door.txt") {
		text, _, _ := strings.Cut(r.text, "\t")
		f.Add(raw(f, text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out, n, err := schema.Compact(nil, b, 1)
		if err != nil {
			reason, _ := schema.AsError(err).Details["reason"].(string)
			if len(out) > 0 || n != 0 || schema.KindOf(err) != schema.InvalidArgs || reason == "" {
				t.Errorf("%q: refused with %q, %d, %v", b, out, n, err)
			}
			if sound(b) && reason != string(schema.TooDeep) {
				t.Errorf("%q: %v, but it is JSON", b, err)
			}
			if reason == string(schema.TooDeep) && strings.Count(string(b), "[")+strings.Count(string(b), "{") <= schema.MaxDepth {
				t.Errorf("%q: too deep", b)
			}
			return
		}
		if sound(b) != (n == 0) || !sound(b, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) {
			t.Errorf("%q: accepted with %d replaced", b, n)
		}
		if n == 0 {
			want := jsontext.Value(append([]byte(nil), b...))
			if err := want.Compact(); err != nil || string(want) != string(out) {
				t.Errorf("%q: got %q, want %q, %v", b, out, want, err)
			}
		}
		if !sound(out) {
			t.Errorf("%q: made %q, which is no JSON", b, out)
		}
		again, m, err := schema.Compact(nil, out, 1)
		if err != nil || m != 0 || string(again) != string(out) {
			t.Errorf("%q: once %q, twice %q, %d, %v", b, out, again, m, err)
		}
		canon, err := schema.CanonicalArgs(out)
		if err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if c, err := schema.CanonicalArgs(canon); err != nil || string(c) != string(canon) {
			t.Errorf("%q: canonical %q, then %q, %v", out, canon, c, err)
		}
		sum := sha256.Sum256(canon)
		if got, err := schema.ArgsSHA256(out); err != nil || got != hex.EncodeToString(sum[:]) {
			t.Errorf("%q: args_sha256 %s, %v, is not that of %q", out, got, err, canon)
		}
		if c, m, err := schema.Compact(nil, canon, 1); err != nil || m != 0 || string(c) != string(canon) {
			t.Errorf("%q: the canonical form %q is not compact: %q, %v", out, canon, c, err)
		}
	})
}

// FuzzText: a text is written as another implementation writes it.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "\xc3\xa9\xf0\x9f\x98\x80\u2028", "a\"", "a\\", "\x00\n\x7f", "\xff", "\xed\xa0\x80", "eight by8 \"tes"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		valid, _ := schema.ValidUTF8(s)
		want, err := jsontext.AppendQuote(nil, valid)
		var o schema.Object
		if got := o.Text("k", s).Bytes(); err != nil || string(got) != `{"k":`+string(want)+`}` {
			t.Errorf("%q is written as %s, want %s, %v", s, got, want, err)
		}
	})
}

// FuzzSeal: whatever stands in a seal, what is read of it is written as
// canonical JSON that reads the same.
func FuzzSeal(f *testing.F) {
	length := int64(7)
	for _, s := range []schema.Seal{
		{Claim: "c", How: schema.HowNew},
		{Claim: "c", How: schema.HowForced, Void: []uint64{2, 3}, Previous: &schema.Previous{Epoch: 1, Len: &length, Size: &length, Seq: 9},
			Evidence: &schema.Evidence{State: "active", Observed: "o", By: "b", Reason: "r"}},
		{Claim: "c", How: schema.HowRepair, Carried: 1, Skipped: []schema.Skipped{{Epoch: 1, Line: 2, Lines: 1, Offset: 3, Bytes: 4, SHA256: "s", Reason: schema.SumMismatch, Next: 5}}},
	} {
		f.Add(s.Data())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, back schema.Seal
		if schema.Unmarshal(b, &s) != nil {
			return
		}
		data := s.Data()
		if err := schema.Unmarshal(data, &back); err != nil {
			t.Fatalf("%q became %q: %v", b, data, err)
		}
		if again := back.Data(); string(again) != string(data) {
			t.Errorf("%q became %q, then %q", b, data, again)
		}
		if !sound(data) {
			t.Errorf("%q became %q, which is no JSON", b, data)
		}
	})
}
