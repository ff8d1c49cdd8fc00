package replay_test

import (
	"maps"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// FuzzFold folds events of any type with any data that a door lets in. What
// Check accepts Apply must take, and the state must always have its one
// encoding; what the fold reads of data must be what a JSON decoder reads.
func FuzzFold(f *testing.F) {
	for _, e := range whole().events {
		f.Add(e.Type, string(e.Data))
	}
	f.Add("user_message", `{"text":"\"}{","a":[{"b":"]"}],"call\u005fid":"x"}`)
	f.Add("usage", `{"model":"","tokens":{"a":18446744073709551615,"b":-1}}`)
	f.Add("state_changed", `{"patch":{"":{"":null}},"to":1e1}`)
	keys := []string{"call_id", "patch", "tokens", "to", "by", "reason", "error", "labels"}
	f.Fuzz(func(t *testing.T, typ, text string) {
		if !schema.ValidType(typ) {
			return
		}
		raw, _, err := schema.Compact(nil, []byte(text), 1)
		if err != nil {
			_, _ = replay.Fields([]byte(text), keys...) // must not panic
			return
		}
		var by map[string]jsontext.Value
		want := map[string]string{}
		decoded := json.Unmarshal(raw, &by) == nil && raw[0] == '{'
		for _, k := range keys {
			if v, ok := by[k]; ok {
				want[k] = string(v)
			}
		}
		got, err := replay.Fields(raw, keys...)
		if decoded != (err == nil) || decoded && !maps.Equal(got, want) {
			t.Errorf("of %s the fold reads %v, %v; a decoder %v", raw, got, err, want)
		}

		var l log
		s := fold(t, replay.New(), l.add(call("a"), started("a", 1), failed("a", "interrupted", "")))
		e := l.add(entry{typ, string(raw)})
		if s.Check(e) != nil {
			return
		}
		s.Apply(&e[0])
		first := s.Digest()
		if s.Head != e[0].Head() || s.Digest() != first {
			t.Errorf("the state after %s %s has no one encoding", typ, raw)
		}
	})
}
