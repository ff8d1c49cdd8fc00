package schema_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"steno/schema"
)

// examples are values of each kind that the page of the format names.
var examples = map[string][]string{
	"text":   {`"x"`, `"\u0041"`, `" "`},
	"number": {`0`, `7`, `9223372036854775807`},
	"bool":   {`true`, `false`},
	"object": {`{}`, `{"a":[1]}`},
	"array":  {`[]`, `[{"a":1}]`},
	"any":    {`null`, `1e400`, `-1`, `"x"`, `{}`, `[]`, `true`},
}

// others are values that are none of the kind.
var others = map[string][]string{
	"text":   {`null`, `1`, `true`, `{}`, `["x"]`},
	"number": {`null`, `-1`, `-0`, `1.0`, `1e2`, `"1"`, `9223372036854775808`, `[1]`, `{}`, `true`},
	"bool":   {`null`, `0`, `1`, `"true"`, `[]`},
	"object": {`null`, `[]`, `"{}"`, `1`, `false`},
	"array":  {`null`, `{}`, `"[]"`, `1`, `false`},
}

// fixed are the fields that take only certain values.
var fixed = map[string][]string{
	"permission_decision.by":       {"policy", "human", "grant", "auto"},
	"permission_decision.decision": {"allow", "deny"},
	"session_ended.outcome":        {"completed", "failed", "partial", "cancelled"},
	"writer_opened.how":            {"new", "resumed", "takeover", "forced", "roll", "repair"},
}

func example(r typeRow, key string) string {
	if v := fixed[r.typ+"."+key]; v != nil {
		return `"` + v[0] + `"`
	}
	return examples[r.all[key]][0]
}

// data is the least data that a type may have, with some keys in other forms
// ("" leaves one out).
func data(r typeRow, change map[string]string) []byte {
	var o schema.Object
	keys := slices.Clone(r.mandatory)
	if r.oneOf != nil {
		keys = append(keys, r.oneOf[0])
	}
	for _, k := range slices.Sorted(maps.Keys(change)) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		v, changed := change[k]
		if !changed {
			v = example(r, k)
		}
		if v != "" {
			o.Raw(k, []byte(v))
		}
	}
	return o.Bytes()
}

func refused(t *testing.T, typ string, data []byte, pointer string) {
	t.Helper()
	err := schema.CheckData(typ, data)
	if !errors.Is(err, schema.InvalidArgs) {
		t.Errorf("%s %s: %v", typ, data, err)
		return
	}
	if got := schema.AsError(err).Details["pointer"]; got != pointer {
		t.Errorf("%s %s: the pointer is %v, want %s", typ, data, got, pointer)
	}
}

