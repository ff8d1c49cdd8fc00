package mcp_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/schema"
)

func TestT1NamesOfToolsOfAnMCPServer(t *testing.T) {
	t.Parallel()
	taken := executor.Tool{Name: "raw_taken", Description: "Another one.", Input: jsontext.Value(`{"type":"object"}`),
		Run: func(context.Context, *executor.Invocation) (executor.Result, error) { return executor.Result{}, nil }}
	b := idle(t, taken).start("names")
	var names []string
	for _, tool := range b.reg.Tools() {
		names = append(names, tool.Name)
		if tool.Name == "raw_files_read" && (tool.Host != executor.Host{Server: "raw"} || tool.Original != "files/read") {
			t.Errorf("it comes from %+v, as %s", tool.Host, tool.Original)
		}
	}
	if len(names) != 3 || !slices.Contains(names, "raw_files_read") || !slices.Contains(names, "raw_taken") || len(names[1]) > 64 {
		t.Errorf("registered are %q", names)
	}
	left := strings.Join(b.all.Status()[0].Left, "\n")
	for _, want := range []string{`"a.b" would be raw_a_b, as "a_b"`, `"a_b" would be raw_a_b, as "a.b"`, `"raw_taken" and "taken" would both be called raw_taken`} {
		if !strings.Contains(left, want) {
			t.Errorf("left out are\n%s\nwithout %s", left, want)
		}
	}
}

func TestT1SchemasOfAnMCPServerThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	b := idle(t).start("schemas")
	b.want("echo", `{"n":1}`, `{"n":1}`)
	left := b.all.Status()[0].Left
	for _, name := range []string{"array", "deep", "large", "pattern", "remote"} {
		if !slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, name+": ") && strings.Contains(s, "schema") }) {
			t.Errorf("%s is not left out: %q", name, left)
		}
	}
	mute, err := b.reg.Get("raw_mute")
	if err != nil || mute.Description == "" || mute.Output != nil || len(left) != 5 {
		t.Errorf("mute is %+v, %v; left out are %q", mute, err, left)
	}
}

func TestT8WhatAnMCPServerSaysOfItsTools(t *testing.T) {
	t.Parallel()
	get := func(b *bench, name string) executor.Tool {
		tool, err := b.reg.Get("raw_" + name)
		if err != nil {
			t.Fatal(err)
		}
		return tool
	}
	b := idle(t).start("trust")
	for _, name := range []string{"reads", "again", "plain"} {
		if x := get(b, name); x.Tier != 3 || x.ReadOnly || x.Repeatable || x.Idempotent || x.Destructive != nil || x.OpenWorld != nil || x.Host.Trusted {
			t.Errorf("%s is believed: %+v", name, x)
		}
	}
	no, zero := false, 0
	b = idle(t).start("trust", func(s *executor.MCPServer) {
		s.Trust, s.Tools = true, map[string]executor.MCPTool{"again": {Repeatable: &no}, "plain": {Tier: &zero}}
	})
	if x := get(b, "reads"); x.Tier != 0 || !x.ReadOnly || !x.Repeatable || *x.OpenWorld || !x.Host.Trusted {
		t.Errorf("reads is %+v", x)
	}
	if x := get(b, "again"); x.Tier != 3 || x.ReadOnly || x.Repeatable || !x.Idempotent || *x.Destructive {
		t.Errorf("again is %+v", x)
	}
	if x := get(b, "plain"); x.Tier != 0 || x.ReadOnly || x.Repeatable {
		t.Errorf("plain is %+v", x)
	}
}

func TestAnMCPServerThatDies(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	e := b.wantKind("die", schema.Interrupted)
	if !strings.Contains(e.Message, "not known") {
		t.Errorf("it is told as %s", e.Message)
	}
	b.back()
	b.want("echo", `{"n":1}`, `{"n":1}`)
	if n := b.noted(`call die "c-die"`); n != 1 {
		t.Errorf("the call reached it %d times", n)
	}
	if n := b.noted("started"); n != 2 {
		t.Errorf("it was started %d times", n)
	}
}

