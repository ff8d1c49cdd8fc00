package executor_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/executor"
	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

// commands adds the tools of a file to those of the bench, and bash is as the file
// says; how are more of its keys.
func (b *bench) commands(tools string, how ...string) {
	b.t.Helper()
	path := filepath.Join(b.out, "tools.yaml")
	if err := os.WriteFile(path, []byte("version: 1\n"+strings.Join(how, "\n")+"\ntools:\n"+tools), 0o600); err != nil {
		b.t.Fatal(err)
	}
	file, err := executor.LoadTools(path)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, t := range append(file.Tools, file.Commands.Builtin()...) {
		if err := b.reg.Replace(t); err != nil {
			b.t.Fatal(err)
		}
	}
}

// shell is a tool of the file that is a line of shell, with more of its keys.
func shell(name, line string, more ...string) string {
	return "  - name: " + name + "\n    description: A test.\n    input: {type: object}\n    argv: [sh, -c, '" + strings.ReplaceAll(line, "'", "''") + "']\n" +
		strings.Join(append(more, ""), "\n")
}

func TestT16ANonZeroExitOfACommandToolIsAResult(t *testing.T) {
	b := newBench(t)
	b.commands(shell("good", "echo fine") + shell("no", "echo out; echo err >&2; exit 7") + shell("killed", "kill -TERM $$") +
		shell("data", `echo '{"a":'; echo why >&2; exit 3`, "    output: {type: object}"))
	for _, c := range []struct {
		tool, output, summary string
		code                  int
	}{
		{"good", "fine\n", "exit 0, 5 bytes of output", 0},
		{"no", "out\nerr\n", "exit 7, 8 bytes of output", 7},
		{"killed", "", "ended by signal 15 (terminated), exit 143, 0 bytes of output", 143},
		{"data", "{\"a\":\nwhy\n", "exit 3, 6 bytes of output", 3},
	} {
		res := b.must(c.tool, args{})
		if res.ExitCode == nil || *res.ExitCode != c.code || c.tool == "data" && res.Structured != nil || res.OK != (c.code == 0) || res.Output != c.output || res.Summary != c.summary {
			t.Errorf("%s: %+v", c.tool, res)
		}
	}
}

func TestACommandToolGetsItsCall(t *testing.T) {
	t.Setenv("STENO_TOKEN", "leak-1")
	t.Setenv("MAIL_HOST", "mail.example")
	t.Setenv("MAIL_PASSWORD", "leak-2")
	b := newBench(t)
	b.commands(shell("look", "pwd -P; cat; env", "    env: [MAIL_HOST, NOT_SET]"))
	res := b.must("look", args{"text": "ä \" $HOME `id`\n", "n": 1})
	got := lines(res.Output)
	if got[0] != b.dir || got[1] != `{"n":1,"text":"ä \" $HOME `+"`id`"+`\n"}` && got[1] != `{"text":"ä \" $HOME `+"`id`"+`\n","n":1}` {
		t.Errorf("it runs in %s and reads %s", got[0], got[1])
	}
	for _, want := range []string{"STENO_SESSION=01J00000000000000000000000", "STENO_CALL_ID=call-1", "STENO_KEY=key-1", "STENO_ATTEMPT=2", "STENO_EPOCH=3", "STENO_SEQ=44", "MAIL_HOST=mail.example"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in the environment:\n%s", want, res.Output)
		}
	}
	if strings.Contains(res.Output, "leak") || strings.Contains(res.Output, "NOT_SET") || strings.Contains(res.Output, "DRY_RUN") {
		t.Errorf("too much is in the environment:\n%s", res.Output)
	}
}

// More arguments than a pipe holds, for a command that does not read them.
func TestACommandToolNeedNotReadItsArguments(t *testing.T) {
	b := newBench(t)
	b.commands(shell("deaf", "echo done") + shell("count", "wc -c") + shell("leaves", "(exec >/dev/null 2>&1; sleep 1000) & echo done"))
	a := args{"text": strings.Repeat("x", 1<<20)}
	if res := b.must("deaf", a); res.Output != "done\n" {
		t.Errorf("got %q", res.Output)
	}
	if res := b.must("count", a); strings.TrimSpace(res.Output) != "1048588" {
		t.Errorf("got %q", res.Output)
	}
	if res := b.must("leaves", a); res.Output != "done\n" {
		t.Errorf("got %q", res.Output)
	}
}

