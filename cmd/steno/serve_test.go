package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"steno/executor"
	"steno/schema"
)

// serving starts a serve on a free port in dir and waits until it serves.
func serving(t *testing.T, dir string, more ...string) *child {
	t.Helper()
	p := launch(t, dir, append([]string{"serve", "--listen", "127.0.0.1:0", "-o", "json"}, more...)...)
	p.says(`"context"`)
	return p
}

func holderPID(t *testing.T, dir, session string) (state string, pid int) {
	t.Helper()
	out := good(t, dir, "lease", "show", session, "-o", "json")
	return pick(t, out, "/state").(string), int(pick(t, out, "/holder/pid").(float64))
}

func TestRunAndCallGoThroughServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(file, []byte(`{"call_id":"c1","name":"list"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serving(t, dir)
	out := good(t, dir, "run", "calls.jsonl", "--session", "s1")
	if pick(t, out, "/ok") != true {
		t.Error(out)
	}
	out, _, code := steno(t, dir, "call", "bash", "--session", "s1", "--args", `{"command":"exit 4"}`, "--exit-code")
	if code != 4 || pick(t, out, "/exit_code") != 4.0 {
		t.Errorf("exit %d: %s", code, out)
	}
	if state, pid := holderPID(t, dir, "s1"); state != "active" || pid != s.cmd.Process.Pid {
		t.Errorf("the session is %s, held by %d; serve is %d", state, pid, s.cmd.Process.Pid)
	}
	// Everything was written by one holder: one epoch.
	if out := good(t, dir, "verify", "s1", "-o", "json"); pick(t, out, "/epochs") != 1.0 {
		t.Error(out)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
	if state, _ := holderPID(t, dir, "s1"); state != "available" {
		t.Errorf("the session is %s after serve", state)
	}
	// Nobody serves any more, so the next call is run by its own process.
	good(t, dir, "call", "list", "--session", "s1")
	if _, pid := holderPID(t, dir, "s1"); pid == s.cmd.Process.Pid {
		t.Error("the holder has not changed")
	}
}

func TestServeReleasesWhatIsAboveItsLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir, "--sessions", "2")
	for _, session := range []string{"s1", "s2", "s3"} {
		good(t, dir, "run", os.DevNull, "--session", session)
	}
	for session, want := range map[string]string{"s1": "available", "s2": "active", "s3": "active"} {
		if !eventually(func() bool { state, _ := holderPID(t, dir, session); return state == want }) {
			t.Errorf("%s is not %s", session, want)
		}
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
}

// A serve that hangs keeps its lock: whoever cannot reach it is told which
// process to end.
func TestAServeThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir)
	good(t, dir, "run", os.DevNull, "--session", "s1")
	s.signal(syscall.SIGSTOP)
	process := fmt.Sprintf("end process %d", s.cmd.Process.Pid)
	for _, args := range [][]string{{"call", "list", "--session", "s1"}, {"serve", "--listen", "127.0.0.1:0"}} {
		_, errOut, code := steno(t, dir, args...)
		if next, _ := pick(t, errOut, "/error/details/next").(string); code != 11 || !strings.Contains(next, process) {
			t.Errorf("steno %q: exit %d, %s", args, code, errOut)
		}
	}
	if !eventually(func() bool { state, _ := holderPID(t, dir, "s1"); return state == "ambiguous" }) {
		t.Fatal("a holder that is stopped is not ambiguous")
	}
	out, errOut, code := steno(t, dir, "lease", "force", "s1", "--reason", "it hangs")
	if code != 0 || !strings.Contains(errOut, process) {
		t.Errorf("exit %d, %s%s", code, out, errOut)
	}
	s.signal(syscall.SIGKILL)
	s.exit()
	good(t, dir, "call", "list", "--session", "s1")
}

func TestServeKeepsItsPasswordToItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir)
	context := filepath.Join(dir, ".steno", "nats", "context.json")
	fi, err := os.Stat(context)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", fi, err)
	}
	b, err := os.ReadFile(context)
	if err != nil {
		t.Fatal(err)
	}
	password, address := pick(t, string(b), "/password").(string), pick(t, string(b), "/url").(string)
	if len(password) < 20 || !strings.HasPrefix(address, "nats://127.0.0.1:") {
		t.Errorf("password of %d characters, address %s", len(password), address)
	}
	if said := s.out.String() + s.err.String(); strings.Contains(said, password) {
		t.Error("the password was printed")
	}
	// Without it nobody is let in.
	_, errOut, code := steno(t, dir, "call", "list", "--session", "s1", "--nats", address)
	if code != 7 || pick(t, errOut, "/error/kind") != "not_authenticated" {
		t.Errorf("exit %d: %s", code, errOut)
	}
	// With it, as by the context file.
	_, errOut, code = steno(t, dir, "call", "list", "--session", "s1", "--nats", context)
	if code != 3 || pick(t, errOut, "/error/kind") != "not_found" {
		t.Errorf("exit %d: %s", code, errOut)
	}

	// A second one finds the first.
	_, errOut, code = steno(t, dir, "serve", "--listen", "127.0.0.1:0")
	if code != 11 || pick(t, errOut, "/error/kind") != "unavailable" || pick(t, errOut, "/error/details/address") != address {
		t.Errorf("exit %d: %s", code, errOut)
	}
	// Its port is taken, and it says so.
	_, errOut, code = steno(t, t.TempDir(), "serve", "--listen", strings.TrimPrefix(address, "nats://"))
	if code != 11 || pick(t, errOut, "/error/kind") != "unavailable" {
		t.Errorf("exit %d: %s", code, errOut)
	}

	// Clients keep their credentials over a restart, even after a kill.
	s.signal(syscall.SIGKILL)
	s.exit()
	if err := os.Remove(context); err != nil { // as a kill while it starts leaves it
		t.Fatal(err)
	}
	again := serving(t, dir)
	b, err = os.ReadFile(context)
	if err != nil || pick(t, string(b), "/password") != password {
		t.Errorf("another password after a restart, %v", err)
	}
	again.signal(syscall.SIGINT)
	if code := again.exit(); code != exitInterrupt {
		t.Errorf("exit %d after SIGINT", code)
	}
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir)
	good(t, dir, "run", os.DevNull, "--session", "s1")
	call := launch(t, dir, "call", "bash", "--session", "s1", "--call-id", "c1",
		"--args", `{"command":"echo begun >begun; until [ -e go-on ]; do sleep 0.01; done; echo done"}`)
	call.until("the call does not begin", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	s.signal(syscall.SIGTERM)
	// What runs, runs to its end; nothing new begins.
	s.until("serve still takes calls", func() bool {
		_, errOut, code := steno(t, dir, "call", "list", "--session", "s1", "--timeout", "100ms")
		return code != 0 && pick(t, errOut, "/ok") == false
	})
	if err := os.WriteFile(filepath.Join(dir, "go-on"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := call.exit(); code != 0 || pick(t, call.out.String(), "/output") != "done\n" {
		t.Errorf("call: exit %d", code)
	}
	if code := s.exit(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
	good(t, dir, "verify", "s1")
}

// held takes the lock of a serve that is not there.
func held(t *testing.T, dir string) (release func()) {
	t.Helper()
	folder := filepath.Join(dir, ".steno", "nats")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	l := flock.New(filepath.Join(folder, "lock"))
	if ok, err := l.TryLock(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRunWaitsForAServeThatStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	release := held(t, dir)
	p := launch(t, dir, "run", os.DevNull, "--session", "s1")
	release() // it has ended before it served
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if _, pid := holderPID(t, dir, "s1"); pid != p.cmd.Process.Pid {
		t.Errorf("the session was held by %d", pid)
	}
}

func TestAServeThatCannotBeReached(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	defer held(t, dir)()
	_, errOut, code := steno(t, dir, "run", os.DevNull, "--session", "s1")
	if code != 11 || pick(t, errOut, "/error/kind") != "unavailable" || !strings.Contains(errOut, "cannot be reached") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	// Nothing is written past it.
	if _, err := os.Stat(filepath.Join(dir, ".steno", "sessions")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestRunSaysThatItsServeIsGoneAndGoesOnWithTheNext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := `{"call_id":"c1","name":"bash","args":{"command":"touch begun; until [ -e go-on ]; do sleep 0.01; done"}}` + "\n" +
		`{"call_id":"c2","name":"list"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "calls.jsonl"), []byte(calls), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(filepath.Join(dir, "go-on"), nil, 0o600) }() // the command of a serve that was killed goes on
	s := serving(t, dir)
	address := strings.TrimPrefix(pick(t, s.out.String(), "/url").(string), "nats://")
	run := launch(t, dir, "run", "calls.jsonl", "--session", "s1")
	run.until("the call does not begin", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	s.signal(syscall.SIGKILL)
	s.exit()
	run.until("run does not say that the server is gone", func() bool { return strings.Contains(run.err.String(), "the server is gone") })
	launch(t, dir, "serve", "--listen", address)
	if code := run.exit(); code != 8 {
		t.Errorf("exit %d", code)
	}
	out := strings.Split(strings.TrimSpace(run.out.String()), "\n")
	if len(out) != 2 || pick(t, out[0], "/error/kind") != "interrupted" || pick(t, out[1], "/ok") != true {
		t.Errorf("the results are %q", out)
	}
}

// An agent may make calls and not answer what is asked about them.
// A person without the files looks at calls by way of the server.
func TestCallsAreLookedAtFromElsewhere(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	serving(t, dir)
	context := filepath.Join(dir, ".steno", "nats", "context.json")
	must(t, os.WriteFile(filepath.Join(dir, "calls"), []byte(`{"call_id":"c1","name":"list"}`+"\n"), 0o600))
	good(t, dir, "run", "calls", "--session", "s1")
	for _, args := range [][]string{{"ls", "s1"}, {"ls", "s1", "-o", "json"}, {"ls", "s1", "--open"}, {"show", "s1", "c1"}, {"show", "s1", "c1", "-o", "jsonl"}, {"show", "s1", "c1", "-o", "json"}} {
		args = append([]string{"calls"}, args...)
		if here, there := good(t, dir, args...), good(t, elsewhere, append(args, "--nats", context)...); here != there || here == "" {
			t.Errorf("%q: the files give %s, the server %s", args, here, there)
		}
	}
	if _, errOut, code := steno(t, elsewhere, "calls", "show", "s1", "c2", "--nats", context); code != 3 {
		t.Errorf("exit %d: %s", code, errOut)
	}
}

// An executor on somebody else's server says when that is gone, and ends in good
// order all the same.
func TestServeOnAServerThatIsGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := serving(t, dir)
	s := launch(t, dir, "serve", "--nats", filepath.Join(dir, ".steno", "nats", "context.json"))
	s.says("serving store")
	server.signal(syscall.SIGKILL)
	server.exit()
	s.until("it does not say that the server is gone", func() bool { return strings.Contains(s.err.String(), "the NATS server is gone") })
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestAnAgentMayNotAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ask := filepath.Join(dir, "ask.yaml")
	if err := os.WriteFile(ask, []byte("version: 1\nmode: ask\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serving(t, dir, "--policy", ask)
	file := func(name string) string { return filepath.Join(dir, ".steno", "nats", name) }
	if fi, err := os.Stat(file("agent.json")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", fi, err)
	}
	agent, _, err := natscontext.Connect(file("agent.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	c, err := executor.NewClient(agent, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	app, _, err := natscontext.Connect(file("context.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	opener, err := executor.NewClient(app, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opener.Open(ctx, executor.OpenRequest{Session: "s1", Workspace: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(ctx, executor.OpenRequest{Session: "s2"}); !errors.Is(err, schema.NotAuthenticated) {
		t.Errorf("an agent that opens a session gets %v", err)
	}
	text, err := os.ReadFile(file("agent.json"))
	if err != nil {
		t.Fatal(err)
	}
	said := func(key string) string { return pick(t, string(text), key).(string) }
	unheard, err := nats.Connect(said("/url"), nats.UserInfo(said("/user"), said("/password"))) // it hears no answers
	if err != nil {
		t.Fatal(err)
	}
	defer unheard.Close()
	if d, err := executor.NewClient(unheard, ""); err != nil {
		t.Fatal(err)
	} else if _, err := d.Call(ctx, "s1", executor.Request{CallID: "deaf", Name: "list"}); !errors.Is(err, schema.NotAuthenticated) {
		t.Errorf("an agent without its inbox gets %v", err)
	}
	if a, err := c.Call(ctx, "s1", executor.Request{CallID: "look", Name: "list"}); err != nil || !strings.Contains(string(a.Data), `"ok":true`) {
		t.Errorf("a call of an agent: %s, %v", a.Data, err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, "s1", executor.Request{CallID: "act", Name: "bash", Args: []byte(`{"command":"true"}`)})
		result <- err
	}()
	if !eventually(func() bool { return strings.Contains(good(t, dir, "approvals", "ls", "-o", "jsonl"), `"act"`) }) {
		t.Fatal("nothing waits")
	}
	// The server refuses what an agent may not say, and tells it so.
	refused := make(chan error, 100)
	agent.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	for _, subject := range []string{"approval.answer", "approval.list", "session.open", "session.phase", "session.fork", "session.posture", "calls.resolve", "calls.cancel", "to.X.approve.s1", "to.X.call.s1"} {
		if err := agent.Publish("steno.v1."+subject, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v", subject, err)
		}
	}
	for _, subject := range []string{"_INBOX.>", "steno.v1.>", "$SYS.>"} {
		if _, err := agent.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("listening to %s: %v", subject, err)
		}
	}
	good(t, dir, "approvals", "allow", "s1", "act")
	if err := <-result; err != nil {
		t.Errorf("the call that was allowed: %v", err)
	}
}
