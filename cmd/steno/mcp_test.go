package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A host is a program that makes calls, and the server or gateway that it has
// started.
type host struct {
	t testing.TB
	*sdk.ClientSession
	cmd *exec.Cmd
	err output
}

// connect starts a program and speaks to it as hosts do.
func connect(t testing.TB, dir string, o *sdk.ClientOptions, argv ...string) *host {
	t.Helper()
	h, err := connected(t, dir, o, argv...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, &h.err)
	}
	return h
}

func connected(t testing.TB, dir string, o *sdk.ClientOptions, argv ...string) (*host, error) {
	t.Helper()
	h := &host{t: t, cmd: exec.Command(argv[0], argv[1:]...)}
	h.cmd.Dir, h.cmd.Stderr = dir, &h.err
	h.cmd.Env = append(os.Environ(), "STENO_DIR=")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	h.ClientSession, err = sdk.NewClient(&sdk.Implementation{Name: "test-host", Version: "1"}, o).Connect(ctx, &sdk.CommandTransport{Command: h.cmd}, nil)
	if err != nil {
		return h, err
	}
	t.Cleanup(func() {
		_ = h.Close()
		if t.Failed() {
			t.Logf("%q says: %s", argv, &h.err)
		}
	})
	return h, nil
}

// gate is the command line of a gateway before the test server.
func gate(args ...string) []string {
	return append(append([]string{"steno", "mcp"}, args...), "--", "mcp-server")
}

// ask calls a tool.
func (h *host) ask(name string, args any, meta sdk.Meta) *sdk.CallToolResult {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	r, err := h.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args, Meta: meta})
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", name, err, &h.err)
	}
	return r
}

// says is the text of a result.
func says(r *sdk.CallToolResult) string {
	for _, c := range r.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			return text.Text
		}
	}
	return ""
}

// refusal is the kind of an error that stands in a result.
func refusal(r *sdk.CallToolResult) string {
	var v struct {
		Kind  string `json:"kind"`
		Error struct {
			Kind string `json:"kind"`
		} `json:"error"`
	}
	if !r.IsError || json.Unmarshal([]byte(says(r)), &v) != nil {
		return "no error: " + says(r)
	}
	return v.Kind + v.Error.Kind
}

// everything is what a host can learn of a server, as JSON.
func everything(t *testing.T, h *host) map[string]string {
	t.Helper()
	all := map[string]string{}
	keep := func(what string, v any, err error) {
		b, e := json.Marshal(v)
		if err != nil || e != nil {
			b = fmt.Append(b, " ", err, e)
		}
		all[what] = string(b)
	}
	ctx := t.Context()
	keep("initialize", h.InitializeResult(), nil)
	tools, err := h.ListTools(ctx, nil)
	keep("tools", tools, err)
	resources, err := h.ListResources(ctx, nil)
	keep("resources", resources, err)
	resource, err := h.ReadResource(ctx, &sdk.ReadResourceParams{URI: "test://one"})
	keep("resource", resource, err)
	prompt, err := h.GetPrompt(ctx, &sdk.GetPromptParams{Name: "ask"})
	keep("prompt", prompt, err)
	for i, c := range asked() {
		r, err := h.CallTool(ctx, c)
		keep(fmt.Sprint("call ", i, " ", c.Name), r, err)
	}
	return all
}

// asked are calls whose answers do not depend on what was before.
func asked() []*sdk.CallToolParams {
	return []*sdk.CallToolParams{{Name: "echo", Arguments: json.RawMessage(`{"n":1e2,"text":"\u00e9 <&> 12345678901234567890"}`)},
		{Name: "echo"}, {Name: "fails"}, {Name: "dotted.name"}, {Name: "large", Arguments: map[string]any{"n": 700_000}}, {Name: "steps"}}
}

func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	for what, is := range want {
		if got[what] != is {
			t.Errorf("%s: it says %.600s\nalone it says %.600s", what, got[what], is)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there is %d of %d", len(got), len(want))
	}
}

