package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// Who has no files sees the calls of a session over NATS as who has them: page by
// page, and of one call all that is recorded, with the results that were
// superseded.
func TestCallsAreSeenOverNATSAsInTheFiles(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	for i := range 7 {
		n.call("s1", fmt.Sprintf("c%d", i), "echo", `{"text":"x"}`)
	}
	n.call("s1", "no", "none", `{}`)
	all, err := executor.Calls(within(t), n.store, executor.CallsRequest{Session: "s1"})
	if err != nil || len(all.Calls) != 8 || all.More {
		t.Fatalf("the files have %+v, %v", all, err)
	}
	var paged []executor.CallInfo
	for req := (executor.CallsRequest{Session: "s1", Limit: 3}); ; {
		a, err := n.client.Calls(within(t), req)
		if err != nil || len(a.Calls) > 3 || a.More && len(a.Calls) < 3 {
			t.Fatalf("a page has %+v, %v", a, err)
		}
		if paged = append(paged, a.Calls...); !a.More {
			break
		}
		req.After = a.Calls[len(a.Calls)-1].Seq
	}
	if !slices.Equal(paged, all.Calls) || paged[7].State != "unknown_tool" || paged[0].State != "ok" || paged[0].Attempt != 1 {
		t.Errorf("over NATS %+v, in the files %+v", paged, all.Calls)
	}
	if a, err := n.client.Calls(within(t), executor.CallsRequest{Session: "s1", Open: true}); err != nil || len(a.Calls) > 0 {
		t.Errorf("open are %+v, %v", a, err)
	}
	_, err = n.client.Calls(within(t), executor.CallsRequest{Session: "nobody"})
	wantErr(t, err, schema.NotFound)

	there, err := executor.LookAtCall(within(t), n.store, "s1", "c3")
	if err != nil {
		t.Fatal(err)
	}
	here, err := n.client.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "c3"})
	if err != nil || here.Call.ID != "c3" || here.Open || len(here.Events) != 4 || here.Call.Result.Seq != there.Call.Result.Seq {
		t.Fatalf("over NATS %+v, %v", here, err)
	}
	for i, line := range here.Events {
		if !bytes.Equal(line, there.Events[i]) {
			t.Errorf("over NATS %s, in the file %s", line, there.Events[i])
		}
	}
	_, err = n.client.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "c9"})
	wantErr(t, err, schema.NotFound)
}

// An answer has room for some events of a call, and names the others.
func TestACallThatIsTooLargeForAnAnswer(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	long := strings.Repeat("x", 200<<10)
	n := p.node([]executor.Tool{{Name: "long", Description: "gives much", Input: []byte(`{"type":"object"}`), Run: func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: long, Summary: "much", Content: []byte(`[{"type":"text","text":"` + long + `"}]`), Structured: []byte(`{"x":"` + long + `"}`)}, nil
	}}})
	n.open("s1")
	n.call("s1", "c1", "long", `{"text":"`+long+`"}`)
	a, err := n.client.LookAtCall(within(t), executor.CallRequest{Session: "s1", CallID: "c1"})
	if err != nil || len(a.Events)+len(a.LeftOut) != 4 || len(a.LeftOut) == 0 {
		t.Errorf("%d events, left out are %v, %v", len(a.Events), a.LeftOut, err)
	}
}
