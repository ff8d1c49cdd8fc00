package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

const secret = "hunter2-do-not-tell"

func TestT22WhatBecomesOfACall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	code := 3
	type result = executor.Result
	outcomes := map[string]struct {
		run  func(context.Context) (result, error)
		want string // what the data holds
		kind schema.Kind
	}{
		"ok": {func(context.Context) (result, error) {
			return result{OK: true, Output: "out", ExitCode: new(int), Summary: "done", Content: jsontext.Value(`[ { "type" : "text" } ]`), Structured: jsontext.Value(`{"n":1e400}`),
				FilesRead: []string{"a"}, FilesChanged: []string{"b", "c\xff"}, Terminate: true}, nil
		}, `"ok":true,"output":"out","exit_code":0,"summary":"done","content":[{"type":"text"}],"structured":{"n":1e400},` +
			`"files_read":["a"],"files_changed":["b","c�"],"terminate":true,"duration_us":`, ""},
		"non-zero exit": {func(context.Context) (result, error) { return result{Output: "no", ExitCode: &code}, nil },
			`"ok":false,"output":"no","exit_code":3`, ""},
		"kind": {func(context.Context) (result, error) {
			return result{}, schema.Errorf(schema.NoMatch, "not there").With("path", "a").Cause(errors.New(secret))
		}, `"ok":false,"error":{"kind":"no_match","message":"not there","details":{"next":"read the file again and copy the text exactly","path":"a","session":"s1"}}`, schema.NoMatch},
		"wrapped kind": {func(context.Context) (result, error) {
			return result{}, fmt.Errorf("%s: %w", secret, schema.Errorf(schema.NotUnique, "twice"))
		}, `"message":"twice"`, schema.NotUnique},
		"unexpected": {func(context.Context) (result, error) { return result{Output: secret}, errors.New(secret) },
			`"error":{"kind":"tool_failed","message":"the tool failed unexpectedly","details":{"class":"*errors.errorString",`, schema.ToolFailed},
		"deadline of its own": {func(context.Context) (result, error) {
			return result{}, fmt.Errorf("%s: %w", secret, context.DeadlineExceeded)
		}, `"message":"the deadline passed"`, schema.Timeout},
		"cancelled by itself": {func(context.Context) (result, error) { return result{}, context.Canceled }, `"message":"cancelled"`, schema.Cancelled},
		"panic":               {func(context.Context) (result, error) { panic(secret) }, `"details":{"class":"panic",`, schema.ToolFailed},
		"panic of an error":   {func(context.Context) (result, error) { panic(errors.New(secret)) }, `"details":{"class":"panic",`, schema.ToolFailed},
		"index out of range":  {func(context.Context) (result, error) { return result{Output: strings.Fields("")[1]}, nil }, `"class":"panic"`, schema.ToolFailed},
		"odd details": {func(context.Context) (result, error) {
			return result{}, schema.Errorf(schema.ToolFailed, "broken \xff").With("f", func() {}).With("text", secret)
		}, `"message":"broken �","details":{"next":`, schema.ToolFailed},
		"long message": {func(context.Context) (result, error) {
			return result{}, schema.Errorf(schema.ToolFailed, "%s", strings.Repeat("\x00", 1<<20))
		}, `bytes left out`, schema.ToolFailed},
		"long details": {func(context.Context) (result, error) {
			return result{}, schema.Errorf(schema.ToolFailed, "long").With("text", strings.Repeat("a", 1<<20))
		}, `"message":"long","details":{"next":`, schema.ToolFailed},
		"a kind that is none": {func(context.Context) (result, error) { return result{}, schema.Errorf("no_such_kind", "odd") }, `"message":"odd","details":{"kind":"no_such_kind","next":`, schema.ToolFailed},
	}
	var tools []executor.Tool
	names := map[string]string{}
	for what, o := range outcomes {
		name := strings.ReplaceAll(what, " ", "_")
		names[what] = name
		tools = append(tools, toolOf(name, func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) { return o.run(ctx) }))
	}
	n := p.node(tools)
	n.open("s1")
	for what, o := range outcomes {
		a := n.call("s1", names[what], names[what], `{}`)
		p.wantRecorded("s1", a)
		if !strings.Contains(string(a.Data), o.want) || kindOfResult(t, a.Data) != o.kind {
			t.Errorf("%s is answered\n%.400s\nwant in it\n%s", what, a.Data, o.want)
		}
		if strings.Contains(string(a.Data), secret) {
			t.Errorf("%s tells the cause: %.400s", what, a.Data)
		}
	}
	// The process lives, and the operator's log has the causes.
	if log := n.log.String(); strings.Count(log, secret) < 3 || !strings.Contains(log, "panicked") {
		t.Errorf("the log does not tell the causes:\n%.2000s", log)
	}
}