// A host gets from the gateway what it gets from the server, each call is in the
// log, and a replay gives all of that again without the server.
func TestAHostGetsTheSameThroughTheGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alone := everything(t, connect(t, dir, nil, "mcp-server"))
	through := connect(t, dir, nil, gate("--session", "s1")...)
	compare(t, alone, everything(t, through))
	must(t, through.Close())
	var calls int
	for line := range strings.Lines(good(t, dir, "session", "show", "s1", "-o", "jsonl")) {
		if typ := pick(t, line, "/type"); typ == "tool_call" {
			calls++
		}
	}
	if calls != len(asked()) {
		t.Errorf("%d calls are recorded of %d", calls, len(asked()))
	}
	good(t, dir, "verify", "s1")
	out := good(t, dir, "calls", "ls", "s1", "-o", "jsonl")
	if !strings.Contains(out, `"mcp_dotted_name"`) {
		t.Errorf("the calls are %s", out)
	}
	head := good(t, dir, "head", "s1")
	again := connect(t, dir, nil, "steno", "replay", "s1", "--serve", "mcp")
	answers := map[string]string{}
	for what, is := range everything(t, again) {
		if strings.HasPrefix(what, "call") || what == "tools" {
			answers[what] = is
			continue
		}
		delete(alone, what)
	}
	compare(t, alone, answers)
	if r := again.ask("note", map[string]any{"file": "none"}, nil); refusal(r) != "replay_divergence" {
		t.Errorf("what is not in the record gets %s", says(r))
	}
	if err := again.Close(); exitOf(err) != 9 {
		t.Errorf("it ends with %v", err)
	}
	if good(t, dir, "head", "s1") != head {
		t.Error("the session has changed")
	}
}

// exitOf is the exit code in an error, 0 without one.
func exitOf(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// A session that no gateway has recorded has no definitions; its answers are served
// all the same.
func TestS10ReplayServesAnySessionToMCPHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "work"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "work", "file"), []byte("hello"), 0o600))
	good(t, dir, "run", os.DevNull, "--session", "s1", "--workspace", "work")
	for _, id := range []string{"a", "b"} {
		good(t, dir, "call", "read", "--session", "s1", "--call-id", id, "--args", `{"path":"file"}`)
	}
	h := connect(t, dir, nil, "steno", "replay", "s1", "--serve", "mcp")
	tools, err := h.ListTools(t.Context(), nil)
	must(t, err)
	if len(tools.Tools) != 1 || tools.Tools[0].Name != "read" {
		t.Errorf("the tools are %+v", tools.Tools)
	}
	if r := h.ask("read", map[string]any{"path": "file"}, sdk.Meta{"steno/call_id": "b"}); r.IsError || !strings.Contains(says(r), "hello") {
		t.Errorf("it says %s", says(r))
	}
	if r := h.ask("read", map[string]any{"path": "file"}, nil); r.IsError || !strings.Contains(says(r), "hello") {
		t.Errorf("it says %s", says(r))
	}
	for _, args := range []map[string]any{{"path": "other"}, {"path": "file"}} {
		if r := h.ask("read", args, nil); refusal(r) != "replay_divergence" || !strings.Contains(says(r), "asked") {
			t.Errorf("%v gets %s", args, says(r))
		}
	}
	if err := h.Close(); exitOf(err) != 9 {
		t.Errorf("it ends with %v", err)
	}
}

// lines counts the lines of a file, 0 if it is not there.
func countLines(file, text string) int {
	b, _ := os.ReadFile(file)
	return bytes.Count(b, []byte(text+"\n"))
}

