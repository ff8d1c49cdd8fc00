package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
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
	written(t, dir, "left", false, []journal.Entry{journaltest.Call("c1", "bash", `{}`)})
	written(t, dir, "asks", false, []journal.Entry{journaltest.Call("c1", "bash", `{}`), entry("approval_requested", `{"call_id":"c1","approval_id":"q","reason":"ask"}`)})
	written(t, dir, "died", false, ran("c1", "bash", `{}`, `""`)[:3])
	written(t, dir, "rules", false, []journal.Entry{entry("posture_changed", `{"from":{"mode":"auto","policy_hash":""},"to":{"mode":"ask","policy_hash":"`+strings.Repeat("a", 64)+`"},"by":"x","reason":"y"}`)})
	written(t, dir, "torn", false, []journal.Entry{journaltest.Note("needle"), journaltest.Note("x")})
	out, errOut, code := steno(t, dir, "doctor", "-o", "json")
	checks, status := told(t, out)
	if got := strings.Join(checks, ", "); code != 1 || errOut != "" || status != "blocked" || got != "approvals asks warning, calls died warning, pending left warning, outcomes open warning, policy rules blocked" {
		t.Errorf("exit %d, %s: %s%s", code, status, got, errOut)
	}
	// On a corrupt log too, which hides no other.
	must(t, change(filepath.Join(dir, ".steno/sessions/torn/000001.jsonl"), "needle", "nEEdle"))
	good(t, dir, "session", "rm", "rules", "--reason", "test", "--apply")
	out, _, code = steno(t, dir, "doctor", "-o", "json")
	checks, status = told(t, out)
	if got := strings.Join(checks, ", "); code != 4 || status != "blocked" || got != "approvals asks warning, calls died warning, pending left warning, outcomes open warning, log torn blocked" {
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

// Of a NATS server of somebody else it is told what can be seen, and what cannot.
func TestS11TheDoctorClaimsNoMoreOfABrokerThanItSees(t *testing.T) {
	t.Parallel()
	start := func(o *server.Options) func(user string) *nats.Conn {
		o.NoLog, o.NoSigs, o.DontListen, o.JetStream, o.StoreDir = true, true, true, true, t.TempDir()
		s, err := server.NewServer(o)
		must(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(patience) {
			t.Fatal("the server does not start")
		}
		return func(user string) *nats.Conn {
			nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(user, "p"), nats.Timeout(patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			must(t, err)
			t.Cleanup(nc.Close)
			return nc
		}
	}
	says := func(nc *nats.Conn) (text string) {
		var out strings.Builder
		(&doctor{a: &app{out: &out}}).broker(t.Context(), "broker", nc)
		return out.String()
	}
	wants := func(what, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: there is no %q in\n%s", what, w, text)
			}
		}
	}
	queue := func(nc *nats.Conn, storage jetstream.StorageType) {
		js, err := jetstream.New(nc)
		must(t, err)
		_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: executor.StreamQueue, Subjects: []string{"steno.v1.queue.*"}, Storage: storage})
		must(t, err)
	}
	deny := &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"$JS.EVENT.>"}}, Publish: &server.SubjectPermission{Deny: []string{"$JS.API.INFO"}}}
	app := start(&server.Options{Users: []*server.User{{Username: "app", Password: "p"}, {Username: "deaf", Password: "p", Permissions: deny}}})
	wants("without a queue", says(app("app")), "warning  broker: nats-server 2.", "messages of up to 1048576 bytes", "the queue cannot be looked at")
	queue(app("app"), jetstream.FileStorage)
	wants("as it should be", says(app("app")), "ok       broker: nats-server 2.", "; API level ", "; STENO_QUEUE with 0 calls and 1 replica; advisories can be heard; how often it syncs cannot be seen from here", "next: let it sync always")
	wants("of a user that may not", says(app("deaf")), "warning  broker", "its API level cannot be seen", "advisories cannot be heard", "next: let its user subscribe to $JS.EVENT.ADVISORY.>")

	memory := start(&server.Options{Users: []*server.User{{Username: "app", Password: "p"}}})
	queue(memory("app"), jetstream.MemoryStorage)
	wants("in memory", says(memory("app")), "warning  broker", "it keeps them in memory")

	for always, want := range map[bool]string{true: "1 server answered that they sync always", false: "of 1 server that answered not all sync what they acknowledge: one does every 1m0s"} {
		sys := server.NewAccount("SYS")
		of := start(&server.Options{Accounts: []*server.Account{sys}, SystemAccount: "SYS", Users: []*server.User{{Username: "sys", Password: "p", Account: sys}}, SyncAlways: always, SyncInterval: time.Minute})
		wants("of a system account", says(of("sys")), want)
	}
	small := start(&server.Options{MaxPayload: 1 << 16, Users: []*server.User{{Username: "app", Password: "p"}}})
	wants("of small messages", says(small("app")), "blocked  broker", "65536 bytes at most")
}