func TestDataOfEveryTypeIsCheckedAsThePageSays(t *testing.T) {
	for _, r := range eventTable(t) {
		t.Run(r.typ, func(t *testing.T) {
			if !schema.KnownType(r.typ) || !schema.ValidType(r.typ) || schema.IsOwn(r.typ) {
				t.Error("not a known type")
			}
			least := data(r, nil)
			if err := schema.CheckData(r.typ, least); err != nil {
				t.Fatalf("the least data %s: %v", least, err)
			}
			for _, k := range r.mandatory {
				refused(t, r.typ, data(r, map[string]string{k: ""}), "/data/"+k)
			}
			for k, kind := range r.all {
				good := examples[kind]
				if k == "blobs" { // a list of places; see blob_test.go
					good = []string{"[]"}
				}
				if v := fixed[r.typ+"."+k]; v != nil {
					good = nil
					for _, v := range v {
						good = append(good, `"`+v+`"`)
					}
					refused(t, r.typ, data(r, map[string]string{k: `"other"`}), "/data/"+k)
					refused(t, r.typ, data(r, map[string]string{k: `"` + strings.ToUpper(v[0]) + `"`}), "/data/"+k)
				}
				for _, v := range good {
					if err := schema.CheckData(r.typ, data(r, map[string]string{k: v})); err != nil {
						t.Errorf("%s is %s: %v", k, v, err)
					}
				}
				for _, v := range others[kind] {
					refused(t, r.typ, data(r, map[string]string{k: v}), "/data/"+k)
				}
				if kind == "text" && fixed[r.typ+"."+k] == nil {
					d := data(r, map[string]string{k: `""`})
					if r.required[k] != "" {
						refused(t, r.typ, d, "/data/"+k)
					} else if err := schema.CheckData(r.typ, d); err != nil {
						t.Errorf("%s is empty: %v", k, err)
					}
				}
			}
			if r.oneOf != nil {
				refused(t, r.typ, data(r, map[string]string{r.oneOf[0]: ""}), "/data/"+r.oneOf[0]+" or "+r.oneOf[1])
				for _, k := range r.oneOf {
					if err := schema.CheckData(r.typ, data(r, map[string]string{r.oneOf[0]: "", k: example(r, k)})); err != nil {
						t.Errorf("with %s alone: %v", k, err)
					}
				}
			}
			// Types grow: what is not known is kept and ignored.
			if err := schema.CheckData(r.typ, data(r, map[string]string{"later": `{"x":[null]}`, "CALL_ID": "7", "ſeq": "[]"})); err != nil {
				t.Errorf("with foreign keys: %v", err)
			}
			for _, v := range []string{"", "null", "[]", `"x"`, "1"} {
				refused(t, r.typ, []byte(v), "/data")
			}
			for _, v := range []string{"{", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`} {
				if err := schema.CheckData(r.typ, []byte(v)); !errors.Is(err, schema.InvalidArgs) {
					t.Errorf("%s: %v", v, err)
				}
			}
		})
	}
}

func TestKeysOfDataMatchExactly(t *testing.T) {
	// As a key: another spelling of the same text is that key, another case is not.
	if err := schema.CheckData("writer_released", []byte(`{"\u0072eason":"x"}`)); err != nil {
		t.Errorf("an escaped key: %v", err)
	}
	refused(t, "writer_released", []byte(`{"REASON":"x"}`), "/data/reason")
	refused(t, "writer_released", []byte(`{"\u0072eason":7}`), "/data/reason")
}

func TestDataOfForeignTypesIsNotLookedAt(t *testing.T) {
	for _, typ := range []string{"x.mine", "x.a.b", "later_type"} {
		for _, d := range []string{`null`, `"text"`, `[]`, `{"call_id":7}`} {
			if err := schema.CheckData(typ, []byte(d)); err != nil {
				t.Errorf("%s %s: %v", typ, d, err)
			}
		}
		if schema.KnownType(typ) {
			t.Errorf("%s is known", typ)
		}
	}
	for _, typ := range []string{"", "x.", "Note", "a b", "../x", strings.Repeat("a", 65)} {
		if err := schema.CheckData(typ, []byte(`{}`)); !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%q: %v", typ, err)
		}
	}
}

func TestAppendable(t *testing.T) {
	live := []string{"text_delta", "reasoning_delta", "tool_progress", "status", "plan", "context_pressure"}
	agent := []string{"user_message", "assistant_message", "reasoning", "state_changed", "usage", "turn_failed",
		"history_compaction", "history_rewind", "note"}
	for _, typ := range live {
		if err := schema.Appendable(typ); !errors.Is(err, schema.EphemeralNotLoggable) {
			t.Errorf("%s: %v", typ, err)
		}
		if err := schema.CheckData(typ, []byte(`{}`)); !errors.Is(err, schema.EphemeralNotLoggable) {
			t.Errorf("CheckData of %s: %v", typ, err)
		}
		if schema.KnownType(typ) {
			t.Errorf("%s is a type of the log", typ)
		}
	}
	for _, typ := range append([]string{"x.mine", "x.a.b_c.1"}, agent...) {
		if err := schema.Appendable(typ); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
	}
	for _, typ := range types(t) {
		if err := schema.Appendable(typ); slices.Contains(agent, typ) != (err == nil) || err != nil && !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%s: %v", typ, err)
		}
	}
	for _, typ := range []string{"", "x.", "x", "x..y", "x.A", "X.a", "later_type", "note\n", "x." + strings.Repeat("a", 63), "\x1b[31m"} {
		if err := schema.Appendable(typ); !errors.Is(err, schema.InvalidArgs) || !printable(err.Error()) {
			t.Errorf("%q: %v", typ, err)
		}
	}
}

func TestUnmarshalMatchesKeysExactlyAndKeepsBrokenEscapes(t *testing.T) {
	var s schema.Seal
	const d = `{"claim":"c","CLAIM":"d","how":"new","later":1,"previous":{"epoch":1,"seq":2,"sum":"` +
		"0000000000000000000000000000000000000000000000000000000000000000" + `"},"void":[3,18446744073709551615],"evidence":{"reason":"half \ud800"}}`
	if err := schema.Unmarshal([]byte(d), &s); err != nil {
		t.Fatal(err)
	}
	if s.Claim != "c" || s.How != schema.HowNew || s.Previous == nil || s.Previous.Seq != 2 || s.Previous.Len != nil || s.Previous.Size != nil ||
		!slices.Equal(s.Void, []uint64{3, 1<<64 - 1}) || s.Evidence.Reason != "half \uFFFD" {
		t.Errorf("got %+v", s)
	}
	for _, bad := range []string{"", " ", "{", `{"claim":7}`, `{"carried":1.5}`, `{"previous":{"sum":"AB"}}`, `{"void":[-1]}`, `[]`} {
		err := schema.Unmarshal([]byte(bad), new(schema.Seal))
		if !errors.Is(err, schema.InvalidArgs) || strings.Contains(err.Error(), "json") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSealReadsBack(t *testing.T) {
	n, m := int64(7), int64(9)
	for _, s := range []schema.Seal{
		{Claim: "c", How: schema.HowNew},
		{Claim: "c", How: schema.HowRoll, Previous: &schema.Previous{Epoch: 1, Len: &n, Size: &m, Seq: 4, Sum: schema.Sum{1}}},
		{Claim: "c", How: schema.HowTakeover, Previous: &schema.Previous{Epoch: 1, Seq: 4}, Carried: 2, Void: []uint64{2}},
		{Claim: "c", How: schema.HowForced, Previous: &schema.Previous{Epoch: 3, Seq: 4}, Void: []uint64{4, 5, 6},
			Evidence: &schema.Evidence{State: "ambiguous", Observed: "lock held", By: "op \"x\"", Reason: "looked\n\xff"}},
	} {
		d := s.Data()
		if err := schema.CheckData(schema.TypeWriterOpened, d); err != nil {
			t.Errorf("%s: %v", d, err)
		}
		if again, k, err := schema.Compact(nil, d, 1); err != nil || k != 0 || string(again) != string(d) {
			t.Errorf("%s is not compact: %v", d, err)
		}
		var back schema.Seal
		if err := schema.Unmarshal(d, &back); err != nil {
			t.Errorf("%s: %v", d, err)
		}
		if string(back.Data()) != string(d) {
			t.Errorf("%s became %s", d, back.Data())
		}
		if back.How != s.How || back.Carried != s.Carried || !slices.Equal(back.Void, s.Void) || (back.Previous == nil) != (s.Previous == nil) || (back.Evidence == nil) != (s.Evidence == nil) {
			t.Errorf("%+v became %+v", s, back)
		}
	}
}

// One of the two says nothing without the other.
func TestSealOfAStreamStoreHasNeitherLenNorSize(t *testing.T) {
	n := int64(7)
	for _, p := range []schema.Previous{{Epoch: 1, Seq: 4}, {Epoch: 1, Seq: 4, Len: &n}, {Epoch: 1, Seq: 4, Size: &n}} {
		s := schema.Seal{Claim: "c", How: schema.HowRoll, Previous: &p}
		want := `{"claim":"c","how":"roll","previous":{"epoch":1,"seq":4,"sum":"` + strings.Repeat("0", 64) + `"}}`
		if got := string(s.Data()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestObjectIsCompactJSONInTheOrderOfItsKeys(t *testing.T) {
	var o schema.Object
	if got := string(o.Bytes()); got != "{}" {
		t.Errorf("an empty object is %s", got)
	}
	got := string(o.Text("z", "a\"\\\n\x00é<&>\u2028").Raw("a", []byte(`[1e400]`)).Uint("n", 1<<64-1).Bool("t", true).Bool("f", false).Text("\x01\"", "\xe2\x82\xff").Bytes())
	want := `{"z":"a\"\\\n\u0000é<&>` + "\u2028" + `","a":[1e400],"n":18446744073709551615,"t":true,"f":false,"\u0001\"":"` + "\uFFFD\uFFFD" + `"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// It is empty again, and does not write over what it gave away.
	if more := string(o.Uint("x", 1).Bytes()); more != `{"x":1}` || got != want {
		t.Errorf("used again: %s, %s", more, got)
	}
}