// What is no result of the protocol is none in the log: its tool has run, and what
// it says cannot be read.
func TestAnMCPServerThatAnswersWithNoResult(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	for _, name := range []string{"null", "array", "string", "contents"} {
		b.wantKind(name, schema.ToolFailed)
		b.want("echo", `{"n":1}`, `{"n":1}`)
	}
	if n := b.noted("started"); n != 1 {
		t.Errorf("it was started %d times", n)
	}
}

func TestAnMCPServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	b := idle(t).start("exits")
	s := b.all.Status()[0]
	if s.Connected || !strings.Contains(s.Why, "exit code 3") {
		t.Errorf("it stands as %+v", s)
	}
	if !strings.Contains(b.log.String(), "there is no licence") || strings.Contains(b.log.String(), "abcdefg123456") {
		t.Errorf("the operator is not told what it says:\n%s", b.log)
	}
	if _, err := b.reg.Get("raw_echo"); schema.KindOf(err) != schema.Unavailable {
		t.Errorf("a tool of it is %v", err)
	}
	if _, err := b.reg.Get("echo"); schema.KindOf(err) != schema.UnknownTool {
		t.Errorf("a tool of nobody is %v", err)
	}
	b.eventually("it is tried again", func() bool { return b.noted("started") > 2 })
}

func TestAnMCPServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	b := idle(t).start("silent")
	if s := b.all.Status()[0]; s.Connected || !strings.Contains(s.Why, "not answered") {
		t.Errorf("it stands as %+v", s)
	}
}

func TestAnMCPServerWhoseListDoesNotEnd(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"endless", "many"} {
		b := idle(t).start(mode)
		if s := b.all.Status()[0]; s.Connected || !strings.Contains(s.Why, "tools") {
			t.Errorf("%s stands as %+v", mode, s)
		}
	}
}

func TestAnMCPServerThatHangs(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.call(ctx, "hang", `{}`)
		done <- err
	}()
	b.eventually("the call has reached it", func() bool { return b.noted(`call hang "c-hang"`) == 1 })
	b.want("echo", `{"n":1}`, `{"n":1}`) // beside it
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("it ends with %v", err)
	}
	b.eventually("it is told", func() bool { return b.noted("cancelled") == 1 })
}

func TestAnMCPServerThatSaysTooMuch(t *testing.T) {
	t.Parallel()
	b := idle(t).start("greets")
	b.want("twice", `{}`, "first")
	b.want("strangers", `{}`, "mine")
	b.want("flood", `{}`, "over")
	b.want("echo", `{"n":1}`, `{"n":1}`)
	if !strings.Contains(b.log.String(), "hello, this is a server") || b.noted("started") != 1 {
		t.Errorf("it was started %d times\n%s", b.noted("started"), b.log)
	}
}

// An answer that is too long ends its own call and no other.
func TestAnMCPServerWhoseAnswerIsTooLong(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	b.wantKind("long", schema.PayloadTooLarge)
	b.want("echo", `{"n":1}`, `{"n":1}`)
	if n := b.noted("started"); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	b.wantKind("longid", schema.Interrupted) // nobody can tell whose answer that was
	b.back()
	b.want("big", `{}`, strings.Repeat("x", 4<<20))
}

func TestAnMCPServerThatPrintsGarbage(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	b.wantKind("garbage", schema.Interrupted)
	b.back()
	b.want("echo", `{"n":1}`, `{"n":1}`)
}

func TestAnMCPServerThatAnswersWithAnError(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	if e := b.wantKind("fails", schema.ToolFailed); !strings.Contains(e.Message, "no such thing") || strings.Contains(e.Message, "abcdefg123456") || fmt.Sprint(e.Details["code"]) != "-32602" {
		t.Errorf("it is told as %v", e)
	}
	res, err := b.call(t.Context(), "no", `{}`)
	if err != nil || res.OK || res.Output != "it cannot be done" {
		t.Errorf("a no is %+v, %v", res, err)
	}
}

