package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What has a result keeps it, what runs may end, and what has not begun does
// not begin.
func TestRunStopsOnASignal(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := launch(t, dir, "run", "-", "--session", "s1")
			lines := []string{
				`{"call_id":"before","name":"bash","args":{"command":"echo one"}}`,
				`{"call_id":"running","name":"bash","args":{"command":"echo begun >begun; until [ -e go-on ]; do sleep 0.01; done; echo two"}}`,
				`{"call_id":"after","name":"bash","args":{"command":"touch after"}}`,
			}
			if _, err := p.in.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
				t.Fatal(err)
			}
			p.until("the call does not begin", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
			p.signal(signal)
			p.until("the signal is not told", func() bool { return strings.Contains(p.err.String(), "stopping") })
			if err := os.WriteFile(filepath.Join(dir, "go-on"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			want := exitInterrupt
			if signal == syscall.SIGTERM {
				want = 1
			}
			if code := p.exit(); code != want { // although its input is still open
				t.Errorf("exit %d, want %d", code, want)
			}
			out := strings.Split(strings.TrimSpace(p.out.String()), "\n")
			if len(out) != 2 || pick(t, out[0], "/output") != "one\n" || pick(t, out[1], "/output") != "two\n" {
				t.Errorf("%q", out)
			}
			errOut := strings.Split(strings.TrimSpace(p.err.String()), "\n")
			if last := errOut[len(errOut)-1]; pick(t, last, "/error/kind") != "cancelled" {
				t.Error(last)
			}
			if _, err := os.Stat(filepath.Join(dir, "after")); err == nil {
				t.Error("a call began after the signal")
			}
			if state, _ := holderPID(t, dir, "s1"); state != "available" {
				t.Errorf("the session is %s", state)
			}
			// The same file goes on where it stopped.
			file := filepath.Join(dir, "calls.jsonl")
			if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			again := strings.Split(strings.TrimSpace(good(t, dir, "run", file, "--session", "s1")), "\n")
			if len(again) != 3 || again[0] != out[0] || again[1] != out[1] {
				t.Errorf("%q, then %q", out, again)
			}
		})
	}
}
