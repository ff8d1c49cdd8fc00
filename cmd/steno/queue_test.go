package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"steno/executor"
)

// A call is queued, waited for, given up where its session is not there, listed
// and sent back.
func TestCallsAreQueuedGivenUpAndQueuedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{"calls", "dead"}, {"calls", "requeue", "--all"}, {"call", "list", "--session", "s1", "--queue"}} {
		if _, errOut, code := steno(t, dir, args...); code != 11 || !strings.Contains(errOut, "steno serve") {
			t.Errorf("without a serve %q: exit %d, %s", args, code, errOut)
		}
	}
	s := serving(t, dir)
	good(t, dir, "run", os.DevNull, "--session", "s1")
	out := good(t, dir, "call", "list", "--session", "s1", "--call-id", "c1", "--queue")
	if pick(t, out, "/queued") != true || pick(t, out, "/call_id") != "c1" || !strings.Contains(pick(t, out, "/next").(string), "calls wait s1 c1") {
		t.Error(out)
	}
	if out := good(t, dir, "calls", "wait", "s1", "c1", "-o", "json"); pick(t, out, "/ok") != true {
		t.Error(out)
	}
	if out := good(t, dir, "call", "list", "--session", "nobody", "--call-id", "c2", "--queue", "-o", "table"); !strings.Contains(out, "queued") {
		t.Error(out)
	}
	if !eventually(func() bool {
		out, _, _ := steno(t, dir, "calls", "dead", "-o", "jsonl")
		return strings.Contains(out, `"c2"`)
	}) {
		t.Fatal("it is not given up")
	}
	out = good(t, dir, "calls", "dead", "nobody", "-o", "json")
	if pick(t, out, "/0/kind") != "not_found" || pick(t, out, "/0/parked") != false || pick(t, out, "/0/call_id") != "c2" {
		t.Error(out)
	}
	if out := good(t, dir, "calls", "dead"); !strings.Contains(out, "nobody") || !strings.Contains(out, "dead") {
		t.Error(out)
	}
	if out := good(t, dir, "calls", "dead", "--parked", "-o", "jsonl"); out != "" {
		t.Error(out)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"calls", "requeue"}, 2, "--all"},
		{[]string{"calls", "requeue", "s1", "--all"}, 2, "--all"},
		{[]string{"calls", "requeue", "--all"}, 3, "not_found"}, // nothing is parked
		{[]string{"calls", "requeue", "--all", "--kind", "odd"}, 2, "no kind"},
		{[]string{"calls", "dead", "--limit", "-1"}, 2, "--limit"},
		{[]string{"call", "list", "--session", "s1", "--queue", "--exit-code"}, 2, "--queue"},
		{[]string{"call", "list", "--session", "../s1", "--queue"}, 2, "session id"},
		{[]string{"call", "list", "--session", "s1", "--args", "[", "--queue"}, 2, "--args"},
	} {
		if out, errOut, code := steno(t, dir, c.args...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("steno %q: exit %d, %s%s", c.args, code, out, errOut)
		}
	}
	if out, _, code := steno(t, dir, "calls", "requeue", "nobody", "c2", "-o", "jsonl"); code != 1 || !strings.Contains(out, `"cannot":"not_found`) {
		t.Errorf("exit %d: %s", code, out)
	}
	good(t, dir, "run", os.DevNull, "--session", "nobody")
	if out := good(t, dir, "calls", "requeue", "nobody", "c2", "--dry-run"); !strings.Contains(out, "would be queued again") {
		t.Error(out)
	}
	if out := good(t, dir, "calls", "requeue", "--all", "--kind", "not_found", "--reason", "it is there now"); !strings.Contains(out, "queued again") {
		t.Error(out)
	}
	if out := good(t, dir, "calls", "wait", "nobody", "c2", "-o", "json"); pick(t, out, "/ok") != true {
		t.Error(out)
	}
	if out := good(t, dir, "session", "show", "nobody", "-o", "jsonl"); !strings.Contains(out, "it is there now") {
		t.Errorf("the log does not say that it was queued again: %s", out)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
}

func TestCheckTellsOfTheQueue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good(t, dir, "run", os.DevNull, "--session", "s1")
	if out := good(t, dir, "check", "-o", "json"); strings.Contains(out, `"queue"`) {
		t.Error(out)
	}
	s := serving(t, dir)
	if out := good(t, dir, "check", "-o", "json"); pick(t, out, "/queue/messages") != 0.0 || pick(t, out, "/queue/max_messages") != 1e6 {
		t.Error(out)
	}
	good(t, dir, "call", "list", "--session", "nobody", "--queue")
	if !eventually(func() bool { return pick(t, good(t, dir, "check", "-o", "json"), "/queue/dead") == 1.0 }) {
		t.Error("the dead letter is not counted")
	}
	out := good(t, dir, "check", "--format", "prometheus")
	for _, want := range []string{"steno_queue_up 1\n", "steno_queue_messages 0\n", "steno_queue_dead 1\n", "steno_queue_parked 0\n", "steno_queue_oldest_age_seconds 0\n", "steno_queue_full_ratio 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("prometheus has no %q:\n%s", want, out)
		}
	}
	if out, _, _ := steno(t, dir, "check", "--format", "nagios"); !strings.Contains(out, "queue_dead=1") || !strings.Contains(out, "queue_oldest_age_seconds=0s") {
		t.Error(out)
	}
	if out, _, _ := steno(t, dir, "check"); !strings.Contains(out, "queue messages") {
		t.Error(out)
	}
	// A serve that hangs is critical.
	s.signal(syscall.SIGSTOP)
	out, _, code := steno(t, dir, "check", "--format", "nagios")
	if code != 2 || !strings.HasPrefix(out, "STENO CRITICAL") || !strings.Contains(out, "the queue cannot be looked at") || !strings.Contains(out, "queue_up=0") {
		t.Errorf("exit %d: %s", code, out)
	}
	s.signal(syscall.SIGCONT)
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("serve: exit %d", code)
	}
}

func TestWhatOfAQueueIsTooMuch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state  string
		status string
		says   string
	}{
		{`{"messages":10,"max_messages":100,"pending":10,"oldest_age_seconds":400,"asking":3}`, "ok", ""},
		{`{"messages":10,"max_messages":100,"pending":10,"oldest_age_seconds":200}`, "ok", ""},
		{`{"messages":10,"max_messages":100,"pending":10,"oldest_age_seconds":400}`, "warning", "6m40s"},
		{`{"messages":80,"max_messages":100}`, "warning", "fills up: 80 calls"},
		{`{"messages":95,"max_messages":100}`, "critical", "full: 95 calls"},
		{`{"bytes":95,"max_bytes":100,"max_messages":-1}`, "critical", "full"},
		{`{"dead_bytes":80,"max_dead_bytes":100}`, "warning", "fills up"},
		{`{"parked":1}`, "warning", "1 call parked"},
		{`{"dead":5}`, "ok", ""},
	} {
		q := queueStateOf(t, c.state)
		h := &health{Status: statusOK, Queue: &queueHealth{QueueState: q}}
		h.Queue.judge(h)
		if h.Status != c.status || !strings.Contains(strings.Join(h.Reasons, "; "), c.says) {
			t.Errorf("%s is %s: %q", c.state, h.Status, h.Reasons)
		}
	}
}

func queueStateOf(t *testing.T, text string) *executor.QueueState {
	t.Helper()
	q := new(executor.QueueState)
	if err := json.Unmarshal([]byte(text), q); err != nil {
		t.Fatal(err)
	}
	return q
}