// The server ends in the middle of a call: nobody knows what became of it, the log
// says so, and the host goes on with the next server.
func TestAServerThatDiesLeavesItsCallOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	h := connect(t, dir, nil, gate("--session", "s1")...)
	if r := h.ask("die", map[string]any{"file": file}, nil); refusal(r) != "interrupted" {
		t.Errorf("the call gets %s", says(r))
	}
	if r := h.ask("note", map[string]any{"file": file}, nil); says(r) != "noted" {
		t.Errorf("the next one gets %s", says(r))
	}
	if countLines(file, "dying") != 1 || countLines(file, "noted") != 1 {
		t.Error("the effects are not one of each")
	}
	must(t, h.Close())
	out := good(t, dir, "calls", "ls", "s1", "--open", "-o", "jsonl")
	if pick(t, out, "/tool") != "mcp_die" || strings.Count(out, "\n") != 1 {
		t.Errorf("open is %s", out)
	}
}

// A gateway is killed while the server works. The next one with that session tells
// whoever asks again that nobody knows, and asks no server.
func TestAKilledGatewayRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	meta := sdk.Meta{"steno/call_id": "pay-1"}
	h := connect(t, dir, nil, gate("--session", "s1")...)
	if r := h.ask("note", map[string]any{"file": file}, sdk.Meta{"steno/call_id": "pay-0"}); says(r) != "noted" {
		t.Fatalf("it says %s", says(r))
	}
	gone := make(chan error, 1)
	go func() {
		_, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "hang", Arguments: map[string]any{"file": file}, Meta: meta})
		gone <- err
	}()
	if !eventually(func() bool { return countLines(file, "hangs") == 1 }) {
		t.Fatal("the call does not begin")
	}
	must(t, h.cmd.Process.Kill())
	if err := <-gone; err == nil {
		t.Error("there is an answer of a gateway that was killed")
	}
	h = connect(t, dir, nil, gate("--session", "s1")...)
	if r := h.ask("hang", map[string]any{"file": file}, meta); refusal(r) != "interrupted" {
		t.Errorf("asked again it says %s", says(r))
	}
	if r := h.ask("note", map[string]any{"file": file}, sdk.Meta{"steno/call_id": "pay-0"}); says(r) != "noted" {
		t.Errorf("asked again it says %s", says(r))
	}
	if countLines(file, "hangs") != 1 || countLines(file, "noted") != 1 {
		t.Error("there was a second effect")
	}
}

// Two hosts at once: each has a session of its own, and a session has one writer.
func TestTwoHostsAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	const each = 20
	hosts := []*host{connect(t, dir, nil, gate()...), connect(t, dir, nil, gate()...), connect(t, dir, nil, gate("--session", "mine")...)}
	failed := make(chan error, len(hosts)*each)
	for _, h := range hosts {
		for range each {
			go func() {
				r, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "note", Arguments: map[string]any{"file": file}})
				if err == nil && says(r) != "noted" {
					err = errors.New(says(r))
				}
				failed <- err
			}()
		}
	}
	for range cap(failed) {
		must(t, <-failed)
	}
	out, errOut, code := steno(t, dir, gate("--session", "mine")[1:]...)
	if code != 5 || out != "" || !strings.Contains(errOut, "session_writer_active") || !strings.Contains(errOut, "--session auto") {
		t.Errorf("the second host of a session gets exit %d, %s%s", code, out, errOut)
	}
	for _, h := range hosts {
		must(t, h.Close())
	}
	if countLines(file, "noted") != cap(failed) {
		t.Errorf("there were %d effects", countLines(file, "noted"))
	}
	sessions := good(t, dir, "session", "ls", "-o", "jsonl")
	if strings.Count(sessions, "\n") != len(hosts) {
		t.Errorf("the sessions are %s", sessions)
	}
	good(t, dir, "verify")
}

