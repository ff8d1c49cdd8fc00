package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func TestAClientAsksUntilSomebodyServes(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	p.leave("s1")
	client := p.client()
	type outcome struct {
		a   executor.Answer
		err error
	}
	done := make(chan outcome, 2)
	go func() {
		a, err := client.Call(within(t), "s1", request("c1", "echo", `{}`))
		done <- outcome{a, err}
	}()
	go func() {
		_, err := client.Append(within(t), "s1", event("note", `{}`))
		done <- outcome{err: err}
	}()
	p.node([]executor.Tool{echo})
	for range 2 {
		o := wait(t, "an answer", done)
		if o.err != nil {
			t.Error(o.err)
		} else if o.a.CallID != "" {
			p.wantRecorded("s1", o.a)
		}
	}
}

func TestAClientThatRepeatsItsRequestJoinsTheCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	tools := []executor.Tool{held.tool("held", false)}
	n := p.node(tools)
	n.open("s1")
	p.node(tools) // the repeat may come to this one
	seen := p.nats.Listen("steno.v1.call.s1")
	done := make(chan executor.Answer, 1)
	go func() { done <- n.call("s1", "c1", "held", `{}`) }()
	var first *nats.Msg
	for range 2 {
		m, err := seen.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = m
		} else if m.Reply != first.Reply || string(m.Data) != string(first.Data) {
			t.Errorf("the repeat is %s for %s, the first was %s for %s", m.Data, m.Reply, first.Data, first.Reply)
		}
	}
	close(held.hold)
	p.wantRecorded("s1", wait(t, "the answer", done))
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

