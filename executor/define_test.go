package executor_test

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

type (
	SendMail struct {
		To   string `json:"to" jsonschema:"who gets it"`
		Copy string `json:"copy,omitzero"`
	}
	HTTPGet     struct{}
	V2Ray       struct{}
	ReadFile2   struct{}
	ID          struct{}
	Getting_URL struct{}
	Über        struct{}
	Pair[T any] struct{ A, B T }
	lower       struct{}
	Tree        struct {
		Left *Tree `json:"left"`
	}
)

// named is a tool without a name, made from the type In.
func named[In any]() executor.Tool {
	return executor.Define("", "does nothing", func(context.Context, In) (string, error) { return "", nil })
}

func TestT2ANameIsDerivedFromTheType(t *testing.T) {
	for want, x := range map[string]executor.Tool{
		"send_mail": named[SendMail](), "http_get": named[HTTPGet](), "v2_ray": named[V2Ray](), "read_file2": named[ReadFile2](),
		"id": named[ID](), "getting_url": named[Getting_URL](), "lower": named[lower](),
	} {
		if r, err := executor.NewRegistry(x); err != nil || r.Tools()[0].Name != want {
			t.Errorf("got %q (%v), want %q", x.Name, err, want)
		}
	}
	for name, x := range map[string]executor.Tool{
		"no name": named[struct{}](), "a type with a parameter": named[Pair[int]](), "letters that no name has": named[Über](),
	} {
		if _, err := executor.NewRegistry(x); !errors.Is(err, schema.InvalidConfig) {
			t.Errorf("%s: registered as %q (%v)", name, x.Name, err)
		}
	}
}

func TestT3DefineInfersTheSchema(t *testing.T) {
	type Part struct {
		Bytes []byte         `json:"bytes"`
		When  time.Time      `json:"when"`
		Any   jsontext.Value `json:"any"`
	}
	type All struct {
		Part
		Count uint16          `json:"count" jsonschema:"how many"`
		List  []SendMail      `json:"list,omitempty"`
		Named map[string]bool `json:"named,omitzero"`
		Maybe *int            `json:"maybe"`
		note  string
	}
	got := make(chan All, 1)
	x := executor.Define("all", "takes all", func(_ context.Context, in All) (string, error) {
		in.note = "kept out"
		got <- in
		return "", nil
	})
	r, err := executor.NewRegistry(x)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(x.Input); !strings.Contains(text, `"description":"how many"`) || strings.Contains(text, "note") || x.Output != nil {
		t.Errorf("the schemas are %s and %s", text, x.Output)
	}
	const good = `{"bytes":"aGk=","when":"2026-11-30T08:30:00Z","any":{"n":123456789012345678901234567890},"count":7,"maybe":null,"list":[{"to":"a"}],"named":{"x":true}}`
	if err := r.Validate("all", jsontext.Value(good)); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Run(context.Background(), &executor.Invocation{Args: jsontext.Value(good)}); err != nil {
		t.Fatal(err)
	}
	in := <-got
	if string(in.Bytes) != "hi" || in.When.IsZero() || in.Count != 7 || in.List[0].To != "a" || !in.Named["x"] || string(in.Any) != `{"n":123456789012345678901234567890}` {
		t.Errorf("the function got %+v", in)
	}
	want := []string{`: "any" is missing`, `: "maybe" is missing`, `: "when" is missing`, `/count: must be at most 65535`, `/list/0: "to" is missing`, `/more: there is no such property`}
	err = r.Validate("all", jsontext.Value(`{"bytes":"","count":65536,"list":[{}],"more":1}`))
	var listed []string
	for _, v := range wantKind(t, err, schema.InvalidArgs).Details["violations"].([]executor.Violation) {
		listed = append(listed, v.Pointer+": "+v.Message)
	}
	if !slices.Equal(listed, want) {
		t.Errorf("got %q, want %q", listed, want)
	}
}