func TestACommandToolAnswersWithJSON(t *testing.T) {
	b := newBench(t)
	const output = "    output: {type: object, properties: {n: {type: integer}}, required: [n]}"
	b.commands(shell("fits", `echo ' {"n": 1} '; echo "it  took" >&2; echo a while >&2`, output) +
		shell("text", "echo hello", output) + shell("other", `echo '{"n":"x"}'`, output) + shell("silent", "true", output) +
		shell("much", `printf '{"n":1,"s":"%0900000d"}' 1`, output, "    limits: {output: 1KiB}") +
		shell("broken", `printf '{"n":1,"s":"\377"}'`, output))
	res := b.must("fits", args{})
	if !res.OK || string(res.Structured) != " {\"n\": 1} \n" || res.Output != string(res.Structured) || res.Summary != "exit 0, 11 bytes of output; it took a while" {
		t.Errorf("got %+v", res)
	}
	for _, tool := range []string{"text", "other", "silent", "much"} {
		_, err := b.call(tool, args{})
		if e := wantKind(t, err, schema.ToolFailed); tool == "much" && !strings.Contains(e.Message, "900014 bytes") {
			t.Errorf("%s: %v", tool, e)
		}
	}
	if res := b.must("broken", args{}); string(res.Structured) != `{"n":1,"s":"`+"\uFFFD"+`"}` {
		t.Errorf("got %s", res.Structured)
	}
}

func TestT12ADryRunOfACommandToolSaysWhatWouldHappen(t *testing.T) {
	b := newBench(t)
	b.commands(shell("plain", "touch made") + shell("knows", `echo "dry: $STENO_DRY_RUN"`, "    dry_run: true") +
		shell("data", `echo plan`, "    dry_run: true", "    output: {type: object}"))
	dry := func(c *executor.Invocation) { c.DryRun = true }
	for tool, want := range map[string]string{"plain": " -c touch made", "knows": "dry: 1\n", "data": "plan\n"} {
		res, err := b.do(context.Background(), tool, args{}, dry)
		if err != nil || !res.OK || !strings.HasSuffix(res.Output, want) {
			t.Errorf("%s: %+v, %v", tool, res, err)
		}
	}
	if _, err := os.Stat(filepath.Join(b.dir, "made")); err == nil {
		t.Error("a dry run had an effect")
	}
}

