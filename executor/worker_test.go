package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// withWorkers has an executor call what workers host.
func withWorkers(vouched ...executor.Vouched) func(*executor.Config) {
	return func(c *executor.Config) { c.Workers = &executor.Workers{Tools: vouched} }
}

// hosts makes a worker of these tools. It is stopped when the test ends.
func (p *place) hosts(tools ...executor.Tool) (w *executor.Worker, stop func()) {
	p.t.Helper()
	w, err := executor.HostTools(p.nats.Connect(), executor.HostOptions{Logger: slog.New(slog.DiscardHandler)}, tools...)
	if err != nil {
		p.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), journaltest.Deadline)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			p.t.Errorf("the worker does not stop: %v", err)
		}
	})
	p.t.Cleanup(stop)
	return w, stop
}

// raw hosts an endpoint as any client may, with this definition.
func (p *place) raw(name, definition string, handler func(*nats.Conn, micro.Request), opts ...micro.EndpointOpt) (micro.Service, *nats.Conn) {
	p.t.Helper()
	c := p.nats.Connect()
	s, err := micro.AddService(c, micro.Config{Name: "raw", Version: "1.0.0"})
	if err == nil {
		err = s.AddEndpoint(name, micro.HandlerFunc(func(r micro.Request) { handler(c, r) }), append([]micro.EndpointOpt{micro.WithEndpointSubject("steno.tool." + name),
			micro.WithEndpointMetadata(map[string]string{executor.MetadataTool: definition})}, opts...)...)
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return s, c
}

const rawDefinition = `{"description":"a tool of a test","inputSchema":{"type":"object"}}`

// hosted lists what workers host, as an executor sees it.
func (n *node) hosted() (tools map[string]executor.ToolInfo, refused []executor.RefusedTool) {
	n.t.Helper()
	a, err := n.client.Workers(within(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	tools = map[string]executor.ToolInfo{}
	for _, spec := range a.Tools {
		var t executor.ToolInfo
		if err := schema.Unmarshal(spec, &t); err != nil {
			n.t.Fatal(err)
		}
		tools[t.Name] = t
	}
	return tools, a.Refused
}

func TestAWorkerIsFoundWhenItsToolIsCalled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, withWorkers())
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c0", "count", `{}`).Data, schema.UnknownTool)
	c := newCounter(false)
	p.hosts(c.tool("count", false), c.tool("more", false))
	for i := range 3 { // it began to serve this instant
		a := n.call("s1", fmt.Sprint("c", i+1), "count", `{"n":1e400}`)
		p.wantRecorded("s1", a)
		if out := field[string](t, a.Data, "output"); out != fmt.Sprintf("c%d, attempt 1", i+1) {
			t.Errorf("the answer is %s", a.Data)
		}
	}
	tools, refused := n.hosted()
	more := tools["more"]
	if len(tools) != 2 || len(refused) != 0 || more.Hosted == nil || len(more.Hosted.Workers) != 1 || more.Hosted.Vouched || more.Hosted.Since.IsZero() ||
		more.Tier != 3 || more.ReadOnly || more.Repeatable {
		t.Errorf("hosted are %+v, refused %v", tools, refused)
	}
}

func TestWorkersOfOneToolShareItsCallsAndAreMissedWhenTheyAreGone(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers(), func(c *executor.Config) { c.SessionCalls = 64 })
	n.open("s1")
	one, two := newCounter(false), newCounter(false)
	_, stopOne := p.hosts(one.tool("count", false))
	_, stopTwo := p.hosts(two.tool("count", false))
	for i := range 40 {
		n.call("s1", fmt.Sprint("c", i), "count", `{}`)
	}
	if a, b := len(one.runs), len(two.runs); a == 0 || b == 0 || a+b != 40 {
		t.Errorf("the workers had %d and %d calls", a, b)
	}
	stopOne()
	if data := n.call("s1", "d1", "count", `{}`).Data; !field[bool](t, data, "ok") {
		t.Errorf("with one worker left: %s", data)
	}
	stopTwo()
	// Nobody has seen yet that it is gone: nothing ran, and that is known.
	data := n.call("s1", "d2", "count", `{}`).Data
	wantKindOfResult(t, data, schema.Unavailable)
	if !strings.Contains(string(data), `"ran":false`) {
		t.Errorf("the result is %s", data)
	}
	eventually(t, "the tool is taken away", func() bool { tools, _ := n.hosted(); return len(tools) == 0 })
	wantKindOfResult(t, n.call("s1", "d3", "count", `{}`).Data, schema.UnknownTool)
	p.hosts(one.tool("count", false))
	if data := n.call("s1", "d4", "count", `{}`).Data; !field[bool](t, data, "ok") {
		t.Errorf("with a new worker: %s", data)
	}
}