func TestAnMCPServerThatChangesItsTools(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	before, err := b.reg.Get("raw_echo")
	if err != nil {
		t.Fatal(err)
	}
	b.want("change", `{}`, "changed")
	b.eventually("a tool has come", func() bool { _, err := b.reg.Get("raw_added"); return err == nil })
	b.eventually("a tool has gone", func() bool { _, err := b.reg.Get("raw_die"); return schema.KindOf(err) == schema.UnknownTool })
	if after, err := b.reg.Get("raw_echo"); err != nil || after.Description != before.Description {
		t.Errorf("echo is %+v, %v", after, err)
	}
	b.want("echo", `{"n":1}`, `{"n":1}`)
	if n := len(b.reg.Tools()); n != 2 {
		t.Errorf("there are %d tools", n)
	}
}

func TestT10ResultsOfAnMCPServer(t *testing.T) {
	t.Parallel()
	b := idle(t).start("")
	res, err := b.call(t.Context(), "image", `{}`)
	if err != nil || !res.OK {
		t.Fatal(err)
	}
	if want := "see\n[image image/png, 400000 bytes]\n[resource file:///a application/zip, 4 bytes]\nwords\n[link c: file:///c]\n[audio that is not in base64]"; res.Output != want {
		t.Errorf("shown is %q", res.Output)
	}
	if got := string(res.Structured); got != `{"big":12345678901234567890,"e":1e400,"b":1,"a":2}` {
		t.Errorf("the data are %s", got)
	}
	sum := sha256.Sum256([]byte(strings.Repeat("png!", 100_000)))
	var files []struct {
		Pointer string `json:"pointer"`
		Type    string `json:"media_type"`
		Bytes   int    `json:"bytes"`
		SHA256  string `json:"sha256"`
	}
	if err := json.Unmarshal(res.Artifacts, &files); err != nil || len(files) != 2 || files[0].Pointer != "/content/1/data" || files[0].Bytes != 400000 ||
		files[0].SHA256 != hex.EncodeToString(sum[:]) || files[1].Pointer != "/content/2/resource/blob" || files[1].Type != "application/zip" {
		t.Errorf("its files are %s", res.Artifacts)
	}
	var content []jsontext.Value
	if err := json.Unmarshal(res.Content, &content); err != nil || len(content) != 6 {
		t.Errorf("its content has %d blocks, %v", len(content), err)
	}
}

// What a program is given is a short list, and it does not see the store.
func TestT27WhatAnMCPServerGets(t *testing.T) {
	t.Setenv("SOME_API_KEY", "sk-1234567890")
	b := idle(t)
	b.start("", func(s *executor.MCPServer) { s.Env = []string{"MINE=1", "LOOK=" + b.dir + "/store"} })
	res, err := b.call(t.Context(), "env", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(res.Output, "sk-1234567890") || !strings.Contains(res.Output, "MINE=1") || !strings.Contains(res.Output, "PATH=") {
		t.Errorf("it gets %s", res.Output)
	}
	if walled(t) && !strings.Contains(res.Output, "look: 0 <nil>") {
		t.Errorf("it sees %s", res.Output)
	}
}

func TestAnMCPServerEndsWithWhatItStarted(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"parent", "stays"} {
		b := idle(t).start(mode)
		b.want("echo", `{}`, `{}`)
		b.all.Close()
		if mode == "stays" {
			continue // Close has returned
		}
		held, err := os.Open(filepath.Join(b.dir, "held"))
		if err != nil {
			t.Fatal(err)
		}
		b.eventually("its child has ended", func() bool { return syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil })
		held.Close()
	}
}

// walled reports whether programs have walls here.
func walled(t *testing.T) bool {
	for _, tool := range executor.Builtin() {
		if spec, err := tool.Spec(""); err == nil && strings.Contains(string(spec), "store hidden") {
			return true
		}
	}
	t.Log("programs have no walls here")
	return false
}
