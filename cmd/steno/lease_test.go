package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"steno/journal"
	"steno/lease"
)

// freeze SESSION stops the one command in the background, which holds the
// session, and makes its last beat older than the window: as if it had stood
// still for that long.
func freezeCmd(ts *testscript.TestScript, neg bool, args []string) {
	cmds := ts.BackgroundCmds()
	if neg || len(args) != 1 || len(cmds) != 1 {
		ts.Fatalf("usage: freeze SESSION, with one command in the background")
	}
	ts.Check(cmds[0].Process.Signal(syscall.SIGSTOP))
	stat := filepath.Join("/proc", strconv.Itoa(cmds[0].Process.Pid), "stat")
	if !eventually(func() bool {
		b, err := os.ReadFile(stat)
		return err == nil && strings.HasPrefix(string(b[strings.LastIndexByte(string(b), ')')+1:]), " T")
	}) {
		ts.Fatalf("it does not stop")
	}
	store, err := journal.OpenFiles(ts.MkAbs(".steno"), false)
	ts.Check(err)
	defer store.Close()
	st, err := store.Lease(context.Background(), args[0])
	ts.Check(err)
	if st.Beat == nil {
		ts.Fatalf("it does not beat")
	}
	b := *st.Beat
	b.Nanos -= int64(lease.Window + time.Second)
	f, err := os.OpenFile(filepath.Join(store.Dir(), "holders", b.Holder, "beat"), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteAt(b.Line(), 0)
	ts.Check(err)
	ts.Check(f.Close())
}

// thaw lets the one command in the background go on.
func thawCmd(ts *testscript.TestScript, neg bool, args []string) {
	cmds := ts.BackgroundCmds()
	if neg || len(args) != 0 || len(cmds) != 1 {
		ts.Fatalf("usage: thaw, with one command in the background")
	}
	ts.Check(cmds[0].Process.Signal(syscall.SIGCONT))
}

func TestReleaseAsksTheHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serving(t, dir)
	calls := filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(calls, []byte(`{"call_id":"c1","name":"list"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, dir, "run", "calls.jsonl", "--session", "s1")
	if state, pid := holderPID(t, dir, "s1"); state != "active" || pid != s.cmd.Process.Pid {
		t.Errorf("the session is %s, held by %d; serve is %d", state, pid, s.cmd.Process.Pid)
	}

	// While a call runs its session stays.
	busy := launch(t, dir, "call", "bash", "--session", "s1", "--call-id", "c2", "--args", `{"command":"until [ -e go-on ]; do sleep 0.01; done"}`)
	busy.until("the call does not start", func() bool {
		return strings.Contains(good(t, dir, "session", "show", "s1", "-o", "jsonl"), `"tool_started","data":{"call_id":"c2"`)
	})
	if _, errOut, code := steno(t, dir, "lease", "release", "s1"); code != 11 || pick(t, errOut, "/error/kind") != "backpressure" {
		t.Errorf("exit %d: %s", code, errOut)
	}
	work := pick(t, good(t, dir, "replay", "s1", "-o", "json"), "/state/started/workspace")
	if err := os.WriteFile(filepath.Join(work.(string), "go-on"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := busy.exit(); code != 0 {
		t.Errorf("the call: exit %d", code)
	}

	// Then it is let go, with the reason in the log. Asking again changes nothing.
	for range 2 {
		out := good(t, dir, "lease", "release", "s1", "--reason", "it moves", "-o", "json")
		if pick(t, out, "/state") != "available" || pick(t, out, "/epoch") != 1.0 {
			t.Error(out)
		}
	}
	if out := good(t, dir, "session", "show", "s1", "-o", "jsonl"); strings.Count(out, `"writer_released","data":{"reason":"asked for by user `) != 1 || strings.Count(out, `: it moves"}`) != 1 {
		t.Error(out)
	}
	// The next call takes it again.
	good(t, dir, "call", "list", "--session", "s1")
	if state, pid := holderPID(t, dir, "s1"); state != "active" || pid != s.cmd.Process.Pid {
		t.Errorf("the session is %s, held by %d; serve is %d", state, pid, s.cmd.Process.Pid)
	}

	// A holder that is dead cannot be asked, and need not be.
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.exit()
	out := good(t, dir, "lease", "release", "s1", "-o", "json")
	if pick(t, out, "/state") != "stale" {
		t.Error(out)
	}
	out = good(t, dir, "lease", "force", "s1", "--reason", "it is dead", "-o", "json")
	if pick(t, out, "/state") != "available" || pick(t, out, "/epoch") != 3.0 {
		t.Error(out)
	}
	if out := good(t, dir, "session", "show", "s1", "-o", "jsonl"); !strings.Contains(out, `"how":"takeover"`) || !strings.Contains(out, `"reason":"it is dead"`) {
		t.Error(out)
	}
}

// One session that is damaged, hostile or none at all does not hide another.
func TestLeasesAreListedWhateverLiesBesideThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls.jsonl")
	if err := os.WriteFile(calls, []byte(`{"call_id":"c1","name":"list"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, dir, "run", "calls.jsonl", "--session", "good")
	sessions := filepath.Join(dir, ".steno", "sessions")
	put := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"garbage", "fifo", "link", "empty", "wide"} {
		put(os.Mkdir(filepath.Join(sessions, name), 0o700))
	}
	put(os.WriteFile(filepath.Join(sessions, "garbage", "000001.jsonl"), []byte("\x1b[2J\x00\xff"), 0o600))
	put(syscall.Mkfifo(filepath.Join(sessions, "fifo", "000001.jsonl"), 0o600))
	put(os.Symlink("/etc/passwd", filepath.Join(sessions, "link", "000001.jsonl")))
	put(os.Chmod(filepath.Join(sessions, "wide"), 0o777))
	put(os.WriteFile(filepath.Join(sessions, "file"), nil, 0o600))
	want := map[string]string{"good": "available", "garbage": "ambiguous session_writer_ambiguous", "fifo": " unsafe_state_path",
		"link": " unsafe_state_path", "empty": "available", "wide": " unsafe_state_path", "file": " unsafe_state_path"}
	got := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(good(t, dir, "lease", "ls", "-o", "jsonl")), "\n") {
		kind, _ := pick(t, line, "/kind").(string)
		got[pick(t, line, "/session").(string)] = strings.TrimRight(pick(t, line, "/state").(string)+" "+kind, " ")
	}
	for id, w := range want {
		if got[id] != w {
			t.Errorf("%s is %q, want %q", id, got[id], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("listed are %v", got)
	}
	if out := good(t, dir, "lease", "ls"); strings.Count(out, "\n") != len(want)+1 || strings.ContainsAny(out, "\x1b\x00") {
		t.Errorf("the table is %q", out)
	}
	if out := good(t, dir, "lease", "show", "garbage"); !strings.Contains(out, "the newest claim cannot be read") || !strings.Contains(out, "steno lease force garbage") {
		t.Errorf("%s", out)
	}
	// What cannot be told by a look is not there for force either.
	if _, errOut, code := steno(t, dir, "lease", "force", "link", "--reason", "x"); code == 0 {
		t.Error(errOut)
	}
}