// A worker that starts again while it is called is waited for: nothing has run.
func TestAWorkerThatStartsAgainIsWaitedFor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	c := newCounter(false)
	_, stop := p.hosts(c.tool("count", false))
	n.call("s1", "c1", "count", `{}`)
	stop()
	asked := n.background("s1", "c2", "count")
	eventually(t, "the call has started", func() bool { return slices.Contains(p.types("s1")[4:], schema.TypeToolStarted) })
	p.hosts(c.tool("count", false))
	if a := wait(t, "the answer", asked); !field[bool](t, a.Data, "ok") || c.of("c2") != 1 {
		t.Errorf("the answer is %s, after %d runs", a.Data, c.of("c2"))
	}
}

// What is wrong with a definition is named, and nobody's tool is taken over.
func TestWhatAWorkerSaysOfItsToolsIsNotBelieved(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	mine := newCounter(false)
	n := p.node([]executor.Tool{mine.tool("mine", false)}, withWorkers())
	n.open("s1")
	never := func(_ *nats.Conn, r micro.Request) {
		t.Errorf("%s is called", r.Subject())
		_ = r.Respond([]byte(`{"ok":true,"output":""}`))
	}
	for name, def := range map[string]string{
		"mine":      rawDefinition,
		"nothing":   ``,
		"text":      `no JSON`,
		"list":      `[1]`,
		"twice":     `{"description":"a","description":"b","inputSchema":{"type":"object"}}`,
		"other":     `{"name":"mine","description":"a","inputSchema":{"type":"object"}}`,
		"silent":    `{"inputSchema":{"type":"object"}}`,
		"schema":    `{"description":"a","inputSchema":{"type":"array"}}`,
		"pattern":   `{"description":"a","inputSchema":{"type":"object","properties":{"a":{"pattern":"(?=x)"}}}}`,
		"remote":    `{"description":"a","inputSchema":{"type":"object","$ref":"https://example.com/a.json"}}`,
		"large":     `{"description":"` + strings.Repeat("a", 100<<10) + `","inputSchema":{"type":"object"}}`,
		"time":      `{"description":"a","inputSchema":{"type":"object"},"timeout_ms":-1}`,
		"noSchema":  `{"description":"a"}`,
		"badAnswer": `{"description":"a","inputSchema":{"type":"object"},"outputSchema":{"type":7}}`,
	} {
		p.raw(name, def, never)
	}
	p.raw("everyone", rawDefinition, never, micro.WithEndpointQueueGroupDisabled())
	p.raw("huge", `{"description":"`+strings.Repeat("a", 700<<10)+`"}`, never)
	var refused []executor.RefusedTool
	eventually(t, "all are refused", func() bool {
		var tools map[string]executor.ToolInfo
		if tools, refused = n.hosted(); len(tools) > 0 {
			t.Fatalf("taken are %+v", tools)
		}
		return len(refused) == 16
	})
	for _, r := range refused {
		if !strings.HasPrefix(r.Worker, "raw ") || r.Why == "" || len(r.Why) > 1000 {
			t.Errorf("refused is %+v", r)
		}
	}
	n.call("s1", "c1", "mine", `{}`)
	if mine.of("c1") != 1 {
		t.Error("its own tool is not called")
	}
	for i, name := range []string{"nothing", "everyone", "remote"} {
		wantKindOfResult(t, n.call("s1", fmt.Sprint("d", i), name, `{}`).Data, schema.UnknownTool)
	}
	// What it says of itself beyond its schemas counts for nothing.
	p.raw("modest", `{"description":"a","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":true},"tier":0,"repeatable":true,"timeout_ms":86400000}`, never)
	eventually(t, "it is taken", func() bool {
		tools, _ := n.hosted()
		m := tools["modest"]
		if m.Name != "" && (m.Tier != 3 || m.ReadOnly || m.Repeatable || m.Idempotent || m.TimeoutMS != executor.DefaultTimeout.Milliseconds()) {
			t.Fatalf("it is taken as %+v", m)
		}
		return m.Name != ""
	})
}

