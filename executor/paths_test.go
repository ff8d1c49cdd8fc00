package executor_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// yard is a workspace with a store in it, links and locks.
func (p *place) yard() (dir string) {
	p.t.Helper()
	dir = filepath.Dir(p.dir)
	for _, d := range []string{"in/deep", ".ssh"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, f := range []string{"in/a.txt", "in/deep/b.lock", ".env"} {
		touch(p.t, filepath.Join(dir, f))
	}
	for link, to := range map[string]string{"out": "/etc", "back": "in/deep/../..", "soft": "in/deep/b.lock", "hidden": ".env", "loop": "loop", "store-link": p.dir} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			p.t.Fatal(err)
		}
	}
	return dir
}

// visitor declares paths and counts its runs.
func visitor(name string, write bool, runs *[]string) executor.Tool {
	t := toolOf(name, func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		*runs = append(*runs, c.CallID)
		return executor.Result{OK: true}, nil
	})
	t.Paths = []executor.PathArg{{Pointer: "/path"}, {Pointer: "/to/files/*", Write: write}}
	return t
}

func yardPlace(t *testing.T) *place {
	t.Parallel()
	return placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{}), filepath.Join(t.TempDir(), ".steno"))
}

func TestT9GateIsBeforeTheRecord(t *testing.T) {
	p := yardPlace(t)
	dir := p.yard()
	var runs []string
	n := p.node(append(executor.Builtin(), visitor("visit", true, &runs)))
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: dir}); err != nil {
		t.Fatal(err)
	}
	n.open("nowhere") // without a workspace
	for i, c := range []struct {
		session, tool, args string
		want                schema.Kind
		gate                string
	}{
		{"s1", "visit", `{"path":"in/a.txt"}`, "", "mode"},
		{"s1", "visit", `{}`, "", "mode"},
		{"s1", "visit", `{"path":7}`, "", "mode"}, // no path; its schema would say so
		{"s1", "visit", `{"path":"in/none/new.txt"}`, "", "mode"},
		{"s1", "visit", `{"path":"in/a.txt/b"}`, "", "mode"}, // leads nowhere
		{"s1", "visit", `{"path":"back/in/deep/b.lock","to":{"files":["in","` + dir + `/in"]}}`, "", "mode"},
		{"s1", "visit", `{"path":"../x"}`, schema.OutsideWorkspace, "path"},
		{"s1", "visit", `{"path":"out/hostname"}`, schema.OutsideWorkspace, "path"},
		{"s1", "visit", `{"path":"/etc/hostname"}`, schema.OutsideWorkspace, "path"},
		{"s1", "visit", `{"path":"a\u0000b"}`, schema.OutsideWorkspace, "path"},
		{"s1", "visit", `{"path":""}`, schema.InvalidArgs, "path"},
		{"s1", "visit", `{"path":"loop"}`, schema.WriteFailed, "path"},
		{"s1", "visit", `{"path":".ENV"}`, schema.ProtectedPath, "path"},
		{"s1", "visit", `{"path":"hidden"}`, schema.ProtectedPath, "path"},
		{"s1", "visit", `{"path":".ssh/new"}`, schema.ProtectedPath, "path"},
		{"s1", "visit", `{"path":"in/a.txt","to":{"files":["in/a.txt",".env"]}}`, schema.ProtectedPath, "path"},
		{"s1", "visit", `{"path":".steno/store"}`, schema.ProtectedPath, "evidence"},
		{"s1", "visit", `{"to":{"files":[["in/a.txt"],["store-link/sessions/s1/000001.jsonl"]]}}`, schema.ProtectedPath, "evidence"},
		{"s1", "write", `{"path":".steno/policies/x.yaml","content":""}`, schema.ProtectedPath, "evidence"},
		{"s1", "edit", `{"path":".env","old":"a","new":"b"}`, schema.ProtectedPath, "path"},
		{"s1", "read", `{"path":"out/hostname"}`, schema.OutsideWorkspace, "path"},
		{"s1", "list", `{"path":".steno"}`, schema.ProtectedPath, "evidence"},
		{"s1", "search", `{"pattern":"x","path":".ssh"}`, schema.ProtectedPath, "path"},
		{"nowhere", "visit", `{"path":"in/a.txt"}`, schema.OutsideWorkspace, "path"},
		{"nowhere", "visit", `{}`, "", "mode"},
	} {
		id := "c" + string(rune('a'+i))
		ran := len(runs)
		a := n.call(c.session, id, c.tool, c.args)
		if got := kindOfResult(t, a.Data); got != c.want {
			t.Errorf("%s %s: %s, want %q", c.tool, c.args, a.Data, c.want)
		}
		d, _ := p.last(c.session, schema.TypeDecision)
		want := map[bool]string{true: "allow", false: "deny"}[c.want == ""]
		if field[string](t, d, "call_id") != id || field[string](t, d, "decision") != want || field[string](t, d, "gate") != c.gate {
			t.Errorf("%s %s: decided is %s", c.tool, c.args, d)
		}
		if c.want != "" && (len(runs) > ran || field[int](t, a.Data, "attempt") != 0 || len(p.read(c.session).State.Call(id).Attempts) > 0) {
			t.Errorf("%s %s has started", c.tool, c.args)
		}
		if c.want == "" && len(runs) != ran+1 {
			t.Errorf("%s %s has not run", c.tool, c.args)
		}
	}
}

