package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/executor"
	"steno/schema"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A bench is a workspace in a folder, with a store and a file outside of it,
// for tools to work on.
type bench struct {
	t     *testing.T
	dir   string // the workspace
	store string // a protected folder inside the workspace
	out   string // a folder beside the workspace
	w     *executor.Workspace
	reg   *executor.Registry
}

const (
	outsideText = "text from outside the workspace"
	storeText   = "text from the store"
)

func newBench(t *testing.T) *bench {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: filepath.Join(top, "work"), out: filepath.Join(top, "out")}
	b.store = filepath.Join(b.dir, "state")
	b.file("state/sessions/log.jsonl", storeText)
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.out, "f.txt"), []byte(outsideText), 0o644); err != nil {
		t.Fatal(err)
	}
	if b.w, err = executor.OpenWorkspace(b.dir, b.store); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.w.Close(); err != nil {
			t.Error(err)
		}
	})
	if b.reg, err = executor.NewRegistry(executor.Builtin()...); err != nil {
		t.Fatal(err)
	}
	return b
}

// file makes a file in the workspace, past its gate.
func (b *bench) file(path, text string) string {
	b.t.Helper()
	full := filepath.Join(b.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return full
}

func (b *bench) link(target, path string) {
	b.t.Helper()
	full := filepath.Join(b.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		b.t.Fatal(err)
	}
}

// text is what is in a file of the workspace, looked at past its gate.
func (b *bench) text(path string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, path))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

type args map[string]any

// call runs a built-in tool on arguments that its schema must let pass.
func (b *bench) call(tool string, a args) (executor.Result, error) {
	b.t.Helper()
	return b.do(context.Background(), tool, a, func(call *executor.Invocation) {
		if err := b.reg.Validate(tool, call.Args); err != nil {
			b.t.Fatalf("%s %s: %v", tool, call.Args, err)
		}
	})
}

// do runs a built-in tool without a look at its schema.
func (b *bench) do(ctx context.Context, tool string, a args, change func(*executor.Invocation)) (executor.Result, error) {
	b.t.Helper()
	t, err := b.reg.Get(tool)
	if err != nil {
		b.t.Fatal(err)
	}
	raw, err := json.Marshal(a)
	if err != nil {
		b.t.Fatal(err)
	}
	call := &executor.Invocation{
		Session: "01J00000000000000000000000", CallID: "call-1", Key: "key-1", Actor: executor.Actor{ID: "ada", Via: "queue"},
		Attempt: 2, Epoch: 3, Seq: 44, Args: raw, Workspace: b.w,
	}
	if change != nil {
		change(call)
	}
	return t.Run(ctx, call)
}

// must is call for one that has to succeed.
func (b *bench) must(tool string, a args) executor.Result {
	b.t.Helper()
	res, err := b.call(tool, a)
	if err != nil {
		b.t.Fatalf("%s %v: %v", tool, a, err)
	}
	return res
}

func wantKind(t *testing.T, err error, want schema.Kind) *schema.Error {
	t.Helper()
	e, ok := errors.AsType[*schema.Error](err)
	if !ok {
		t.Fatalf("got the error %v, want kind %s", err, want)
	}
	if e.Kind != want {
		t.Fatalf("got kind %s (%v), want %s", e.Kind, err, want)
	}
	return e
}

// member gives one member of a result's structured answer.
func member[T any](t *testing.T, res executor.Result, name string) T {
	t.Helper()
	var v T
	var all map[string]jsontext.Value
	if err := json.Unmarshal(res.Structured, &all); err != nil {
		t.Fatalf("structured %s: %v", res.Structured, err)
	}
	raw, ok := all[name]
	if !ok {
		return v
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("structured %s: %v", res.Structured, err)
	}
	return v
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }
