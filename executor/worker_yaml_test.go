package executor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func TestAToolsFileVouchesForToolsOfWorkers(t *testing.T) {
	const text = `version: 1
workers:
  accept: vouched
  tools:
    - {name: count, tier: 0, read_only: true, repeatable: true, idempotent: true, destructive: false, open_world: false, phases: [verifying], exclusive: true, dry_run: true, timeout: 90s, paths: [{pointer: /file}]}
    - {name: plain}
`
	file, err := executor.ParseToolsFile([]byte(text), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil, func(c *executor.Config) { c.Workers = &file.Workers })
	never := func(_ *nats.Conn, r micro.Request) { _ = r.Respond([]byte(`{"ok":true,"output":""}`)) }
	for _, name := range []string{"count", "plain", "unknown"} {
		p.raw(name, rawDefinition, never)
	}
	var tools map[string]executor.ToolInfo
	var refused []executor.RefusedTool
	eventually(t, "all are seen", func() bool { tools, refused = n.hosted(); return len(tools)+len(refused) == 3 })
	c, pl := tools["count"], tools["plain"]
	if c.Tier != 0 || !c.ReadOnly || !c.Repeatable || !c.Idempotent || c.Destructive || c.OpenWorld || !slices.Equal(c.Phases, []string{"verifying"}) ||
		c.TimeoutMS != (90*time.Second).Milliseconds() || !c.Hosted.Vouched {
		t.Errorf("count is %+v", c)
	}
	if pl.Tier != 3 || pl.ReadOnly || pl.Repeatable || !pl.Destructive || !pl.Hosted.Vouched {
		t.Errorf("plain is %+v", pl)
	}
	if len(refused) != 1 || !strings.HasSuffix(refused[0].Worker, " unknown") || !strings.Contains(refused[0].Why, "vouches") {
		t.Errorf("refused are %+v", refused)
	}
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c1", "unknown", `{}`).Data, schema.UnknownTool)
	// It is held to what the operator says: a path that leaves the workspace is refused.
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s2", Workspace: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	wantKindOfResult(t, n.call("s2", "c1", "count", `{"file":"../x"}`).Data, schema.OutsideWorkspace)
	wantKindOfResult(t, n.call("s2", "c2", "count", `{"file":"x"}`).Data, "")
	req := request("c3", "count", `{}`)
	if req.DryRun = true; true {
		a, err := n.client.Call(within(t), "s2", req)
		if err != nil || field[string](t, a.Data, "output") != "" { // it is called, as it knows dry runs
			t.Errorf("%s, %v", a.Data, err)
		}
	}
}

func TestAToolsFileThatSaysNonsenseOfWorkersIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"workers: {accept: some}":                                              "any, vouched or none",
		"workers: {tools: [{name: a b}]}":                                      "a tool's name",
		"workers: {tools: [{name: a}, {name: a}]}":                             "twice",
		"workers: {tools: [{name: a, timeout: 2h}]}":                           "1s to 1h",
		"workers: {tools: [{name: a, tier: -1}]}":                              "below 0",
		"workers: {tools: [{name: a, phases: [dreaming]}]}":                    "phase",
		"workers: {tools: [{name: a, paths: [{pointer: x}]}]}":                 "pointer",
		"workers: {tools: [{name: a, readonly: true}]}":                        "readonly",
		"workers: {tools: [{name: a, escalates: true}]}":                       "escalates",
		"workers: {tools: [{name: a, description: 'what it says of itself'}]}": "description",
		"workers: {acept: any}":                                                "acept",
	} {
		_, err := executor.ParseToolsFile([]byte("version: 1\n"+text+"\n"), t.TempDir())
		if schema.KindOf(err) != schema.InvalidConfig || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if f, err := executor.ParseToolsFile([]byte("version: 1\nworkers: {accept: none}\n"), t.TempDir()); err != nil || f.Workers.Accept != executor.AcceptNone {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestWhereNoWorkersAreAcceptedNoneIsCalled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(false)
	p.hosts(c.tool("count", false))
	for _, workers := range []*executor.Workers{nil, {Accept: executor.AcceptNone}} {
		n := p.node(nil, func(c *executor.Config) { c.Workers = workers })
		n.open("s1")
		wantKindOfResult(t, n.call("s1", "c1", "count", `{}`).Data, schema.UnknownTool)
		if tools, refused := n.hosted(); len(tools)+len(refused) > 0 {
			t.Errorf("seen are %v and %v", tools, refused)
		}
		n.stop()
	}
}

// What workers host leaves the registry with the executor that has found it.
func TestAnExecutorTakesTheToolsOfWorkersWithIt(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	c := newCounter(false)
	p.hosts(c.tool("count", false))
	registry, err := executor.NewRegistry(echo)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		n := p.node(nil, withWorkers(), func(c *executor.Config) { c.Tools = registry })
		n.open("s1")
		if data := n.call("s1", fmt.Sprint("c", i), "count", `{}`).Data; !field[bool](t, data, "ok") {
			t.Errorf("the result is %s", data)
		}
		n.stop()
		if _, err := registry.Get("count"); schema.KindOf(err) != schema.UnknownTool || len(registry.Tools()) != 1 {
			t.Errorf("the registry has %v, %v", registry.Tools(), err)
		}
	}
}

// Names that an MCP server will have are nobody else's while it is away.
func TestAWorkerTakesNoNameOfAnAnnouncedTool(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	away := func() error { return schema.Errorf(schema.Unavailable, "it is away") }
	n := p.node(nil, withWorkers(), func(c *executor.Config) { c.Tools.Host("git_", away) })
	c := newCounter(false)
	p.hosts(c.tool("git_push", false))
	eventually(t, "it is refused", func() bool { tools, refused := n.hosted(); return len(tools) == 0 && len(refused) == 1 })
}
