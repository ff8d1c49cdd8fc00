package schema_test

import (
	"errors"
	"testing"

	v1 "encoding/json"

	"github.com/go-json-experiment/json"

	"steno/schema"
)

func TestSeverities(t *testing.T) {
	bad := map[schema.Kind]bool{schema.CorruptLogLine: true, schema.TailSuspect: true, schema.UnsupportedSchemaVersion: true, schema.HeadMismatch: true}
	for _, k := range schema.Kinds() {
		want := schema.SeverityNotice
		if bad[k.Kind] {
			want = schema.SeverityError
		}
		if got := schema.SeverityOf(k.Kind); got != want {
			t.Errorf("%s: %s", k.Kind, got)
		}
	}
}

// Both of the encoders in use must leave out the same keys.
func TestFindingLeavesOutTheNumbersOfNoHole(t *testing.T) {
	marshal := map[string]func(any) ([]byte, error){
		"v1": v1.Marshal,
		"v2": func(v any) ([]byte, error) { return json.Marshal(v) },
	}
	for name, marshal := range marshal {
		f := schema.Finding{Kind: schema.TornTail, Severity: schema.SeverityNotice, Segment: 2, Line: 3, Offset: 4, Bytes: 5, SHA256: "ab", Detail: "d"}
		b, err := marshal(f)
		if want := `{"kind":"torn_tail","severity":"notice","segment":2,"line":3,"offset":4,"bytes":5,"sha256":"ab","detail":"d"}`; string(b) != want || err != nil {
			t.Errorf("%s: got  %s, %v\nwant %s", name, b, err, want)
		}
		f.Kind, f.Reason, f.LastGoodSeq, f.NextGoodSeq = schema.CorruptLogLine, schema.SeqGap, 7, 9
		b, err = marshal(f)
		if want := `{"kind":"corrupt_log_line","reason":"seq_gap","severity":"notice","segment":2,"line":3,"offset":4,"bytes":5,"sha256":"ab","detail":"d",` +
			`"last_good_seq":7,"next_good_seq":9}`; string(b) != want || err != nil {
			t.Errorf("%s: got  %s, %v\nwant %s", name, b, err, want)
		}
		var back schema.Finding
		if err := v1.Unmarshal(b, &back); err != nil || back != f {
			t.Errorf("%s: %+v, %v", name, back, err)
		}
	}
}

func TestFindingAsAnErrorIsLocated(t *testing.T) {
	f := schema.Finding{Kind: schema.CorruptLogLine, Reason: schema.SumMismatch, Segment: 2, Line: 3, Offset: 400, Detail: "the sum differs"}
	err := f.Err("s1")
	if !errors.Is(err, schema.CorruptLogLine) || err.Error() != "corrupt_log_line: segment 000002 line 3 at byte 400: the sum differs" {
		t.Errorf("got %v", err)
	}
	d := schema.Body(err).Details
	for k, want := range map[string]any{"session": "s1", "segment": uint64(2), "line": 3, "offset": int64(400), "reason": "sum_mismatch", "next": "run: steno repair s1"} {
		if d[k] != want {
			t.Errorf("details.%s is %v, want %v", k, d[k], want)
		}
	}
	f.Reason = ""
	if _, ok := schema.Body(f.Err("s1")).Details["reason"]; ok {
		t.Error("a finding without a reason has one as an error")
	}
}
