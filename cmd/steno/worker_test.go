package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"steno/executor"
)

// The programs of testdata/workers host a tool on a serve, with the credentials
// that it leaves for workers. What they need from elsewhere is not needed here.
func TestWorkersInOtherLanguages(t *testing.T) {
	t.Parallel()
	for _, w := range []struct{ program, file string }{{"python3", "worker.py"}, {"node", "worker-plain.mjs"}} {
		t.Run(w.program, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(w.program)
			if err != nil {
				t.Skipf("%s is not installed", w.program)
			}
			dir := t.TempDir()
			serving(t, dir)
			startWorker(t, dir, path, filepath.Join(root(t), "testdata", "workers", w.file))
			must(t, os.WriteFile(filepath.Join(dir, "calls"), []byte(`{"call_id":"c1","name":"word_count","args":{"text":"how many wörds"}}`+"\n"+
				`{"call_id":"c2","name":"word_count","args":{}}`+"\n"), 0o600))
			out := good(t, dir, "run", "calls", "--session", "s1", "-o", "jsonl")
			if !strings.Contains(out, `"output":"3 words","structured":{"key":"c1"}`) || !strings.Contains(out, `"kind":"invalid_args"`) {
				t.Errorf("the answers are %s", out)
			}
			ls := good(t, dir, "tool", "ls")
			if !strings.Contains(ls, "word_count") || !strings.Contains(ls, "1 worker, not vouched for") {
				t.Errorf("the tools are\n%s", ls)
			}
			if show := good(t, dir, "tool", "show", "word_count", "-o", "json"); pick(t, show, "/tier") != 3.0 || pick(t, show, "/hosted/vouched") != false {
				t.Errorf("the tool is %s", show)
			}
			if doctor := good(t, dir, "doctor", "-o", "jsonl"); !strings.Contains(doctor, "word_count: 1 worker") {
				t.Errorf("the doctor says %s", doctor)
			}
		})
	}
}

// startWorker starts a program that hosts tools for the serve on dir, and returns
// when it says that it does.
func startWorker(t *testing.T, dir string, argv ...string) {
	t.Helper()
	var at natsContext
	b, err := os.ReadFile(filepath.Join(dir, ".steno", "nats", "worker.json"))
	if err == nil {
		err = json.Unmarshal(b, &at)
	}
	must(t, err)
	var out, errOut output
	cmd := exec.Command(argv[0], append(argv[1:], at.URL, at.User, at.Password)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if !eventually(func() bool { return strings.Contains(out.String(), "serving") }) {
		t.Fatalf("it does not serve:\n%s%s", out.String(), errOut.String())
	}
}

// A worker may take calls and answer them, and nothing else.
func TestAWorkerMayOnlyHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serving(t, dir)
	file := func(name string) string { return filepath.Join(dir, ".steno", "nats", name) }
	if fi, err := os.Stat(file("worker.json")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", fi, err)
	}
	conn, _, err := natscontext.Connect(file("worker.json"))
	must(t, err)
	defer conn.Close()
	refused := make(chan error, 100)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	for _, subject := range []string{"steno.v1.call.s1", "steno.v1.session.open", "steno.v1.session.get", "steno.v1.approval.answer", "steno.v1.calls.resolve", "steno.v1.to.X.result.s1",
		"steno.v1.workers.list", "steno.tool.word_count", "$SRV.PING", "_INBOX.x"} {
		must(t, conn.Publish(subject, []byte(`{}`)))
		if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	for _, subject := range []string{"_INBOX.>", "_INBOX_AGENT.>", "steno.v1.>", "$SYS.>", ">"} {
		if _, err := conn.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("listening to %s: %v", subject, err)
		}
	}
	// It hosts with all that a host does: progress, an answer that is heard.
	w, err := executor.HostTools(conn, executor.HostOptions{}, executor.Define("greet", "Greet somebody.", greet))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "calls"), []byte(`{"call_id":"c1","name":"greet","args":{"who":"Ada"}}`+"\n"), 0o600))
	if out := good(t, dir, "run", "calls", "--session", "s1", "-o", "jsonl"); !strings.Contains(out, `"output":"Hello, Ada"`) {
		t.Errorf("the answer is %s", out)
	}
	must(t, w.Stop(t.Context()))
	select {
	case err := <-refused:
		t.Errorf("the host is refused something: %v", err)
	default:
	}
}

type greeting struct {
	Who string `json:"who"`
}

func greet(ctx context.Context, in greeting) (string, error) {
	for range 10 {
		executor.InvocationOf(ctx).Progress("thinks of a word")
	}
	return "Hello, " + in.Who, nil
}