func TestT9GateIsBeforeACommand(t *testing.T) {
	p := yardPlace(t)
	dir := p.yard()
	file := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ntools: [{name: show, description: shows, argv: [cat], input: {type: object}, paths: [{pointer: /file}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	declared, err := executor.LoadTools(file)
	if err != nil {
		t.Fatal(err)
	}
	n := p.node(declared.Tools)
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: dir}); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]schema.Kind{`{"file":"in/a.txt"}`: "", `{"file":"hidden"}`: schema.ProtectedPath, `{"file":"/etc"}`: schema.OutsideWorkspace} {
		if a := n.call("s1", "c"+string(want), "show", args); kindOfResult(t, a.Data) != want {
			t.Errorf("%s: %s, want %q", args, a.Data, want)
		}
	}
}

// A rule is about where a path leads, whatever it is called.
func TestAPolicyIsAboutWherePathsLead(t *testing.T) {
	p := yardPlace(t)
	dir := p.yard()
	var runs []string
	n := p.node([]executor.Tool{visitor("visit", true, &runs)}, withPolicy(t, `version: 1
mode: auto
rules:
  - {name: locked, do: deny, path: '**/*.lock'}
  - {name: quiet, do: deny, path: in/deep/**, write: true}
  - {name: inside, do: allow, path: in/**}
`))
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: dir}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ args, rule string }{
		{`{"path":"in/a.txt"}`, "inside"},
		{`{"path":"in"}`, "inside"},
		{`{"path":"in/deep/new"}`, "inside"},
		{`{"path":"back/in/a.txt","to":{"files":["in/b.txt"]}}`, "inside"},
		{`{"path":"in/a.txt","to":{"files":["b.txt"]}}`, "no_match"}, // an allow fits all
		{`{"path":"in/a.txt/x"}`, "no_match"},                        // leads nowhere that could be allowed
		{`{}`, "no_match"},
		{`{"path":"soft"}`, "locked"},
		{`{"path":"in/deep/../deep/b.lock"}`, "locked"},
		{`{"path":"in/a.txt/../x.lock/y.lock"}`, "locked"}, // by the letter
		{`{"path":"new.lock"}`, "locked"},
		{`{"to":{"files":["back/in/deep/new"]}}`, "quiet"},
	} {
		n.call("s1", "c"+string(rune('a'+i)), "visit", c.args)
		if d, _ := p.last("s1", schema.TypeDecision); field[string](t, d, "rule") != c.rule {
			t.Errorf("%s: decided is %s, want rule %s", c.args, d, c.rule)
		}
	}
}

func TestPatternsOfPaths(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"a", "a", true}, {"a", "a/b", false}, {"a/*", "a/b", true}, {"a/*", "a", false}, {"*", "a/b", false},
		{"**", ".", true}, {"**", "a/b/c", true}, {"**/b", "b", true}, {"**/b", "a/b", true}, {"**/b", "a/b/c", false},
		{"a/**", "a", true}, {"a/**", "a/b/c", true}, {"a/**", "b", false}, {"a/**/c", "a/c", true}, {"a/**/c", "a/b/b/c", true},
		{"**/a/**/b", "x/a/a/y/b", true}, {"**/a/**/b", "x/a/y/c", false}, {"**/*.lock/**", "x/y.lock/z", true},
		{strings.Repeat("**/", 20) + "b", strings.Repeat("a/", 100) + "c", false},
	} {
		got, err := executor.FitsPath(c.pattern, c.path)
		if got != c.want || err != nil {
			t.Errorf("%s of %s: %t, %v", c.pattern, c.path, got, err)
		}
	}
	for _, none := range []string{"/a", "a/", "a//b", "../a", "./a", "a/[", "a**"} {
		if _, err := executor.FitsPath(none, "a"); err == nil {
			t.Errorf("%s is taken for a pattern", none)
		}
	}
	for pointer, ok := range map[string]bool{"/path": true, "/a/*/b": true, "": false, "path": false, "/a~2": false} {
		x := toolOf("x", noop)
		x.Paths = []executor.PathArg{{Pointer: pointer}}
		if _, err := executor.NewRegistry(x); (err == nil) != ok {
			t.Errorf("the pointer %q: %v", pointer, err)
		}
	}
	if i := slices.IndexFunc(executor.Builtin(), func(t executor.Tool) bool { return len(t.Paths) == 0 && t.Name != "bash" }); i >= 0 {
		t.Errorf("%s declares no path", executor.Builtin()[i].Name)
	}
}

// The decision about a path says enough for the result, where that was cut off
// with the end of the log: it comes back as the kind that it was.
func TestT9ALostRefusalComesBackAsItWas(t *testing.T) {
	p := yardPlace(t)
	dir := p.yard()
	var runs []string
	tools := append(executor.Builtin(), visitor("visit", true, &runs))
	n := p.node(tools)
	for _, session := range []string{"s1", "s2"} {
		if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Workspace: dir}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]schema.Kind{"../x": schema.OutsideWorkspace, "/etc/hostname": schema.OutsideWorkspace, "": schema.InvalidArgs, "loop": schema.WriteFailed,
		".ENV": schema.ProtectedPath, "store-link/sessions": schema.ProtectedPath}
	for path, kind := range want {
		wantKindOfResult(t, n.call("s1", "call:"+path, "visit", `{"path":"`+path+`"}`).Data, kind)
	}
	n.stop()
	var left []journal.Entry
	for _, e := range p.read("s1").Events {
		if e.Type == schema.TypeToolCall || e.Type == schema.TypeDecision {
			left = append(left, journal.Entry{Type: e.Type, Data: e.Data})
		}
	}
	p.leave("s2", left...)
	n = p.node(tools)
	for path, kind := range want {
		wantKindOfResult(t, n.call("s2", "call:"+path, "visit", `{"path":"`+path+`"}`).Data, kind)
	}
	if len(runs) > 0 || len(left) != 2*len(want) {
		t.Errorf("%q have run, of %d events", runs, len(left))
	}
}