// What a policy asks about waits for a person, in another process, and the host is
// kept waiting or makes the call again.
func TestT25AHostWaitsForAPerson(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	must(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte("version: 1\nmode: ask\n"), 0o600))
	heard := make(chan string, 100)
	o := &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}
	type answer struct {
		r   *sdk.CallToolResult
		err error
	}
	ask := func(h *host, id string) chan answer {
		got := make(chan answer, 1)
		p := &sdk.CallToolParams{Name: "note", Arguments: map[string]any{"file": file}, Meta: sdk.Meta{"steno/call_id": id}}
		if id == "" {
			p.Meta = sdk.Meta{}
		}
		p.SetProgressToken("token " + id)
		go func() {
			r, err := h.CallTool(t.Context(), p)
			got <- answer{r, err}
		}()
		return got
	}
	h := connect(t, dir, o, gate("--session", "s1", "--policy", "policy.yaml")...)
	for id, decide := range map[string][]string{"yes": {"allow", "s1", "yes"}, "no": {"deny", "s1", "no", "--reason", "not today"}} {
		got := ask(h, id)
		if text := <-heard; !strings.Contains(text, "steno approvals allow s1 "+id) {
			t.Errorf("the host hears %s", text)
		}
		if out := good(t, dir, "approvals", "ls", "-o", "jsonl"); pick(t, out, "/call_id") != id {
			t.Errorf("there waits %s", out)
		}
		good(t, dir, append([]string{"approvals"}, decide...)...)
		a := <-got
		must(t, a.err)
		if id == "yes" && says(a.r) != "noted" || id == "no" && refusal(a.r) != "approval_denied" {
			t.Errorf("%s: it says %s", id, says(a.r))
		}
	}
	if countLines(file, "noted") != 1 {
		t.Errorf("there were %d effects", countLines(file, "noted"))
	}
	must(t, h.Close())

	// Nobody answers in time: the host may ask again, and joins what waits.
	h = connect(t, dir, o, gate("--session", "s1", "--policy", "policy.yaml", "--wait", "50ms")...)
	a := <-ask(h, "")
	must(t, a.err)
	if refusal(a.r) != "unavailable" || !strings.Contains(says(a.r), "waits for a person") {
		t.Errorf("it says %s", says(a.r))
	}
	call := fmt.Sprint(pick(t, good(t, dir, "approvals", "ls", "-o", "jsonl"), "/call_id"))
	a = <-ask(h, "")
	must(t, a.err)
	if refusal(a.r) != "unavailable" {
		t.Errorf("it says %s", says(a.r))
	}
	must(t, h.Close())
	h = connect(t, dir, o, gate("--session", "s1", "--policy", "policy.yaml")...) // the question outlives the gateway
	got := ask(h, "")
	if !eventually(func() bool { return strings.Contains(h.err.String(), call) }) {
		t.Fatal("the same call does not join the one that waits")
	}
	good(t, dir, "approvals", "allow", "s1", call)
	a = <-got
	must(t, a.err)
	if says(a.r) != "noted" || countLines(file, "noted") != 2 {
		t.Errorf("it says %s, and there were %d effects", says(a.r), countLines(file, "noted"))
	}
}

// Progress comes through, and a cancelled call stops where it runs.
func TestProgressAndCancelGoThroughTheGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	heard := make(chan string, 10)
	h := connect(t, dir, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}, gate("--session", "s1")...)
	p := &sdk.CallToolParams{Name: "steps", Meta: sdk.Meta{}}
	p.SetProgressToken("t")
	_, err := h.CallTool(t.Context(), p)
	must(t, err)
	for n := 1; n <= 3; n++ {
		if text := <-heard; text != fmt.Sprint("step ", n) {
			t.Errorf("step %d is %s", n, text)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := h.CallTool(ctx, &sdk.CallToolParams{Name: "hang", Arguments: map[string]any{"file": file}, Meta: sdk.Meta{"steno/call_id": "c"}})
		gone <- err
	}()
	if !eventually(func() bool { return countLines(file, "hangs") == 1 }) {
		t.Fatal("the call does not begin")
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	if !eventually(func() bool { return countLines(file, "stopped") == 1 }) {
		t.Error("the server goes on")
	}
	if out := good(t, dir, "calls", "wait", "s1", "c", "-o", "json"); pick(t, out, "/error/kind") != "cancelled" {
		t.Errorf("its result is %s", out)
	}
}

// Tools that come are told, and can be called.
func TestToolsThatComeAreToldThroughTheGateway(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 10)
	dir := t.TempDir()
	h := connect(t, dir, &sdk.ClientOptions{ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} }}, gate("--session", "s1")...)
	if r := h.ask("grown", nil, nil); refusal(r) != "unknown_tool" {
		t.Errorf("before it says %s", says(r))
	}
	h.ask("grow", nil, nil)
	<-changed
	if r := h.ask("grown", nil, nil); says(r) != "big now" {
		t.Errorf("it says %s", says(r))
	}
	must(t, h.Close())
	if n := strings.Count(good(t, dir, "session", "show", "s1", "-o", "jsonl"), `"type":"x.mcp_server"`); n != 2 {
		t.Errorf("the tools are recorded %d times", n)
	}
}