// What a tool says is recorded whole, in its line or beside it, and above what a
// tool may say it is cut and marked. The answer always fits a message.
func TestOutputIsKeptWholeOrCutAndMarked(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var res executor.Result
	n := p.node([]executor.Tool{toolOf("say", func(context.Context, *executor.Invocation) (executor.Result, error) { return res, nil })})
	n.open("s1")
	long := jsontext.Value(`{"a":1e400,"b":"` + strings.Repeat("s", schema.MaxInline) + `"}`)
	much := jsontext.Value(`"` + strings.Repeat("s", executor.MaxOutput) + `"`)
	paths := make([]string, 1000)
	for i := range paths {
		paths[i] = fmt.Sprintf("%04d/%s", i, strings.Repeat("\x01", 1000))
	}
	most := strings.Repeat("0123456789abcde\n", executor.MaxOutput/16)
	for i, c := range []struct {
		what   string
		res    executor.Result
		blobs  int
		policy string // of the mark; "" for none
		bytes  int
	}{
		{"what just fits", executor.Result{Output: strings.Repeat("a", schema.MaxInline-2)}, 0, "", 0},
		{"one byte too many", executor.Result{Output: strings.Repeat("a", schema.MaxInline-1)}, 1, "", 0},
		{"much too many", executor.Result{Output: strings.Repeat("ü", 1<<20)}, 1, "", 0},
		{"nothing but NULs", executor.Result{Output: strings.Repeat("\x00", 1<<20)}, 1, "", 0},
		{"nothing but broken text", executor.Result{Output: strings.Repeat("\xff", 1<<20)}, 1, "", 0},
		{"controls that just fit in", executor.Result{Output: strings.Repeat("\x1b", schema.MaxInline/6-1)}, 0, "", 0},
		{"a structured answer that is long", executor.Result{Output: "out", Structured: long}, 1, "", 0},
		{"content that is long", executor.Result{Output: "out", Content: long}, 1, "", 0},
		{"the same twice", executor.Result{Output: "out", Content: long, Structured: long}, 2, "", 0},
		{"a structured answer that is no JSON", executor.Result{Output: "out", Structured: jsontext.Value(`{"a":`)}, 0, "left_out", 5},
		{"too much of everything", executor.Result{Output: strings.Repeat("\x00", 1<<20), Content: long, Structured: long, Summary: strings.Repeat("\x01", 1<<20), FilesRead: paths, FilesChanged: paths},
			3, "left_out", 2000 * 1005},
		{"all that a line can have", executor.Result{Output: strings.Repeat("a", schema.MaxInline-2), Content: long[:0:0], Structured: jsontext.Value(`"` + strings.Repeat("s", schema.MaxInline-2) + `"`),
			Summary: strings.Repeat("\x01", 1<<20), FilesRead: paths[:10], FilesChanged: paths[:10]}, 0, "", 0},
		{"too many files", executor.Result{Output: "out", FilesRead: paths}, 0, "left_out", 1000 * 1005},
		{"the most that a tool may say", executor.Result{Output: most}, 1, "", 0},
		{"one byte more", executor.Result{Output: most + "x"}, 1, "head_tail", executor.MaxOutput + 1},
		{"part of what the tool had", executor.Result{Output: "part", Bytes: 100}, 0, "head_tail", 100},
		{"a structured answer above that", executor.Result{Output: "out", Structured: much}, 0, "left_out", len(much)},
	} {
		res = c.res
		res.OK = true
		id := fmt.Sprint("c", i)
		done := make(chan executor.Answer, 1)
		go func() { done <- n.call("s1", id, "say", `{}`) }()
		a := wait(t, c.what, done)
		p.wantRecorded("s1", a)
		mark := field[struct {
			Limit  int    `json:"limit"`
			Bytes  int    `json:"bytes"`
			Policy string `json:"policy"`
		}](t, a.Data, "truncated")
		if mark.Policy != c.policy || mark.Bytes != c.bytes || c.policy != "" && mark.Limit != executor.MaxOutput {
			t.Errorf("%s is marked %+v", c.what, mark)
		}
		if blobs := field[[]string](t, a.Data, "blobs"); len(blobs) != c.blobs {
			t.Errorf("%s has the blobs %q", c.what, blobs)
		}
		if len(a.Data) > schema.MaxLine-8<<10 {
			t.Errorf("%s: the result has %d bytes", c.what, len(a.Data))
		}
		whole := p.whole("s1", a.Data)
		out, want := field[string](t, whole, "output"), strings.ReplaceAll(c.res.Output, "\xff", "\uFFFD")
		if cut := mark.Bytes > executor.MaxOutput && mark.Policy == "head_tail"; !cut && out != want || cut && (len(out) > executor.MaxOutput || !strings.Contains(out, "bytes left out")) {
			t.Errorf("%s: the output has %d bytes", c.what, len(out))
		}
		for key, v := range map[string]jsontext.Value{"content": c.res.Content, "structured": c.res.Structured} {
			if got := field[jsontext.Value](t, whole, key); mark.Policy == "" && string(got) != string(v) {
				t.Errorf("%s: %s has %d bytes, was %d", c.what, key, len(got), len(v))
			}
		}
		if shown := field[string](t, schema.Previews(a.Data), "output"); c.blobs > 0 && len(want) > schema.MaxInline && !strings.Contains(shown, "bytes left out") {
			t.Errorf("%s is shown as %.100q", c.what, shown)
		}
	}
}

