package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"steno/executor"
)

// The program of the README's "Write a tool" serves beside a serve: on its server,
// behind a prefix of its own, with a store of its own. Who tries to use that store
// from outside is told how to reach its holder.
func TestAToolOfOnesOwnBesideAServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serving(t, dir)
	context := filepath.Join(dir, ".steno", "nats", "context.json")
	text, err := os.ReadFile(context)
	var c struct{ URL, User, Password string }
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary, store, outbox := filepath.Join(dir, "tool"), filepath.Join(dir, "office"), filepath.Join(dir, "outbox")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../testdata/tool"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in testdata/tool: %v\n%s", err, out)
	}
	var out output
	tool := exec.Command(binary, c.URL, store, outbox, "office")
	tool.Env = append(os.Environ(), "NATS_USER="+c.User, "NATS_PASSWORD="+c.Password)
	tool.Stdout, tool.Stderr = &out, os.Stderr
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	defer tool.Process.Kill()
	if !eventually(func() bool { return strings.Contains(out.String(), "serving") }) {
		t.Fatal("the program does not serve")
	}

	conn, err := nats.Connect(c.URL, nats.UserInfo(c.User, c.Password))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := executor.NewClient(conn, "office")
	if err == nil {
		_, err = client.Open(t.Context(), executor.OpenRequest{Session: "s1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := client.Call(t.Context(), "s1", executor.Request{CallID: "c1", Name: "send_notice", Args: []byte(`{"to":"office","text":"hello"}`)})
	if err != nil || pick(t, string(a.Data), "/structured/notices") != 1.0 {
		t.Errorf("the answer is %s, %v", a.Data, err)
	}
	// The serve has its own tools, sessions and store.
	if _, errOut, code := steno(t, dir, "call", "send_notice", "--session", "s1"); code != 3 || pick(t, errOut, "/error/kind") != "not_found" {
		t.Errorf("the serve: exit %d, %s", code, errOut)
	}
	for _, args := range [][]string{{"call", "list", "--session", "s1"}, {"calls", "cancel", "s1", "c1"}, {"lease", "release", "s1"}} {
		_, errOut, code := steno(t, dir, append(args, "--dir", store)...)
		next, _ := pick(t, errOut, "/error/details/next").(string)
		if code != 5 || !strings.Contains(next, "--nats CONTEXT") || strings.Contains(next, "SIGTERM") || strings.Contains(next, "kill") {
			t.Errorf("steno %q: exit %d, %s", args, code, errOut)
		}
	}
	if err := tool.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := tool.Wait(); err != nil {
		t.Errorf("the program: %v", err)
	}
	good(t, dir, "verify", "--dir", store)
}
