package executor_test

import (
	"fmt"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// A writer that has lost its session sends what its tool has said to the holder,
// with the token of the attempt. Nothing else is taken for a late result.
func TestOnlyAGenuineResultOfARecordedAttemptIsTakenLate(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leaveStarted("c1", "c2")
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)})
	open := n.call("s1", "c1", "once", `{}`)
	wantKindOfResult(t, open.Data, schema.Interrupted)
	at := p.read("s1").State.Call("c1").Attempts[0]
	send := func(seq uint64, data string) error {
		_, err := ask(t, n.conn, "steno.v1.to."+n.holder+".result.s1",
			fmt.Sprintf(`{"session":"s1","call_id":"c1","attempt":%d,"epoch":%d,"seq":%d,"data":%s}`, at.Attempt, at.Epoch, seq, data))
		return err
	}
	const sound = `{"call_id":"c1","attempt":1,"ok":true,"output":"it took effect","duration_us":7}`
	for what, c := range map[string]struct {
		seq  uint64
		data string
	}{
		"another token":        {at.Seq + 1, sound},
		"another call":         {at.Seq, `{"call_id":"c2","attempt":1,"ok":true,"output":"","duration_us":7}`},
		"another attempt":      {at.Seq, `{"call_id":"c1","attempt":2,"ok":true,"output":"","duration_us":7}`},
		"no result":            {at.Seq, `{"call_id":"c1","attempt":1}`},
		"one that is open":     {at.Seq, `{"call_id":"c1","attempt":1,"ok":false,"error":{"kind":"timeout","message":"m","details":{}},"duration_us":7}`},
		"a synthetic one":      {at.Seq, `{"call_id":"c1","attempt":1,"ok":true,"output":"","duration_us":7,"synthetic":true}`},
		"one of a person":      {at.Seq, `{"call_id":"c1","attempt":1,"ok":true,"output":"","duration_us":7,"by":"ada"}`},
		"one that supersedes":  {at.Seq, `{"call_id":"c1","attempt":1,"ok":true,"output":"","duration_us":7,"supersedes":3}`},
		"one with broken text": {at.Seq, `{"call_id":"c1","attempt":1,"ok":true,"output":"\ud800","duration_us":7}`},
	} {
		if err := send(c.seq, c.data); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := n.call("s1", "c1", "once", `{}`); string(now.Data) != string(open.Data) {
		t.Fatalf("what was refused has changed the result to %s", now.Data)
	}
	for range 2 { // the answer may be lost
		if err := send(at.Seq, sound); err != nil {
			t.Fatal(err)
		}
	}
	late := n.call("s1", "c1", "once", `{}`)
	p.wantRecorded("s1", late)
	if field[string](t, late.Data, "output") != "it took effect" || field[string](t, late.Data, "reason") != "late" {
		t.Errorf("the result is %s", late.Data)
	}
	// A genuine one stands.
	if err := send(at.Seq, `{"call_id":"c1","attempt":1,"ok":false,"output":"another","duration_us":8}`); err != nil {
		t.Fatal(err)
	}
	if now := n.call("s1", "c1", "once", `{}`); string(now.Data) != string(late.Data) {
		t.Errorf("the result has become %s", now.Data)
	}
	if l := p.read("s1"); l.State.Notes != 1 || len(l.State.Call("c1").Superseded) != 1 {
		t.Errorf("%d notes, and the call is %+v", l.State.Notes, l.State.Call("c1"))
	}
}

// Whoever sends a late result may know less of what is secret than the holder.
func TestALateResultIsRedactedByItsHolderToo(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leaveStarted("c1", "c2")
	n := p.node([]executor.Tool{newCounter(false).tool("once", false)})
	const secret, mark = "ghp_0123456789abcdefghijABCDEFGHIJ012345", `{"pointer":"/summary","rule":"key:x","hash":"hmac-sha256:0123456789012345678901234567890123456789012345678901234567890123"}`
	for i, call := range []string{"c1", "c2", "c1"} { // the last is only noted
		n.call("s1", call, "once", `{}`)
		at := p.read("s1").State.Call(call).Attempts[0]
		_, err := ask(t, n.conn, "steno.v1.to."+n.holder+".result.s1", fmt.Sprintf(`{"session":"s1","call_id":"%[1]s","attempt":1,"epoch":%[2]d,"seq":%[3]d,"data":`+
			`{"call_id":"%[1]s","attempt":1,"ok":true,"output":"%[4]d is %[5]s","structured":{"password":["hunter2"]},"duration_us":7,"redacted":[%[6]s]}}`, call, at.Epoch, at.Seq, i, secret, mark))
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			break
		}
		data := n.call("s1", call, "once", `{}`).Data
		if field[string](t, data, "output") != fmt.Sprintf("%d is [redacted]", i) || field[uint64](t, data, "duration_us") != 7 {
			t.Errorf("the result is %s", data)
		}
		marks := field[[]map[string]string](t, data, "redacted")
		if len(marks) != 3 || marks[0]["rule"] != "key:x" || marks[1]["pointer"] != "/output" || marks[2]["pointer"] != "/structured/password" {
			t.Errorf("it is marked with %v", marks)
		}
	}
	if l := p.read("s1"); l.State.Notes != 1 {
		t.Errorf("%d notes", l.State.Notes)
	}
	n.stop()
	nowhere(t, []string{secret, "hunter2"}, []string{p.dir}, nil)
}