func TestTheCheckOfACommandTool(t *testing.T) {
	b := newBench(t)
	const output = "    output: {type: object, properties: {n: {type: integer}}, required: [n]}"
	check := func(line string) string { return "    check: [sh, -c, '" + line + "']" }
	b.commands(shell("took", "true", check(`cat; echo "$STENO_KEY $STENO_ATTEMPT"`)) + shell("not", "true", check("exit 1")) +
		shell("unknown", "true", check("exit 2")) + shell("killed", "true", check("kill $$")) +
		shell("data", "true", output, check(`echo {\"n\":1}`)) + shell("other", "true", output, check("echo {}")))
	for name, want := range map[string]struct {
		took   bool
		output string
		fails  bool
	}{
		"took": {true, "{\"a\":1}\nkey-1 2\n", false}, "not": {}, "unknown": {fails: true}, "killed": {fails: true},
		"data": {true, "{\"n\":1}\n", false}, "other": {fails: true},
	} {
		tool, err := b.reg.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tool.Check(context.Background(), &executor.Invocation{Key: "key-1", Attempt: 2, Args: jsontext.Value(`{"a":1}`), Workspace: b.w})
		if (err != nil) != want.fails || err == nil && (got.Took != want.took || got.Result.Output != want.output || got.Result.OK != want.took) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestACommandToolNeedsAWorkspace(t *testing.T) {
	b := newBench(t)
	b.commands(shell("run", "true"))
	_, err := b.do(context.Background(), "run", args{}, func(c *executor.Invocation) { c.Workspace = nil })
	wantKind(t, err, schema.CommandFailed)
}

func TestAToolsFileSaysWhatAToolIs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	list, _, err := executor.ParseTools([]byte(`
version: 1
tools:
  - name: a
    description: |
      Two
      lines.
    argv: [./run.sh, --flag, '{}']
    input: {type: object, properties: {n: {type: integer, maximum: 12345678901234567}}}
    tier: 0
    read_only: true
    repeatable: true
    idempotent: true
    destructive: false
    phases: [investigating]
    escalates: true
    paths: [{pointer: /n, write: true}, {pointer: /m}]
    check: [./run.sh]
`), dir)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	a := list[0]
	if a.Description != "Two\nlines.\n" || string(a.Input) != `{"type":"object","properties":{"n":{"type":"integer","maximum":12345678901234567}}}` ||
		a.Tier != 0 || !a.ReadOnly || !a.Repeatable || a.Output != nil || a.Timeout <= 0 ||
		!a.Idempotent || a.Destructive == nil || *a.Destructive || a.OpenWorld != nil || !a.Escalates || a.Check == nil ||
		!slices.Equal(a.Phases, []string{"investigating"}) || !slices.Equal(a.Paths, []executor.PathArg{{Pointer: "/n", Write: true}, {Pointer: "/m"}}) {
		t.Errorf("got %+v", a)
	}
	list, _, err = executor.ParseTools([]byte("version: 1\ntools: [{name: b, description: B., argv: [sh], input: {type: object}}]"), dir)
	if err != nil || len(list) != 1 || list[0].Tier != 3 || list[0].ReadOnly || list[0].Repeatable {
		t.Errorf("left out are: %+v, %v", list, err)
	}
}

// The files that the README shows are there, and cmd/steno's scripts tools and
// redact run them.
func TestTheReadmeShowsFilesThatAreThere(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tools/tools.yaml", "redact/redact.yaml"} {
		example, err := os.ReadFile("../testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), "```yaml\n"+string(example)+"```") {
			t.Errorf("the README shows another file than testdata/%s", name)
		}
	}
}

