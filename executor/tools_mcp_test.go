package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"steno/executor"
	"steno/schema"
)

// loaded is what a tools file of this text declares.
func loaded(t *testing.T, text string) (executor.ToolsFile, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return executor.LoadTools(path)
}

func TestMCPServersOfAToolsFile(t *testing.T) {
	t.Setenv("SEARCH_TOKEN", "tok-1234567890")
	file, err := loaded(t, `
version: 1
mcpServers:
  search:
    url: https://example.com/mcp
    headers: {Authorization: "Bearer ${SEARCH_TOKEN}", X-Mode: "${SEARCH_MODE:-fast}"}
  mail:
    command: sh
    args: [-c, 'echo ${HOME}']
    cwd: .
    env: {MAIL_KEY: key-0987654321, MAIL_MODE: quick}
    trust: true
    tools:
      send: {tier: 1, read_only: false, repeatable: true, exclusive: true, phases: [editing], timeout: 90s, paths: [{pointer: /file}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Servers) != 2 || file.Servers[0].Name != "mail" || file.Servers[1].Name != "search" {
		t.Fatalf("declared are %+v", file.Servers)
	}
	mail, search := file.Servers[0], file.Servers[1]
	if !filepath.IsAbs(mail.Argv[0]) || mail.Argv[2] != "echo ${HOME}" || !slices.Equal(mail.Env, []string{"MAIL_KEY=key-0987654321", "MAIL_MODE=quick"}) || !mail.Trust || mail.Dir == "" {
		t.Errorf("mail is %+v", mail)
	}
	if search.URL != "https://example.com/mcp" || search.Headers["Authorization"] != "Bearer tok-1234567890" || search.Headers["X-Mode"] != "fast" || search.Trust {
		t.Errorf("search is %+v", search)
	}
	var secrets []string
	for _, s := range file.Secrets() {
		secrets = append(secrets, s.Name+" "+s.Value)
	}
	if slices.Sort(secrets); !slices.Equal(secrets, []string{"mail/MAIL_KEY key-0987654321", "search/Authorization tok-1234567890"}) {
		t.Errorf("secrets are %q", secrets)
	}
	yes := true
	tool := executor.Tool{Tier: 3, ReadOnly: true, Destructive: &yes}
	mail.Tools["send"].Over(&tool)
	if tool.Tier != 1 || tool.ReadOnly || !tool.Repeatable || !tool.Exclusive || tool.Timeout != 90*time.Second || len(tool.Paths) != 1 || len(tool.Phases) != 1 || tool.Destructive != &yes {
		t.Errorf("over it is %+v", tool)
	}
}

// The file that the README shows is there, and cmd/steno's script mcp runs it.
func TestTheReadmeShowsTheFileOfAnMCPServer(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../testdata/mcp/tools.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```yaml\n"+string(example)+"```") {
		t.Error("the README shows another file")
	}
}

// A file of a host of the protocol is JSON, and has no version.
func TestMCPServersOfAHost(t *testing.T) {
	t.Parallel()
	file, err := loaded(t, `{"mcpServers": {"time": {"type": "stdio", "command": "sh", "args": ["-c", "true"]}}}`)
	if err != nil || len(file.Servers) != 1 || len(file.Tools) != 0 {
		t.Errorf("it is %+v, %v", file, err)
	}
}

func TestMCPServersThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	server := func(more string) string { return "version: 1\nmcpServers:\n  s: {" + more + "}\n" }
	for _, c := range []struct {
		text, message string
		line          int // 0 if it is not told
	}{
		{"mcpServers: {}", "version", 0},
		{"version: 1\nmcpServers: {}", "no tools", 0},
		{"version: 2\nmcpServers: {s: {url: 'https://a/'}}", "version", 0},
		{"commands: {writable: []}\nmcpServers: {s: {url: 'https://a/'}}", "version", 0},
		{server("command: sh, disabled: true"), `no key "disabled"`, 3},
		{server("command: sh, type: sse"), `no type "sse"`, 0},
		{server("args: [x]"), "it names no program", 0},
		{server("command: no-such-program"), "cannot be run", 0},
		{server("command: sh, url: 'https://a/'"), "for a program", 0},
		{server("command: sh, type: stdio, url: 'https://a/'"), "by HTTP", 0},
		{server("type: http"), "http", 0},
		{server("url: 'ftp://a/'"), "http", 0},
		{server("url: 'https://u:p@a/'"), "password", 0},
		{server("url: 'http://example.com/', headers: {A: b}"), "https", 0},
		{server("url: 'https://a/', headers: {'a b': c}"), "no header", 0},
		{server("command: sh, env: {A: '${NOT_SET_ANYWHERE}'}"), "NOT_SET_ANYWHERE is not set", 3},
		{server("command: sh, env: {A: '${A B}'}"), "names no variable", 3},
		{server("command: sh, env: {STENO_KEY: a}"), "cannot be set", 0},
		{server("command: sh, cwd: ./gone"), "no folder", 0},
		{server("command: sh, tools: {t: {tiers: 1}}"), `no key "tiers"`, 3},
		{server("command: sh, tools: {t: {tier: -1}}"), "tier", 0},
		{server("command: sh, tools: {t: {phases: [thinking]}}"), "phase", 0},
		{server("command: sh, tools: {t: {timeout: 2h}}"), "timeout", 0},
		{"version: 1\nmcpServers:\n  a.b: {command: sh}\n  a_b: {command: sh}\n", `"a.b" and "a_b"`, 0},
		{"version: 1\nmcpServers:\n  a: {command: sh}\n  ab: {command: sh}\n  a_b: {command: sh}\n", `"a" and "a_b"`, 0},
		{"version: 1\nmcpServers:\n  mcp_x: {command: sh}\n", `and "mcp_x" could both`, 0},
		{"version: 1\nmcpServers:\n  " + strings.Repeat("a", 41) + ": {command: sh}\n", "1 to 40", 0},
	} {
		_, err := loaded(t, c.text)
		e := wantKind(t, err, schema.InvalidConfig)
		line, _ := e.Details["line"].(int)
		if !strings.Contains(e.Message, c.message) || line != c.line {
			t.Errorf("%s\ngives %s, line %d; want %q, line %d", c.text, e.Message, line, c.message, c.line)
		}
	}
}