// What Go would read or write in another way than the schema says is found when
// the tool is registered, and not by a call.
func TestT3DefineRefusesWhatHasNoSchema(t *testing.T) {
	none := func(context.Context, SendMail) (chan int, error) { return nil, nil }
	for name, x := range map[string]executor.Tool{
		"a string":                  executor.Define("x", "x", func(context.Context, string) (string, error) { return "", nil }),
		"a pointer":                 executor.Define("x", "x", func(context.Context, *SendMail) (string, error) { return "", nil }),
		"a function inside":         executor.Define("x", "x", func(context.Context, struct{ F func() }) (string, error) { return "", nil }),
		"a type that holds itself":  executor.Define("x", "x", func(context.Context, Tree) (string, error) { return "", nil }),
		"a duration, which no JSON": executor.Define("x", "x", func(context.Context, struct{ D time.Duration }) (string, error) { return "", nil }),
		"a number written as a string": executor.Define("x", "x", func(context.Context, struct {
			N int `json:"n,string"`
		}) (string, error) {
			return "", nil
		}),
		"an array of bytes":     executor.Define("x", "x", func(context.Context, struct{ A [4]byte }) (string, error) { return "", nil }),
		"an answer without one": executor.Define("x", "x", none),
		"no function":           executor.Define[SendMail, string]("x", "x", nil),
		"no description":        executor.Define("x", "", func(context.Context, SendMail) (string, error) { return "", nil }),
	} {
		r, err := executor.NewRegistry()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Register(x); !errors.Is(err, schema.InvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestT3WhatAFunctionReturnsIsTheResult(t *testing.T) {
	type answer struct {
		N    int      `json:"n"`
		List []string `json:"list"`
	}
	call := &executor.Invocation{CallID: "c1", Args: jsontext.Value(`{"to":"a"}`)}
	run := func(x executor.Tool) executor.Result {
		t.Helper()
		if _, err := executor.NewRegistry(x); err != nil {
			t.Fatal(err)
		}
		res, err := x.Run(context.Background(), call)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	text := run(executor.Define("x", "x", func(_ context.Context, in SendMail) (string, error) { return in.To, nil }))
	if !text.OK || text.Output != "a" || text.Structured != nil {
		t.Errorf("a string gives %+v", text)
	}
	whole := run(executor.Define("x", "x", func(context.Context, SendMail) (executor.Result, error) {
		return executor.Result{Output: "no", Summary: "s"}, nil
	}))
	if whole.OK || whole.Output != "no" || whole.Summary != "s" {
		t.Errorf("a Result gives %+v", whole)
	}
	x := executor.Define("x", "x", func(context.Context, SendMail) (*answer, error) { return &answer{N: 3}, nil })
	if data := run(x); string(data.Structured) != `{"n":3,"list":[]}` || data.Output != string(data.Structured) || !strings.Contains(string(x.Output), `"n"`) {
		t.Errorf("a struct gives %+v, its schema is %s", data, x.Output)
	}
	list := executor.Define("x", "x", func(context.Context, SendMail) ([]int, error) { return []int{1}, nil })
	if data := run(list); string(data.Structured) != `[1]` || list.Output != nil {
		t.Errorf("a list gives %+v, its schema is %s", data, list.Output)
	}
	seen := executor.Define("x", "x", func(ctx context.Context, _ SendMail) (bool, error) { return executor.InvocationOf(ctx) == call, nil })
	if data := run(seen); data.Output != "true" {
		t.Error("the function does not get its call")
	}
	if executor.InvocationOf(context.Background()) != nil {
		t.Error("there is a call outside of a tool")
	}
	failing := executor.Define("x", "x", func(context.Context, SendMail) (string, error) { return "half", schema.Errorf(schema.NotFound, "none") })
	if res, err := failing.Run(context.Background(), call); !errors.Is(err, schema.NotFound) || res.OK {
		t.Errorf("an error gives %+v, %v", res, err)
	}
}

// A structured answer that is not what the tool declares is its failure.
func TestAStructuredAnswerIsHeldAgainstItsSchema(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	answers := func(name, structured string, ok bool) executor.Tool {
		x := toolOf(name, func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: ok, Output: "told", Structured: jsontext.Value(structured)}, nil
		})
		x.Output = jsontext.Value(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
		return x
	}
	tools := []executor.Tool{answers("good", `{ "n": 1, "text": "`+"\xff"+`" }`, true), answers("none", ``, true),
		answers("broken", `{"n":`, true), answers("no", ``, false), answers("wrong_no", `{}`, false),
		executor.Define("nothing", "gives none", func(context.Context, struct{}) (*SendMail, error) { return nil, nil }),
		executor.Define("nan", "gives no number", func(context.Context, struct{}) (float64, error) { return math.NaN(), nil })}
	n := p.node(tools)
	open(t, n.client, "s1")
	for tool, want := range map[string]schema.Kind{"good": "", "none": schema.ToolFailed, "broken": schema.ToolFailed,
		"no": "", "wrong_no": schema.ToolFailed, "nothing": schema.ToolFailed, "nan": schema.ToolFailed} {
		wantKindOfResult(t, n.call("s1", tool, tool, `{}`).Data, want)
	}
	bad := tool("x", `{"type":"object"}`)
	bad.Output = jsontext.Value(`{"type":"string"}`)
	if _, err := executor.NewRegistry(bad); !errors.Is(err, schema.InvalidConfig) {
		t.Errorf("a schema of a string is taken for an answer's: %v", err)
	}
}

// testdata/tool is a program of another module, as the README shows it: an
// executor with a tool of its own, which any client can call.
func TestASecondModuleBuildsATool(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("../testdata/tool/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n### Write a tool\n")
	section, _, _ = strings.Cut(section, "\n###")
	shown := 0
	for {
		var block string
		var more bool
		if _, section, more = strings.Cut(section, "```go\n"); !more {
			break
		}
		block, section, _ = strings.Cut(section, "```")
		if shown++; !strings.Contains(string(program), block) {
			t.Errorf("the README shows what is not in the program:\n%s", block)
		}
	}
	if shown == 0 {
		t.Error("the README shows no tool")
	}

	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	binary, outbox := filepath.Join(t.TempDir(), "tool"), filepath.Join(t.TempDir(), "outbox")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../testdata/tool"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in testdata/tool: %v; after a change of go.mod, run go mod tidy there\n%s", err, out)
	}
	serve := exec.Command(binary, p.nats.URL(), p.dir, outbox)
	serve.Stderr = os.Stderr
	out, err := serve.StdoutPipe()
	if err == nil {
		err = serve.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer serve.Process.Kill()
	if _, err := out.Read(make([]byte, 64)); err != nil { // it says that it serves
		t.Fatal(err)
	}

	c := p.client()
	open(t, c, "s1")
	a, err := c.Call(within(t), "s1", executor.Request{CallID: "c1", Name: "send_notice", Args: jsontext.Value(`{"to":"office","text":"hello"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(field[jsontext.Value](t, a.Data, "structured")); got != `{"notices":1}` {
		t.Errorf("the answer is %s", a.Data)
	}
	if text, err := os.ReadFile(outbox); err != nil || string(text) != "c1 office hello\n" {
		t.Errorf("the notice is %q (%v)", text, err)
	}
	a, err = c.Call(within(t), "s1", executor.Request{CallID: "c2", Name: "send_notice", Args: jsontext.Value(`{"to":7}`)})
	if err != nil {
		t.Fatal(err)
	}
	wantKindOfResult(t, a.Data, schema.InvalidArgs)
	if err := serve.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("the program: %v", err)
	}
}