// The definition that was seen first stays while it has a worker. Beside one that
// says something else nobody is called, since nobody knows who would get the call.
func TestWorkersThatDisagreeAreNotCalled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	c := newCounter(false)
	first := c.tool("count", false)
	_, stop := p.hosts(first)
	n.call("s1", "c1", "count", `{}`)
	other := first
	other.Description = "counts in another way"
	_, stopOther := p.hosts(other)
	eventually(t, "they are seen to disagree", func() bool { tools, _ := n.hosted(); return len(tools["count"].Hosted.Others) == 1 })
	if tools, _ := n.hosted(); tools["count"].Description != first.Description {
		t.Errorf("the tool is %+v", tools["count"])
	}
	data := n.call("s1", "c2", "count", `{}`).Data
	wantKindOfResult(t, data, schema.Unavailable)
	if field[int](t, data, "attempt") != 0 || !strings.Contains(string(data), "worker ") || c.of("c2") != 0 {
		t.Errorf("the result is %s", data)
	}
	if !strings.Contains(n.log.String(), "another definition") {
		t.Error("the operator is not told")
	}
	stopOther()
	eventually(t, "they agree", func() bool { tools, _ := n.hosted(); return len(tools["count"].Hosted.Others) == 0 })
	n.call("s1", "c3", "count", `{}`)
	_, stopOther = p.hosts(other)
	defer stopOther()
	eventually(t, "they disagree again", func() bool { tools, _ := n.hosted(); return len(tools["count"].Hosted.Others) == 1 })
	stop()
	eventually(t, "the other one has taken its place", func() bool {
		tools, _ := n.hosted()
		return tools["count"].Description == other.Description && len(tools["count"].Hosted.Others) == 0
	})
	n.call("s1", "c4", "count", `{}`)
	if c.of("c3") != 1 || c.of("c4") != 1 {
		t.Errorf("the runs are %v", c.runs)
	}
}

