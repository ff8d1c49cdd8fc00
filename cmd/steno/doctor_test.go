package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// told is what a doctor says: its checks that are not in order, and the status.
func told(t *testing.T, out string) (checks []string, status string) {
	t.Helper()
	var v struct {
		Checks []diagnosis
		Status string
	}
	must(t, json.Unmarshal([]byte(out), &v))
	for _, c := range v.Checks {
		if c.Check == "commands" { // what they are depends on the machine
			continue
		}
		if c.Status != statusOK {
			checks = append(checks, c.Check+" "+c.Session+" "+c.Status)
			if c.Next == "" {
				t.Errorf("%+v has no next step", c)
			}
		}
	}
	return checks, v.Status
}

func TestS11TheDoctorSaysWhatKeepsASessionFromGoingOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written(t, dir, "fine", false, ran("c1", "read", `{}`, `"x"`))
	written(t, dir, "open", false, joined(ran("c1", "bash", `{}`, `""`)[:3], []journal.Entry{
		entry("tool_result", `{"call_id":"c1","attempt":1,"ok":false,"error":{"kind":"interrupted","message":"gone","details":{}},"synthetic":true,"duration_us":0}`)}))
	written(t, dir, "asks", false, []journal.Entry{journaltest.Call("c1", "bash", `{}`), entry("approval_requested", `{"call_id":"c1","approval_id":"q","reason":"ask"}`)})
	written(t, dir, "died", false, ran("c1", "bash", `{}`, `""`)[:3])
	written(t, dir, "rules", false, []journal.Entry{entry("posture_changed", `{"from":{"mode":"auto","policy_hash":""},"to":{"mode":"ask","policy_hash":"`+strings.Repeat("a", 64)+`"},"by":"x","reason":"y"}`)})
	written(t, dir, "torn", false, []journal.Entry{journaltest.Note("needle"), journaltest.Note("x")})
	out, errOut, code := steno(t, dir, "doctor", "-o", "json")
	checks, status := told(t, out)
	if got := strings.Join(checks, ", "); code != 1 || errOut != "" || status != "blocked" || got != "approvals asks warning, calls died warning, outcomes open warning, policy rules blocked" {
		t.Errorf("exit %d, %s: %s%s", code, status, got, errOut)
	}
	// On a corrupt log too, which hides no other.
	must(t, change(filepath.Join(dir, ".steno/sessions/torn/000001.jsonl"), "needle", "nEEdle"))
	good(t, dir, "session", "rm", "rules", "--reason", "test", "--apply")
	out, _, code = steno(t, dir, "doctor", "-o", "json")
	checks, status = told(t, out)
	if got := strings.Join(checks, ", "); code != 4 || status != "blocked" || got != "approvals asks warning, calls died warning, outcomes open warning, log torn blocked" {
		t.Errorf("exit %d, %s: %s", code, status, got)
	}
	out, _, code = steno(t, dir, "doctor", "torn")
	if code != 4 || !strings.Contains(out, "blocked  log torn: error  000001.jsonl line 4") || !strings.Contains(out, "next: ") || !strings.Contains(out, "steno repair torn") || !strings.HasSuffix(out, "\nblocked: 0 warnings, 1 blocked\n") && !strings.Contains(out, "commands") {
		t.Errorf("exit %d\n%s", code, out)
	}
	out, _, code = steno(t, dir, "doctor", "fine", "-o", "jsonl")
	for _, want := range []string{`"check":"lease","session":"fine","status":"ok"`, `"check":"log","session":"fine","status":"ok"`, `"check":"calls","session":"fine","status":"ok"`, `{"status":"ready`} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %s in\n%s", code, want, out)
		}
	}
	if out, _, code = steno(t, dir, "doctor", "nobody"); code != 3 || !strings.Contains(out, "blocked  lease nobody") {
		t.Errorf("exit %d\n%s", code, out)
	}
	// A holder that lives is in order, with its calls.
	j, err := journal.Open(t.Context(), journaltest.FilesIn(t, filepath.Join(dir, ".steno")), "died", journaltest.Options())
	must(t, err)
	defer j.Close()
	if checks, _ := told(t, good(t, dir, "doctor", "died", "-o", "json")); len(checks) > 0 {
		t.Errorf("while its holder lives: %s", checks)
	}
}

func TestS11TheDoctorLooksAtTheStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, _, code := steno(t, dir, "doctor", "-o", "json")
	if checks, status := told(t, out); code != 3 || status != "blocked" || len(checks) != 1 || checks[0] != "store  blocked" {
		t.Errorf("without a store: exit %d, %s %s", code, status, checks)
	}
	good(t, dir, "run", os.DevNull, "--session", "s1")
	must(t, os.Chmod(filepath.Join(dir, ".steno"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte("mode: [\n"), 0o600))
	out, _, code = steno(t, dir, "doctor", "--policy", "policy.yaml", "-o", "json")
	if checks, _ := told(t, out); code != 2 || strings.Join(checks, ", ") != "policy  blocked, modes  warning" {
		t.Errorf("exit %d, %s", code, checks)
	}
	must(t, os.Chmod(filepath.Join(dir, ".steno"), 0o700))
	must(t, os.Chmod(filepath.Join(dir, ".steno/secret"), 0o644))
	out, _, _ = steno(t, dir, "doctor", "-o", "json")
	if checks, _ := told(t, out); len(checks) != 1 || checks[0] != "secret  blocked" {
		t.Errorf("a secret that others may read: %s", out)
	}
	must(t, os.Chmod(filepath.Join(dir, ".steno/secret"), 0o600))
	serving(t, dir)
	if out := good(t, dir, "doctor"); !regexp.MustCompile(`(?m)^ok +serve: nats-server \d.*STENO_QUEUE with 0 calls`).MatchString(out) {
		t.Errorf("beside a serve:\n%s", out)
	}
	if out := good(t, dir, "doctor", "--nats", ".steno/nats/context.json"); !strings.Contains(out, "cannot be seen from here") {
		t.Errorf("of a broker:\n%s", out)
	}
	if out, _, code := steno(t, dir, "doctor", "--nats", "nats://127.0.0.1:1"); code != 11 || !strings.Contains(out, "blocked  broker") {
		t.Errorf("of no broker: exit %d\n%s", code, out)
	}
	if out := good(t, dir, "check", "-o", "json"); pick(t, out, "/serve") != true {
		t.Error(out)
	}
}

func TestS11ACheckTellsMonitors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, _, code := steno(t, dir, "check", "--format", "nagios"); code != 3 || !strings.HasPrefix(out, "STENO UNKNOWN - ") {
		t.Errorf("without a store: exit %d, %s", code, out)
	}
	if out, errOut, code := steno(t, dir, "check"); code != 3 || out != "" || !strings.Contains(errOut, "not_found") {
		t.Errorf("without a store: exit %d, %s%s", code, out, errOut)
	}
	written(t, dir, "private-name", false, ran("c1", "read", `{}`, `"x"`), ran("c2", "bash", `{}`, `"x"`)[:3])
	good(t, dir, "check", "--format", "text")
	out := good(t, dir, "check", "--logs", "--format", "prometheus")
	shape := regexp.MustCompile(`^(# (HELP|TYPE) steno_[a-z_]+ .+|steno_[a-z_]+(\{(state|severity)="[a-z]+"\})? [0-9.]+)$`)
	var names []string
	for line := range strings.Lines(out) {
		if !shape.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("no line of Prometheus: %s", line)
		}
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			names = append(names, strings.Fields(name)[0])
		}
	}
	// Monitors hang on these.
	want := "steno_status steno_sessions steno_disk_free_bytes steno_disk_free_inodes steno_serve_up steno_beat_age_seconds steno_log_events steno_log_damaged steno_log_findings steno_calls steno_calls_waiting steno_calls_open"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the metrics are %s", got)
	}
	for _, line := range []string{`steno_sessions{state="available"} 1`, `steno_calls{state="unknown"} 1`, "steno_log_events 12"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, out)
		}
	}
	must(t, change(filepath.Join(dir, ".steno/sessions/private-name/000001.jsonl"), `"read"`, `"rEad"`))
	for format, code := range map[string]int{"nagios": 2, "prometheus": 0, "json": 0, "text": 0} {
		out, errOut, got := steno(t, dir, "check", "--logs", "--format", format)
		if got != code || errOut != "" || strings.Contains(out, "private") {
			t.Errorf("%s of a damaged log: exit %d\n%s%s", format, got, out, errOut)
		}
		if format == "nagios" && !regexp.MustCompile(`^STENO CRITICAL - 1 log damaged \| status=2 (\S+=[0-9.]+(B|s)? ?)+\n$`).MatchString(out) {
			t.Error(out)
		}
	}
	if out := good(t, dir, "check", "--format", "nagios"); !strings.HasPrefix(out, "STENO OK") {
		t.Error(out) // the logs are not read without --logs
	}
	for _, args := range []string{"--format xml", "--format json -o json"} {
		if _, _, code := steno(t, dir, append([]string{"check"}, strings.Fields(args)...)...); code != 2 {
			t.Errorf("check %s: exit %d", args, code)
		}
	}
	for free, want := range map[uint64]string{1 << 20: "critical", 1 << 29: "warning", 1 << 40: "ok"} {
		h := &health{Status: statusOK, Sessions: map[string]int{}, Disk: space{Bytes: free, Inodes: 1 << 20}}
		if h.judge(); h.Status != want {
			t.Errorf("%d bytes free: %s", free, h.Status)
		}
	}
	h := &health{Status: statusOK, Sessions: map[string]int{"ambiguous": 2}, Disk: space{Bytes: 1 << 40, none: true}}
	if h.judge(); h.Status != "warning" || fmt.Sprint(h.Reasons) != "[2 leases ambiguous]" {
		t.Errorf("%+v", h)
	}
}
