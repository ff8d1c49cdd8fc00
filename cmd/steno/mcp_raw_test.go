package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/journal"
)

// A host that begins with initialize, as most do, hears nothing of a server that
// ends but the answers to what was on its way: the next one is told the same. On
// standard output there are messages, one a line, and nothing else.
func TestAHostThatBeginsByItselfKeepsItsConnection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "effects")
	p := launch(t, dir, gate("--session", "s1")[1:]...)
	say := func(text string) {
		if _, err := fmt.Fprintln(p.in, text); err != nil {
			t.Fatal(err)
		}
	}
	call := func(id int, name string) {
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"file":%q}}}`, id, name, file))
		p.says(fmt.Sprintf(`"id":%d,`, id))
	}
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
	p.says(`"serverInfo"`)
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for id, name := range []string{"note", "die", "note", "die", "note"} {
		call(10+id, name)
	}
	say(`{"jsonrpc":"2.0","id":20,"method":"no/such"}`)
	p.says(`"id":20,`)
	call(21, "no-such-tool")
	say(`{"jsonrpc":"2.0","id":22,"method":"tools/call","params":{}}`)
	p.says(`"id":22,`)
	must(t, p.in.Close())
	if code := p.exit(); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	if countLines(file, "noted") != 3 || countLines(file, "dying") != 2 {
		b, _ := os.ReadFile(file)
		t.Errorf("the effects are %s", b)
	}
	kinds := map[string]string{"10": "noted", "11": "interrupted", "12": "noted", "13": "interrupted", "14": "noted", "20": `"error"`, "21": "unknown_tool", "22": "-32602"}
	for line := range strings.Lines(p.out.String()) {
		id := fmt.Sprint(pick(t, line, "/id"))
		if want := kinds[id]; !strings.Contains(line, want) {
			t.Errorf("the answer to %s is %s", id, line)
		}
		delete(kinds, id)
	}
	if len(kinds) > 0 {
		t.Errorf("there is no answer to %v", kinds)
	}
}

// A server of a tools file has in the log the names that executors give it, and the
// operator's word counts.
func TestAGatewayBeforeAServerOfAToolsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "tools.yaml"), []byte("version: 1\nmcpServers:\n  tester:\n    command: mcp-server\n    tools:\n      echo: {read_only: true, tier: 0}\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte("version: 1\nmode: read_only\n"), 0o600))
	h := connect(t, dir, nil, "steno", "mcp", "--session", "s1", "--tools", "tools.yaml", "--name", "tester", "--policy", "policy.yaml")
	tools, err := h.ListTools(t.Context(), nil)
	must(t, err)
	if len(tools.Tools) != 1 || tools.Tools[0].Name != "echo" {
		t.Errorf("a policy that lets nothing but reading through lists %d tools", len(tools.Tools))
	}
	if r := h.ask("echo", nil, nil); r.IsError {
		t.Errorf("it says %s", says(r))
	}
	file := filepath.Join(dir, "effects")
	if r := h.ask("note", map[string]any{"file": file}, nil); !r.IsError || countLines(file, "noted") > 0 {
		t.Errorf("it says %s", says(r))
	}
	must(t, h.Close())
	if out := good(t, dir, "calls", "ls", "s1", "-o", "jsonl"); !strings.Contains(out, `"tester_echo"`) || !strings.Contains(out, `"tester_note"`) {
		t.Errorf("the calls are %s", out)
	}
	if out, errOut, code := steno(t, dir, "mcp", "--tools", "tools.yaml", "--name", "other"); code != 2 || out != "" || !strings.Contains(errOut, "tester") {
		t.Errorf("another name gets exit %d, %s", code, errOut)
	}
}

// Where a serve runs on the store, what is asked of it about a gateway's session
// reaches the gateway; and without one it does too.
func TestAGatewayIsReachedThroughAServe(t *testing.T) {
	t.Parallel()
	for _, serves := range []bool{true, false} {
		t.Run(fmt.Sprint("serve ", serves), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "effects")
			if serves {
				launch(t, dir, "serve", "--listen", "127.0.0.1:0").says("context")
			}
			h := connect(t, dir, nil, gate("--session", "s1")...)
			got := make(chan string, 1)
			go func() {
				r, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "hang", Arguments: map[string]any{"file": file}, Meta: sdk.Meta{"steno/call_id": "c"}})
				if err != nil {
					got <- err.Error()
					return
				}
				got <- refusal(r)
			}()
			if !eventually(func() bool { return countLines(file, "hangs") == 1 }) {
				t.Fatal("the call does not begin")
			}
			good(t, dir, "calls", "cancel", "s1", "c", "--reason", "enough")
			if kind := <-got; kind != "cancelled" {
				t.Errorf("the host gets %s", kind)
			}
			good(t, dir, "lease", "release", "s1", "--reason", "another is to have it")
			if r := h.ask("note", map[string]any{"file": file}, nil); says(r) != "noted" { // it takes the session again
				t.Errorf("afterwards it says %s", says(r))
			}
			must(t, h.Close())
			good(t, dir, "verify", "s1")
		})
	}
}

// A server might run a call that has no id, and nobody could be told what came of it.
// What the log says of a tool, whoever appended it, is not what the server says, and a
// server that says something else later is believed then.
func TestAGatewayGoesByWhatTheServerSaysNow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, flag := filepath.Join(dir, "effects"), filepath.Join(dir, "reads")
	must(t, os.WriteFile(filepath.Join(dir, "tools.yaml"), []byte("version: 1\nmcpServers:\n  tester:\n    command: mcp-server\n    trust: true\n    env: {TESTER_READS: "+flag+"}\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte("version: 1\nmode: read_only\n"), 0o600))
	forged := `{"content":[{"name":"tester_note","tool":{"name":"note","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}}]}`
	written(t, dir, "s1", false, []journal.Entry{entry("x.mcp_server", forged)})
	p := launch(t, dir, "mcp", "--session", "s1", "--tools", "tools.yaml", "--name", "tester", "--policy", "policy.yaml")
	say := func(text string) {
		if _, err := fmt.Fprintln(p.in, text); err != nil {
			t.Fatal(err)
		}
	}
	call := func(id int, name string) string {
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"file":%q}}}`, id, name, file))
		p.says(fmt.Sprintf(`"id":%d,`, id))
		for line := range strings.Lines(p.out.String()) {
			if strings.Contains(line, fmt.Sprintf(`"id":%d,`, id)) {
				return line
			}
		}
		return ""
	}
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
	p.says(`"serverInfo"`)
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := call(2, "note"); !strings.Contains(got, `"isError":true`) {
		t.Errorf("a forged word of the log lets note run: %s", got)
	}
	for _, id := range []string{"", `"id":null,`} {
		say(`{"jsonrpc":"2.0",` + id + `"method":"tools/call","params":{"name":"echo","arguments":{}}}`)
		say(fmt.Sprintf(`{"jsonrpc":"2.0",%s"method":"tools/call","params":{"name":"note","arguments":{"file":%q}}}`, id, file))
	}
	if got := call(3, "shifty"); strings.Contains(got, `"isError":true`) {
		t.Errorf("a trusted server says that shifty only reads, and it does not run: %s", got)
	}
	must(t, os.WriteFile(flag, nil, 0o600)) // from now on it says that it does not
	call(4, "shift")
	p.says("tools/list_changed")
	if got := call(5, "shifty"); !strings.Contains(got, `"isError":true`) {
		t.Errorf("shifty no longer only reads, and runs: %s", got)
	}
	must(t, p.in.Close())
	p.exit()
	if n := countLines(file, "noted"); n > 0 {
		t.Errorf("note ran %d times", n)
	}
	if n := strings.Count(p.err.String(), "without an id was not passed on"); n != 4 {
		t.Errorf("%d calls without an id are named", n)
	}
}

// A host that mistypes a tool gets the same from the record, and what follows too.
func TestS10AMistypedToolIsAnsweredFromTheRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	say := func(argv ...string) (answers []string) {
		h := connect(t, dir, nil, argv...)
		for _, name := range []string{"ecoh", "echo", "bash"} {
			answers = append(answers, says(h.ask(name, nil, nil)))
		}
		must(t, h.Close())
		return answers
	}
	live := say(gate("--session", "s1")...)
	if again := say("steno", "replay", "s1", "--serve", "mcp"); !slices.Equal(live, again) {
		t.Errorf("the record says %q and the server said %q", again, live)
	}
	// Whoever takes the session over has a bash, which is not the server's.
	if out := good(t, dir, "calls", "ls", "s1", "-o", "jsonl"); strings.Contains(out, `"tool":"bash"`) || !strings.Contains(out, `"tool":"mcp_bash`) {
		t.Errorf("the calls are %s", out)
	}
}
