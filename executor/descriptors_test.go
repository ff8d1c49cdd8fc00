package executor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// A process holds as many sessions with workspaces as it says, whatever their
// calls do; where it has no descriptor left all the same it gives sessions back,
// and its calls wait, since that is nothing that their tools have done. It is a
// process of its own, of few open files.
func TestAProcessOutOfFilesWaitsForThem(t *testing.T) {
	const name = "STENO_TEST_FEW_FILES"
	if os.Getenv(name) == "" {
		t.Parallel()
		c := exec.Command("sh", "-c", `ulimit -n 256; exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), name+"=1")
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "all of it with few files") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const held = 128
	if lease.MaxHeld() != held {
		t.Fatalf("it says that it can hold %d sessions", lease.MaxHeld())
	}
	n := newPlace(t, journaltest.NATSOptions{}).node(executor.Builtin(), func(c *executor.Config) { c.Sessions = held })
	client, log := n.client, n.log
	work := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	call := func(id, call, tool, args string) error {
		a, err := client.Call(within(t), id, request(call, tool, args))
		if err == nil && !field[bool](t, a.Data, "ok") {
			err = fmt.Errorf("%s of %s gives %s", tool, id, a.Data)
		}
		return err
	}

	// More sessions than it can hold, with a command each.
	for i := range held + 20 {
		id := fmt.Sprintf("s%d", i)
		_, err := client.Open(within(t), executor.OpenRequest{Session: id, Workspace: work})
		must(err)
		must(call(id, "c1", "bash", `{"command":"true"}`))
		must(call(id, "c2", "list", `{}`))
	}
	if text := log.String(); strings.Contains(text, "too many") {
		t.Fatalf("it was out of files:\n%s", text)
	}

	must(os.WriteFile(filepath.Join(work, "there"), []byte("x"), 0o600))

	// Somebody takes all descriptors, also those that it gives back.
	greedy, gone := make(chan struct{}), make(chan struct{})
	var taken []*os.File
	go func() {
		defer close(gone)
		for {
			select {
			case <-greedy:
				return
			default:
			}
			f, err := os.Open(os.DevNull)
			if err != nil {
				runtime.Gosched()
				continue
			}
			taken = append(taken, f)
		}
	}()
	giveBack := sync.OnceFunc(func() {
		close(greedy)
		<-gone
		for _, f := range taken {
			f.Close()
		}
	})
	defer giveBack()
	var calls sync.WaitGroup
	failed := make(chan error, 5)
	for tool, args := range map[string]string{"bash": `{"command":"echo x > made"}`, "list": `{}`, "search": `{"pattern":"x"}`, "write": `{"path":"new/f","content":"x"}`, "read": `{"path":"there"}`} {
		calls.Go(func() { failed <- call("s147", tool, tool, args) })
	}
	eventually(t, "it notices", func() bool {
		return strings.Contains(log.String(), "calls cannot be recorded now") && strings.Contains(log.String(), "sessions are given back")
	})
	if text := log.String(); !strings.Contains(text, "ulimit -n") {
		t.Errorf("it does not say what to do:\n%s", text)
	}
	// Who asks for more may be lucky, and is told otherwise.
	_, err := client.Open(within(t), executor.OpenRequest{Session: "new", Workspace: work})
	if err != nil && !strings.Contains(fmt.Sprint(schema.Body(err).Details["next"]), "ulimit -n") {
		t.Errorf("a new session gives %v", err)
	}
	giveBack()
	calls.Wait()
	for range cap(failed) {
		must(<-failed)
	}
	eventually(t, "it is ready again", func() bool { return n.Ready() == nil })
	_, err = client.Open(within(t), executor.OpenRequest{Session: "new", Workspace: work})
	must(err)
	n.stop()
	if text := log.String(); strings.Contains(text, "not given back in good order") {
		t.Error(text)
	}
	fmt.Println("all of it with few files")
}