func TestTheLargestCallFitsItsLine(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	session := strings.Repeat("s", 128)
	n.open(session)
	odd := strings.Repeat("\x01", 256)
	req := executor.Request{CallID: strings.Repeat("c", 256), Name: odd, Key: odd, DryRun: true}
	room := schema.MaxLine - 8<<10
	req.Turn = jsontext.Value(`7`)
	req.Args = jsontext.Value(`{"a":"` + strings.Repeat("a", schema.MaxInline-len(`{"a":""}`)) + `"}`) // the largest that stay in their line
	req.Context = jsontext.Value(`"` + strings.Repeat("x", room-len(`""`)-len(req.Args)-len(req.Turn)) + `"`)
	for _, name := range []string{odd, "echo"} {
		req.Name = name
		a, err := n.Do(within(t), session, req)
		if err != nil {
			t.Fatal(err)
		}
		p.wantRecorded(session, a)
		req.CallID = "d" + req.CallID[1:]
	}
	// Large args leave room, which they do not have without a limit themselves.
	req.Args = jsontext.Value(`{"a":"` + strings.Repeat("a", executor.MaxRequest-len(`{"a":""}`)) + `"}`)
	for _, c := range []struct {
		id, more, args string
		kind           schema.Kind
	}{
		{"e", "", "", ""},
		{"f", "x", "", schema.PayloadTooLarge},
		{"g", "", "x", schema.PayloadTooLarge},
	} {
		req := req
		req.CallID = c.id + req.CallID[1:]
		req.Context = jsontext.Value(`"` + c.more + strings.Repeat("x", room-schema.MaxRef-len(`""`)-len(req.Turn)) + `"`)
		req.Args = jsontext.Value(`{"a":"` + c.args + string(req.Args[len(`{"a":"`):]))
		_, err := n.Do(within(t), session, req)
		if schema.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %q", c.id, err, c.kind)
		}
	}
}

func TestWhatAToolSaysAtItsDeadlineIsAResult(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	late := toolOf("late", func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
		<-ctx.Done()
		return executor.Result{OK: true, Output: "made it"}, nil
	})
	late.Timeout = 20 * time.Millisecond
	n := p.node([]executor.Tool{late})
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c2", "late", `{}`).Data, "") // what came of it is a result
}

func TestASessionWhoseWorkspaceIsGoneSaysSo(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(append(executor.Builtin(), echo))
	gone := filepath.Join(t.TempDir(), "gone")
	// The store itself is no workspace.
	_, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: p.dir})
	wantErr(t, err, schema.ProtectedPath)
	for session, dir := range map[string]string{"s2": gone} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Workspace: dir}); err != nil {
			t.Fatal(err)
		}
		if dir == gone {
			if err := os.Remove(gone); err != nil {
				t.Fatal(err)
			}
		}
		for i, tool := range []string{"list", "bash"} {
			a := n.call(session, fmt.Sprint("c", i), tool, map[string]string{"list": `{}`, "bash": `{"command":"true"}`}[tool])
			if field[bool](t, a.Data, "ok") || strings.Contains(string(a.Data), p.dir) {
				t.Errorf("the answer is %s", a.Data)
			}
		}
		// A tool that needs none runs all the same.
		if a := n.call(session, "c9", "echo", `{}`); !field[bool](t, a.Data, "ok") {
			t.Errorf("the answer is %s", a.Data)
		}
	}
	// A folder that comes back is used.
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	if a := n.call("s2", "again", "list", `{}`); !field[bool](t, a.Data, "ok") {
		t.Errorf("the answer is %s", a.Data)
	}
}

// A tool that ends its goroutine leaves the outcome open; nobody waits for
// ever, and the next holder settles it.
func TestAToolThatNeverReturnsIsNotWaitedFor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	tools := []executor.Tool{toolOf("exit", func(context.Context, *executor.Invocation) (executor.Result, error) {
		runtime.Goexit()
		return executor.Result{}, nil
	}), echo}
	n := p.node(tools, func(c *executor.Config) { c.SessionCalls = 1 })
	n.open("s1")
	_, err := n.client.Call(within(t), "s1", request("c1", "exit", `{}`))
	wantErr(t, err, schema.OutcomeUnknown)
	n.call("s1", "c2", "echo", `{}`)
	n.stop()
	n = p.node(tools)
	wantKindOfResult(t, n.call("s1", "c1", "exit", `{}`).Data, schema.Interrupted)
}