// An answer that is larger than anybody may send ends in its kind, and nothing else
// ends with it.
func TestAnAnswerThatIsTooLargeEndsInItsKind(t *testing.T) {
	t.Parallel()
	h := connect(t, t.TempDir(), nil, gate()...)
	if r := h.ask("large", map[string]any{"n": 33 << 20}, nil); refusal(r) != "payload_too_large" {
		t.Errorf("it says %.300s", says(r))
	}
	if r := h.ask("large", map[string]any{"n": 3}, nil); says(r) != "xxx" {
		t.Errorf("it says %.300s", says(r))
	}
}

// A signal ends a gateway in good order, with what it has under way.
func TestAGatewayEndsInGoodOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := connect(t, dir, nil, gate("--session", "s1")...)
	h.ask("echo", nil, nil)
	must(t, h.cmd.Process.Signal(syscall.SIGTERM))
	if err := h.Wait(); err != nil {
		t.Log(err) // the connection ends
	}
	if !eventually(func() bool {
		return pick(t, good(t, dir, "lease", "show", "s1", "-o", "json"), "/state") == "available"
	}) {
		t.Error("the session is not released")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, ".steno", "nats", "holders")); !eventually(func() bool {
		left, _ = os.ReadDir(filepath.Join(dir, ".steno", "nats", "holders"))
		return len(left) == 0
	}) {
		t.Errorf("it leaves %v", left)
	}
	for args, want := range map[string]int{"": 2, "--url http://127.0.0.1:1 -- x": 2, "--name x": 2, "--session a/b -- mcp-server": 2, "-- no-such-program-there": 1} {
		if out, errOut, code := steno(t, dir, append([]string{"mcp"}, strings.Fields(args)...)...); code != want || out != "" {
			t.Errorf("mcp %s: exit %d, %s%s", args, code, out, errOut)
		}
	}
}

// A server that is reached by HTTP is one like any other.
func TestAGatewayBeforeAServerOfHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := newTestServer()
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	t.Cleanup(web.Close)
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test-host", Version: "1"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: web.URL}, nil)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	alone := everything(t, &host{ClientSession: session})
	changed := make(chan struct{}, 10)
	h := connect(t, dir, &sdk.ClientOptions{ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} }},
		"steno", "mcp", "--session", "s1", "--url", web.URL)
	compare(t, alone, everything(t, h))
	h.ask("grow", nil, nil)
	<-changed // which comes beside the answers
	if r := h.ask("grown", nil, nil); says(r) != "big now" {
		t.Errorf("it says %s", says(r))
	}
	web.CloseClientConnections()
	if r := h.ask("dotted.name", nil, nil); says(r) != "dots" && refusal(r) != "interrupted" {
		t.Errorf("behind a broken connection it says %s", says(r))
	}
	if r := h.ask("dotted.name", nil, nil); says(r) != "dots" {
		t.Errorf("on the next one it says %s", says(r))
	}
}