func TestAToolsFileThatCannotBeUsed(t *testing.T) {
	const head = "version: 1\ntools:\n"
	tool := func(more string) string { return head + shell("t", "true", more) }
	for _, c := range []struct {
		text, message string
		line          int // 0 if it is not told
	}{
		{"", "empty", 0},
		{"tools: []", "version", 0},
		{"version: 2\ntools: []", "version", 0},
		{"version: 1", "no tools", 0},
		{"version: 1\ntool: []", `no key "tool"`, 2},
		{"version: '1'\ntools: []", "a number is wanted", 1},
		{tool("    argv: [x]"), `"argv" stands twice`, 7},
		{tool("    shell: true"), `no key "shell"`, 7},
		{tool("    Tier: 1"), `no key "Tier"`, 7},
		{tool("    limits: {space: 1GiB}"), `no key "space"`, 7},
		{tool("    limits: {memory: 1MiB}"), "limits.memory", 0},
		{tool("    limits: {processes: -1}"), "limits.processes", 0},
		{"version: 1\ncommands: {users: x}\ntools: []", `no key "users"`, 2},
		{"version: 1\ncommands: {writable: [here]}\ntools: []", "not absolute", 0},
		{"version: 1\ncommands: {writable: [/no/such/folder]}\ntools: []", "not there", 0},
		{"version: 1\ncommands: {user: no-such-user}\ntools: []", `user "no-such-user"`, 0},
		{tool("    limits: {timeout: 60}"), "string", 7},
		{tool("    limits: {timeout: soon}"), "no length of time", 7},
		{tool("    limits: {timeout: 2h}"), "limits.timeout", 0},
		{tool("    limits: {timeout: -5s}"), "limits.timeout", 0},
		{tool("    limits: {output: 12MB}"), "no number of bytes", 7},
		{tool("    limits: {output: 65MiB}"), "limits.output", 0},
		{tool("    limits: {output: 12B}"), "limits.output", 0},
		{tool("    limits: {cpu: 10ms}"), "limits.cpu", 0},
		{tool("    limits: {files: 3}"), "limits.files", 0},
		{tool("    limits: {files: -1}"), "limits.files", 0},
		{tool("    tier: -1"), "tier", 0},
		{tool("    tier: high"), "a number is wanted", 7},
		{tool("    read_only: yes"), "true or false is wanted", 7},
		{tool("    env: HOME"), "a list is wanted", 7},
		{tool("    env: ['A=B']"), "cannot be passed on", 0},
		{tool("    env: [STENO_KEY]"), "cannot be passed on", 0},
		{tool("    output: {type: string}"), `type is not "object"`, 0},
		{tool("    output: &a {type: object}"), "anchors", 7},
		{tool("    output: !!map {type: object}"), "tags", 7},
		{tool("    output:"), "no value", 7},
		{tool("    output: {1: 2}"), "a key is text", 7},
		{tool("    output: {maximum: 0x10}"), "decimal", 7},
		{tool("    output: {maximum: 99999999999999999999}"), "quotes", 7},
		{tool("    output: [" + strings.Repeat("[", 1000)), "too deep", 7},
		{tool("   tier: 1"), "", 7},
		{tool("---\nversion: 1"), "second document", 8},
		{"%YAML 1.2\n---\n" + tool(""), "directive", 1},
		{"version: 1\ntools: \xff", "UTF-8", 0},
		{strings.Repeat("#", 256<<10+1), "longer than", 0},
		{head + shell("t", "true") + shell("t", "true"), "tool 2: there is a tool", 0},
		{head + shell("a b", "true"), "name", 0},
		{head + "  - {name: t, description: '', argv: [sh], input: {type: object}}", "no description", 0},
		{head + "  - {name: t, description: T, argv: [sh]}", "schema", 0},
		{head + "  - {name: t, description: T, argv: [sh], input: {type: object, $ref: 'http://example.com/s.json'}}", "schema", 0},
		{head + "  - {name: t, description: T, argv: [sh], input: {type: object, properties: {a: {pattern: '(?=a)'}}}}", "schema", 0},
		{head + "  - {name: t, description: T, argv: [], input: {type: object}}", "argv: it names no program", 0},
		{tool("    check: []"), "check: it names no program", 0},
		{tool("    check: [./gone]"), "check: ", 0},
		{tool("    phases: [thinking]"), "phase", 0},
		{tool("    paths: [{pointer: path}]"), "pointer", 0},
		{tool("    paths: [{at: /path}]"), `no key "at"`, 7},
		{head + "  - {name: t, description: T, argv: [no-such-program], input: {type: object}}", "not found", 0},
		{head + "  - {name: t, description: T, argv: [./none], input: {type: object}}", "no such file", 0},
		{head + "  - {name: t, description: T, argv: [sh, \"a\\0\"], input: {type: object}}", "zero character", 0},
	} {
		_, _, err := executor.ParseTools([]byte(c.text), t.TempDir())
		e := wantKind(t, err, schema.InvalidConfig)
		line, _ := e.Details["line"].(int)
		if !strings.Contains(e.Message, c.message) || line != c.line {
			t.Errorf("%.200s\ngives %s, line %d; want %q, line %d", c.text, e.Message, line, c.message, c.line)
		}
	}
	_, err := executor.LoadTools(filepath.Join(t.TempDir(), "gone.yaml"))
	if e := wantKind(t, err, schema.InvalidConfig); !strings.Contains(e.Message, "gone.yaml") {
		t.Errorf("got %v", e)
	}
}

// Whatever a file holds is tools that can be registered, or invalid_config.
func FuzzToolsFile(f *testing.F) {
	example, err := os.ReadFile("../testdata/tools/tools.yaml")
	if err != nil {
		f.Fatal(err)
	}
	dir, err := filepath.Abs("../testdata/tools")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add("version: 1\ntools: [{name: b, description: 'B', argv: [sh], input: {type: object}, limits: {timeout: 1s}}]")
	f.Add("a: &a [*a]\n? b\n: !!c |\n  d\n...\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, _, err := executor.ParseTools([]byte(text), dir)
		if err != nil {
			wantKind(t, err, schema.InvalidConfig)
			return
		}
		reg, err := executor.NewRegistry(list...)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list {
			if !jsontext.Value(tool.Input).IsValid() || tool.Timeout <= 0 {
				t.Errorf("loaded is %+v", tool)
			}
			_ = reg.Validate(tool.Name, jsontext.Value(`{}`))
		}
	})
}
