package replay_test

import (
	"fmt"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
)

func TestMergePatchAsInRFC7396(t *testing.T) {
	// Appendix A, and the example of section 3, with keys sorted.
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"title":"Goodbye!","author":{"givenName":"John","familyName":"Doe"},"tags":["example","sample"],"content":"This will be unchanged"}`,
			`{"title":"Hello!","phoneNumber":"+01-123-456-7890","author":{"familyName":null},"tags":["example"]}`,
			`{"author":{"givenName":"John"},"content":"This will be unchanged","phoneNumber":"+01-123-456-7890","tags":["example"],"title":"Hello!"}`},
	} {
		p := replay.PatchOf(jsontext.Value(c[0]))
		p.Merge(jsontext.Value(c[1]))
		got, err := json.Marshal(p)
		if err != nil || string(got) != c[2] {
			t.Errorf("%s patched with %s is %s, %v; want %s", c[0], c[1], got, err, c[2])
		}
	}
}

func TestTheWorkingStateKeepsNumbersAsWritten(t *testing.T) {
	const numbers = `{"a":1e400,"b":12345678901234567890123,"c":1.0,"d":-0,"e":[0.10,1E5,{"f":1e-9999}]}`
	var l log
	l.add(entry{"state_changed", `{"patch":` + numbers + `}`}, entry{"state_changed", `{"patch":{"z":2}}`},
		entry{"state_changed", `{"patch":{"z":null}}`})
	s := fold(t, replay.New(), l.events)
	got, err := json.Marshal(&s.Working)
	if err != nil || string(got) != numbers {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestDeepPatchesAreMergedAndEncoded(t *testing.T) {
	deep := `1`
	for range 240 {
		deep = fmt.Sprintf(`{"k":%s}`, deep)
	}
	var l log
	l.add(entry{"state_changed", `{"patch":` + deep + `}`}, entry{"state_changed", `{"patch":` + deep + `}`})
	s := fold(t, replay.New(), l.events)
	if got, err := json.Marshal(&s.Working); err != nil || string(got) != deep {
		t.Errorf("got %s, %v", got, err)
	}
}