func TestAClientSaysWhatItKnewAtItsDeadline(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	client := p.client()
	call := func(ctx context.Context) error {
		_, err := client.Call(ctx, "s1", request("c1", "held", `{}`))
		return err
	}
	lasting := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		t.Cleanup(cancel)
		return ctx
	}
	err := call(lasting(time.Second))
	wantErr(t, err, schema.Unavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error %v hides the deadline", err)
	}
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)})
	n.open("s1")
	err = call(lasting(200 * time.Millisecond))
	wantErr(t, err, schema.Timeout)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(schema.Body(err).Details["next"].(string), "same call id") {
		t.Errorf("the error is %v with %v", err, schema.Body(err).Details)
	}
	ctx, cancel := context.WithCancel(lasting(journaltest.Deadline))
	cancelled := make(chan error, 1)
	go func() { cancelled <- call(ctx) }()
	wait(t, "the tool", held.begun)
	cancel()
	wantErr(t, wait(t, "the client", cancelled), schema.Cancelled)
	close(held.hold) // the call went on
	eventually(t, "the result", func() bool { return p.result("s1", "c1") != nil })
	if err := call(lasting(journaltest.Deadline)); err != nil {
		t.Error(err)
	}
	if n := held.of("c1"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestAClientRefusesWhatCannotBeSent(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	conn := p.nats.Connect()
	client, err := executor.NewClient(conn, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Call(within(t), "s1.>", request("c1", "echo", `{}`))
	wantErr(t, err, schema.InvalidArgs)
	_, err = client.Call(within(t), "s1", request("c1", "echo", `{"a":`))
	wantErr(t, err, schema.InvalidArgs)
	wantErr(t, client.Enqueue(within(t), "s1", request("c1", "echo", `{"a":`)), schema.InvalidArgs)
	_, err = client.Append(within(t), "s1", event("note", `{"a":1,"a":2}`))
	wantErr(t, err, schema.InvalidArgs)
	_, err = client.Call(within(t), "s1", request("c1", "echo", `{"a":"`+strings.Repeat("a", 2<<20)+`"}`))
	wantErr(t, err, schema.PayloadTooLarge)
	conn.Close()
	_, err = client.Call(within(t), "s1", request("c1", "echo", `{}`))
	wantErr(t, err, schema.Unavailable)
}

// A client that knows nothing of steno asks the service what it is, and makes
// a call.
func TestAPlainNATSClientCanUseTheService(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.node(append(executor.Builtin(), echo), withQueue)
	nc := p.nats.Connect()

	msg, err := nc.Request("$SRV.INFO.steno", nil, journaltest.Deadline)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Type, Name, ID, Version, Description string
		Metadata                             map[string]string
		Endpoints                            []struct {
			Name, Subject string
			QueueGroup    string `json:"queue_group"`
			Metadata      map[string]string
		}
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	if info.Type != "io.nats.micro.v1.info_response" || info.Name != "steno" || info.Version != executor.Version ||
		info.Metadata["store"] != n.store.ID() || info.Metadata["executor"] != n.holder || info.Metadata["prefix"] != "steno" || info.Metadata["commands"] == "" {
		t.Errorf("the service says %s", msg.Data)
	}
	schemas := map[string]map[string]*jsonschema.Schema{}
	subjects := map[string]string{}
	for _, e := range info.Endpoints {
		subjects[e.Name] = e.Subject
		schemas[e.Name] = map[string]*jsonschema.Schema{}
		for _, what := range []string{"request", "answer", "errors"} {
			schemas[e.Name][what] = compile(t, e.Metadata[what])
		}
		if direct := strings.HasPrefix(e.Name, "to-"); direct != (e.QueueGroup == "") {
			t.Errorf("endpoint %s has the queue group %q", e.Name, e.QueueGroup)
		}
	}
	for name, want := range map[string]string{
		"call": "steno.v1.call.*", "session-open": "steno.v1.session.open", "session-get": "steno.v1.session.get",
		"session-list": "steno.v1.session.list", "session-append": "steno.v1.session.append", "session-end": "steno.v1.session.end",
		"session-tools": "steno.v1.session.tools", "to-tools": "steno.v1.to." + n.holder + ".tools.*",
		"session-fork": "steno.v1.session.fork", "session-resume": "steno.v1.session.resume", "to-resume": "steno.v1.to." + n.holder + ".resume.*", "session-phase": "steno.v1.session.phase", "to-phase": "steno.v1.to." + n.holder + ".phase.*",
		"session-posture": "steno.v1.session.posture", "to-posture": "steno.v1.to." + n.holder + ".posture.*",
		"to-call": "steno.v1.to." + n.holder + ".call.*", "to-get": "steno.v1.to." + n.holder + ".get.*", "to-append": "steno.v1.to." + n.holder + ".append.*", "to-end": "steno.v1.to." + n.holder + ".end.*",
		"calls-wait": "steno.v1.calls.wait", "calls-list": "steno.v1.calls.list", "calls-get": "steno.v1.calls.get", "calls-cancel": "steno.v1.calls.cancel", "calls-resolve": "steno.v1.calls.resolve",
		"calls-queue": "steno.v1.calls.queue", "calls-dead": "steno.v1.calls.dead", "calls-requeue": "steno.v1.calls.requeue",
		"to-result": "steno.v1.to." + n.holder + ".result.*", "to-wait": "steno.v1.to." + n.holder + ".wait.*", "to-cancel": "steno.v1.to." + n.holder + ".cancel.*", "to-resolve": "steno.v1.to." + n.holder + ".resolve.*",
		"approval-list": "steno.v1.approval.list", "approval-answer": "steno.v1.approval.answer", "to-approve": "steno.v1.to." + n.holder + ".approve.*",
		"lease-list": "steno.v1.lease.list", "lease-get": "steno.v1.lease.get", "to-release": "steno.v1.to." + n.holder + ".release.*",
		"calls-result": "steno.v1.calls.result.*", "workers-list": "steno.v1.workers.list",
	} {
		if subjects[name] != want {
			t.Errorf("endpoint %s listens on %q, want %q", name, subjects[name], want)
		}
	}
	if len(info.Endpoints) != 39 {
		t.Errorf("there are %d endpoints", len(info.Endpoints))
	}

	// What is asked and answered is as the schemas say.
	for _, step := range []struct {
		endpoint, subject, body string
		errorCode               int
	}{
		{"session-open", "steno.v1.session.open", `{"session":"s1","labels":{"a":1}}`, 0},
		{"call", "steno.v1.call.s1", `{"call_id":"c1","name":"echo","args":{"text":"hello"}}`, 0},
		{"call", "steno.v1.call.s1", `{"call_id":"c2","name":"none"}`, 0}, // a recorded refusal is a result
		{"call", "steno.v1.call.nobody", `{"call_id":"c1","name":"echo"}`, 404},
		{"call", "steno.v1.call.s1", `{"call_id":"c1","name":"echo","args":{"text":"other"}}`, 409},
		{"session-append", "steno.v1.session.append", `{"session":"s1","events":[{"type":"user_message","data":{"text":"hello"}}]}`, 0},
		{"session-append", "steno.v1.session.append", `{"session":"s1","events":[{"type":"status","data":{}}]}`, 400},
		{"session-get", "steno.v1.session.get", `{"session":"s1"}`, 0},
		{"session-list", "steno.v1.session.list", `{"limit":10}`, 0},
		{"session-phase", "steno.v1.session.phase", `{"session":"s1","phase":"editing","task_kind":"edit","trigger":{"by":"ann"}}`, 0},
		{"session-tools", "steno.v1.session.tools", `{"session":"s1","format":"mcp"}`, 0},
		{"session-fork", "steno.v1.session.fork", `{"session":"nobody","at":3,"to":"s3"}`, 404},
		{"session-resume", "steno.v1.session.resume", `{"session":"s1","format":"openai"}`, 0},
		{"session-resume", "steno.v1.session.resume", `{"session":"nobody"}`, 404},
		{"session-tools", "steno.v1.session.tools", `{"session":"nobody"}`, 404},
		{"session-phase", "steno.v1.session.phase", `{"session":"nobody","phase":"editing"}`, 404},
		{"session-posture", "steno.v1.session.posture", `{"session":"s1","mode":"auto","by":"ann","reason":"a test"}`, 0},
		{"session-posture", "steno.v1.session.posture", `{"session":"nobody","mode":"auto","by":"ann","reason":"a test"}`, 404},
		{"calls-list", "steno.v1.calls.list", `{"session":"s1","open":false,"after":1,"limit":1}`, 0},
		{"calls-list", "steno.v1.calls.list", `{"session":"nobody"}`, 404},
		{"calls-get", "steno.v1.calls.get", `{"session":"s1","call_id":"c1"}`, 0},
		{"calls-get", "steno.v1.calls.get", `{"session":"s1","call_id":"none"}`, 404},
		{"approval-list", "steno.v1.approval.list", `{"limit":10}`, 0},
		{"approval-list", "steno.v1.approval.list", `{"session":"nobody"}`, 404},
		{"approval-answer", "steno.v1.approval.answer", `{"session":"s1","call_id":"c1","approval_id":"a1","decision":"allow"}`, 404}, // it never waited
		{"approval-answer", "steno.v1.approval.answer", `{"session":"s1","call_id":"c1","approval_id":"a1","decision":"allow","actor":{"id":"\ud800"}}`, 400},
		{"session-end", "steno.v1.session.end", `{"session":"s1","outcome":"completed"}`, 0},
		{"session-get", "steno.v1.session.get", `{"session":"nobody"}`, 404},
		{"lease-get", "steno.v1.lease.get", `{"session":"s1"}`, 0},
		{"lease-get", "steno.v1.lease.get", `{"session":"nobody"}`, 404},
		{"lease-list", "steno.v1.lease.list", `{}`, 0},
		{"to-release", "steno.v1.to." + n.holder + ".release.s1", `{"session":"s1","reason":"to see it go"}`, 0},
		{"to-release", "steno.v1.to." + n.holder + ".release.s1", `{"session":"s1"}`, 409}, // it has none any more
		{"to-release", "steno.v1.to." + n.holder + ".release.s1", `{"session":"s2"}`, 400},
		{"lease-get", "steno.v1.lease.get", `{"session":"s1"}`, 0},
	} {
		msg, err := nc.Request(step.subject, []byte(step.body), journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		validate(t, step.endpoint+" request", schemas[step.endpoint]["request"], []byte(step.body))
		code := msg.Header.Get("Nats-Service-Error-Code")
		if step.errorCode == 0 {
			validate(t, step.endpoint+" answer", schemas[step.endpoint]["answer"], msg.Data)
			if code != "" || msg.Header.Get("Steno-Executor") != n.holder {
				t.Errorf("%s: the headers are %v", step.body, msg.Header)
			}
			if aboutHead := step.endpoint != "session-list" && step.endpoint != "approval-list" && step.endpoint != "calls-list" && step.endpoint != "calls-get" && !strings.HasPrefix(step.endpoint, "lease-"); aboutHead && (msg.Header.Get("Steno-Session") != "s1" || strings.Count(msg.Header.Get("Steno-Head"), ".") != 2) {
				t.Errorf("%s: the headers are %v", step.body, msg.Header)
			}
			continue
		}
		validate(t, step.endpoint+" error", schemas[step.endpoint]["errors"], msg.Data)
		var body struct {
			Error struct{ Kind string }
		}
		if err := json.Unmarshal(msg.Data, &body); err != nil {
			t.Fatal(err)
		}
		if n, err := strconv.Atoi(code); err != nil || n != step.errorCode || body.Error.Kind == "" || msg.Header.Get("Steno-Error-Kind") != body.Error.Kind {
			t.Errorf("%s: %s with %v", step.body, msg.Data, msg.Header)
		}
	}
	stats, err := nc.Request("$SRV.STATS.steno", nil, journaltest.Deadline)
	if err != nil || !strings.Contains(string(stats.Data), `"num_requests":4`) {
		t.Errorf("the statistics are %s, %v", stats.Data, err)
	}
}

func compile(t *testing.T, text string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%q is no JSON: %v", text, err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("test:///schema", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("test:///schema")
	if err != nil {
		t.Fatalf("%s is no schema: %v", text, err)
	}
	return s
}

func validate(t *testing.T, what string, s *jsonschema.Schema, b []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err == nil {
		err = s.Validate(doc)
	}
	if err != nil {
		t.Errorf("%s %s: %v", what, b, err)
	}
}

func TestAClientGivesUpWhereNobodyIsThere(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	for _, gone := range []string{"no executor", "no server"} {
		client := p.client()
		executor.SetPatience(client, time.Second)
		if gone == "no server" {
			p.nats.Stop()
		}
		began := time.Now()
		_, err := client.Call(within(t), "s1", request("c1", "echo", `{}`))
		wantErr(t, err, schema.Unavailable)
		if took := time.Since(began); took < time.Second {
			t.Errorf("%s: it gives up after %s", gone, took)
		}
	}
}

// A tool may take as long as it does: its executor is there.
func TestAClientDoesNotGiveUpWhereAToolTakesLong(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{held.tool("held", false)})
	n.open("s1")
	executor.SetPatience(n.client, time.Millisecond)
	seen := p.nats.Listen("steno.v1.call.s1")
	done := make(chan executor.Answer, 1)
	go func() { done <- n.call("s1", "c1", "held", `{}`) }()
	for range 3 { // it has asked again twice
		if _, err := seen.NextMsg(journaltest.Deadline); err != nil {
			t.Fatal(err)
		}
	}
	close(held.hold)
	p.wantRecorded("s1", wait(t, "the answer", done))
}