// Whatever a worker answers becomes a result of some kind, recorded once.
func TestWhatAWorkerAnswersBecomesAResult(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{MaxPayload: 4 << 20})
	n := p.node(nil, withWorkers())
	n.open("s1")
	for name, c := range map[string]struct {
		answer string
		kind   schema.Kind
		has    string
	}{
		"fine":       {`{"ok":true,"output":"a","content":[{"type":"text","text":"b"}],"structured":{"n":1e400},"exit_code":0,"summary":"s","files_read":["f"],"artifacts":[1],"terminate":true,"more":1}`, "", `"structured":{"n":1e400}`},
		"no":         {`{"ok":false,"output":"no"}`, "", `"ok":false`},
		"declared":   {`{"ok":false,"error":{"kind":"no_match","message":"not there","details":{"path":"a"}}}`, schema.NoMatch, `"path":"a"`},
		"unlisted":   {`{"ok":false,"error":{"kind":"out_of_milk","message":"m","details":{}}}`, schema.ToolFailed, `"kind":"out_of_milk"`},
		"kindless":   {`{"ok":false,"error":{"message":"m"}}`, schema.ToolFailed, "no kind"},
		"empty":      {``, schema.ToolFailed, "is no result"},
		"text":       {`hello`, schema.ToolFailed, "is no result"},
		"list":       {`[]`, schema.ToolFailed, "is no object"},
		"without ok": {`{"output":"a"}`, schema.ToolFailed, "has no ok"},
		"wrong type": {`{"ok":true,"output":7}`, schema.ToolFailed, "at /output"},
		"twice":      {`{"ok":true,"ok":false,"output":""}`, schema.ToolFailed, "is no result"},
		"deep":       {`{"ok":true,"output":"","structured":` + strings.Repeat("[", 400) + strings.Repeat("]", 400) + `}`, schema.ToolFailed, "is no result"},
		"broken":     {"{\"ok\":true,\"output\":\"a\xffb\\ud800\"}", "", `"replaced":2`},
		"hostile":    {`{"ok":true,"output":"\u001b[2J\u202e"}`, "", `\u001b`},
		"large":      {`{"ok":true,"output":"` + strings.Repeat("a", 3<<20) + `"}`, "", `"ref":{`},
	} {
		tool := strings.ReplaceAll(name, " ", "-")
		p.raw(tool, rawDefinition, func(_ *nats.Conn, r micro.Request) { _ = r.Respond([]byte(c.answer)) })
		a := n.call("s1", tool, tool, `{}`)
		p.wantRecorded("s1", a)
		if kind := kindOfResult(t, a.Data); kind != c.kind || !strings.Contains(string(a.Data), c.has) {
			t.Errorf("%s: the result is %.600s, want kind %q and %s", name, a.Data, c.kind, c.has)
		}
	}
	p.raw("micro", rawDefinition, func(_ *nats.Conn, r micro.Request) { _ = r.Error("503", "the database at 10.0.0.7 is down", nil) })
	data := n.call("s1", "micro", "micro", `{}`).Data
	if wantKindOfResult(t, data, schema.ToolFailed); strings.Contains(string(data), "10.0.0.7") || !strings.Contains(string(data), `"code":"503"`) {
		t.Errorf("the result is %s", data)
	}
	if !strings.Contains(n.log.String(), "10.0.0.7") {
		t.Error("the operator is not told the cause")
	}
}

// What a worker is told stands in headers that every client can read.
func TestWhatAWorkerIsTold(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, withWorkers())
	n.open("s1")
	got := make(chan micro.Request, 1)
	p.raw("told", rawDefinition, func(_ *nats.Conn, r micro.Request) {
		got <- r
		_ = r.Respond([]byte(`{"ok":true,"output":""}`))
	})
	req := request("c1", "told", `{"a":"ü"}`)
	req.Key, req.Actor, req.Context = " Schlüssel", executor.Actor{ID: `"ada"`}, []byte(`{"tenant":"ü😀"}`)
	a, err := n.client.Call(within(t), "s1", req)
	if err != nil || !field[bool](t, a.Data, "ok") {
		t.Fatalf("%s, %v", a.Data, err)
	}
	r := wait(t, "the request", got)
	at := p.read("s1").State.Call("c1").Attempts[0]
	h := nats.Header(r.Headers())
	for key, want := range map[string]string{"Steno-Session": "s1", "Steno-Call": "c1", "Steno-Key": `" Schl\u00fcssel"`, "Steno-Attempt": "1", "Steno-Epoch": fmt.Sprint(at.Epoch),
		"Steno-Seq": fmt.Sprint(at.Seq), "Steno-Actor": `"\"ada\""`, "Steno-Actor-Via": "request", "Steno-Context": `{"tenant":"\u00fc\ud83d\ude00"}`, "Steno-Dry-Run": ""} {
		if h.Get(key) != want {
			t.Errorf("header %s is %q, want %q", key, h.Get(key), want)
		}
	}
	if string(r.Data()) != `{"a":"ü"}` || h.Get("Steno-Timeout-Ms") == "" || !strings.HasPrefix(h.Get("Steno-Result-To"), "steno.v1.calls.result.") {
		t.Errorf("the request is %s with %v", r.Data(), h)
	}
	var context map[string]string
	if json.Unmarshal([]byte(h.Get("Steno-Context")), &context) != nil || context["tenant"] != "ü😀" {
		t.Errorf("the context is %q", h.Get("Steno-Context"))
	}
}
