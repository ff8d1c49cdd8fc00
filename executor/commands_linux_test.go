package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/executor"
	"steno/executor/redact"
	"steno/journal/journaltest"
	"steno/schema"

	"github.com/go-json-experiment/json"
)

// How a bound holds all of a command's processes depends on the machine; that
// nothing goes on over it does not.
func TestACommandToolHasItsMemoryAndProcesses(t *testing.T) {
	b := walled(t)
	b.commands(shell("memory", "head -c 300000000 /dev/zero | tail >/dev/null; exit $?", "    limits: {memory: 64MiB}") +
		shell("processes", "i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done; echo all; kill 0", "    limits: {processes: 8}") +
		shell("enough", "sleep 0 & sleep 0 & wait; cat /sys/fs/cgroup/*/cgroup.procs 2>/dev/null; echo done", "    limits: {memory: 64MiB, processes: 8}"))
	info := func(tool string) string { return confined(t, b, tool) }
	res := b.must("memory", args{})
	if res.OK || strings.HasSuffix(info("memory"), "memory 64 MiB") && (member[string](t, res, "reached") != "memory" || !strings.Contains(res.Summary, "limit of memory")) {
		t.Errorf("%s: got %+v, %s", info("memory"), res, res.Structured)
	}
	res = b.must("processes", args{})
	if strings.Contains(info("processes"), "processes 8,") && (strings.Contains(res.Output, "all") || member[string](t, res, "reached") != "processes") {
		t.Errorf("%s: got %+v, %s", info("processes"), res, res.Structured)
	}
	if res := b.must("enough", args{}); !res.OK || !strings.HasSuffix(res.Output, "done\n") || strings.HasSuffix(info("enough"), "memory 64 MiB") && res.Output != "done\n" {
		t.Errorf("got %+v", res)
	}
	for _, dir := range executor.GroupParents() {
		left, err := filepath.Glob(filepath.Join(dir, "steno-*", "cgroup.procs"))
		for _, path := range left {
			if text, _ := os.ReadFile(path); strings.TrimSpace(string(text)) != "" {
				t.Errorf("%s still has %s", path, text)
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWithoutControlGroupsEachProcessHasItsMemory(t *testing.T) {
	b := walled(t)
	defer executor.WithoutGroups()()
	b.commands(shell("memory", "sleep 0; head -c 300000000 /dev/zero | tail >/dev/null; exit $?", "    limits: {memory: 64MiB, processes: 400}") +
		shell("processes", "cat /proc/sys/kernel/pid_max", "    limits: {processes: 8}"))
	if res := b.must("memory", args{}); res.OK || *res.ExitCode > 128 || !strings.Contains(confined(t, b, "memory"), "memory 64 MiB for each process") {
		t.Errorf("got %+v", res)
	}
	if res := b.must("processes", args{}); strings.Contains(confined(t, b, "processes"), "processes 301") != (res.Output == "301\n") {
		t.Errorf("got %+v, and told is %s", res, confined(t, b, "processes"))
	}
}

// confined is what is told of the walls around a tool.
func confined(t *testing.T, b *bench, tool string) string {
	t.Helper()
	got, err := b.reg.Get(tool)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := got.Spec(executor.FormatSteno)
	if err != nil {
		t.Fatal(err)
	}
	var info executor.ToolInfo
	if err := json.Unmarshal(spec, &info); err != nil {
		t.Fatal(err)
	}
	return info.Confined
}

func TestWhatIsAroundACommandIsTold(t *testing.T) {
	b := walled(t)
	b.commands(shell("t", "true", "    limits: {cpu: 7s, memory: 32MiB, files: 64, file_size: 1MiB}"))
	for tool, want := range map[string][]string{
		"bash": {"pid", "namespace", "store hidden", "landlock", "processes", "memory not bounded"},
		"t":    {"namespace", "store hidden", "memory 32 MiB", "cpu 7 s", "files of 1024 KiB", "64 open files"},
		"read": {""},
	} {
		got := confined(t, b, tool)
		for _, part := range want {
			if !strings.Contains(got, part) || part == "" && got != "" {
				t.Errorf("%s is confined by %q, which lacks %q", tool, got, part)
			}
		}
	}
	spec, err := must(b.reg.Get("bash")).Spec(executor.FormatMCP)
	if err != nil || strings.Contains(string(spec), "confined") {
		t.Errorf("a model is told %s, %v", spec, err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestACommandWritesOnlyWhereItMay(t *testing.T) {
	b := walled(t)
	extra := t.TempDir()
	outside := filepath.Join(b.out, "outside")
	if err := os.WriteFile(outside, []byte(storeText), 0o666); err != nil {
		t.Fatal(err)
	}
	b.commands(shell("tool", "echo x >>"+outside), "commands: {writable: ["+extra+"]}")
	if !strings.Contains(confined(t, b, "bash"), "writes only in the workspace and TMPDIR and "+extra) {
		journaltest.Lacks(t, "this wall: "+confined(t, b, "bash"))
	}
	for name, line := range map[string]string{
		"a file":       "echo x >>" + outside,
		"cut one":      "perl -e 'truncate \"" + outside + "\", 0 or die' || : >" + outside,
		"a new one":    "touch " + b.out + "/made",
		"remove":       "rm " + outside,
		"rename over":  "echo x >mine; mv mine " + outside,
		"a hard link":  "ln " + outside + " got && echo x >>got",
		"a soft link":  "ln -s " + outside + " way; echo x >>way",
		"/tmp":         "touch /tmp/steno-made-$$",
		"a setting":    "echo x >/proc/sys/kernel/core_pattern",
		"the devices":  "touch /dev/made",
		"shared":       "touch /dev/shm/made-$$",
		"another user": "chroot / touch " + b.out + "/made",
	} {
		if res := b.must("bash", args{"command": line}); res.OK {
			t.Errorf("%s: it may: %+v", name, res)
		}
	}
	if res := b.must("tool", args{}); res.OK {
		t.Errorf("a tool of the file may: %+v", res)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != storeText {
		t.Errorf("outside is %q, %v", text, err)
	}
	for name, line := range map[string]string{
		"the workspace":   "mkdir -p a b; echo x >a/f; mv a/f b/f; rm b/f",
		"a folder of its": `echo x >"$TMPDIR/f"; mv "$TMPDIR/f" ` + extra + "/f",
		"/dev/null":       "echo x >/dev/null; echo x >/dev/stdout",
		"reading":         "cat " + outside + " /etc/passwd >/dev/null; ls /",
	} {
		if res := b.must("bash", args{"command": "set -e; " + line}); !res.OK {
			t.Errorf("%s: it may not: %+v", name, res)
		}
	}
}

// The strongest wall: another user.
func TestACommandRunsAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		_, _, err := executor.ParseTools([]byte("version: 1\ncommands: {user: nobody}\ntools: []"), t.TempDir())
		if e := wantKind(t, err, schema.InvalidConfig); !strings.Contains(e.Message, "only root") {
			t.Errorf("got %v", e)
		}
		return
	}
	b := walled(t)
	b.commands(shell("tool", "id -u", "    limits: {processes: 8}"), "commands: {user: nobody}")
	if !strings.Contains(confined(t, b, "bash"), "user nobody") {
		journaltest.Lacks(t, "this wall: "+confined(t, b, "bash"))
	}
	_, err := b.call("bash", args{"command": "touch made"})
	if e := wantKind(t, err, schema.BashDisabled); !strings.Contains(e.Message, b.dir) || !strings.Contains(e.Details["next"].(string), "chown") {
		t.Errorf("got %v", e)
	}
	open := func(dir string) {
		for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(b.dir)
	if _, err := b.call("bash", args{"command": "touch made"}); err == nil {
		t.Error("it works in a folder that it may not write")
	}
	if err := os.Chown(b.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	secret := b.file("secret", storeText)
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	res := b.must("bash", args{"command": `id -u; id -G; echo $USER; stat -c %u:%a "$TMPDIR"; touch made f; stat -c %u made`})
	want := []string{"65534", "65534", "nobody", "65534:700", "65534"}
	if got := lines(res.Output); !res.OK || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, line := range map[string]string{
		"a file of root":  "cat secret",
		"its helper":      "kill -KILL 1",
		"root again":      "setpriv --reuid 0 true || su -c true || sudo -n true",
		"the environment": "cat /proc/1/environ",
		"capabilities":    "grep CapEff /proc/self/status | grep -v 0000000000000000",
	} {
		if res := b.must("bash", args{"command": line}); res.OK || strings.Contains(res.Output, storeText) {
			t.Errorf("%s: it may: %+v", name, res)
		}
	}
	if res := b.must("tool", args{}); res.Output != "65534\n" {
		t.Errorf("a tool of the file: %+v", res)
	}
}

func TestACommandHasAFolderForTemporaryFiles(t *testing.T) {
	for _, where := range []string{"walls", "bare"} {
		t.Run(where, func(t *testing.T) {
			b := newBench(t)
			if where == "bare" {
				b.bare()
			}
			const line = `stat -c %a "$TMPDIR"; ls -A "$TMPDIR"; mktemp >/dev/null; mkdir -p "$TMPDIR/d/e"; touch "$TMPDIR/d/e/f"; ln -s / "$TMPDIR/d/root"; chmod 0 "$TMPDIR/d/e" "$TMPDIR/d"; echo "$TMPDIR"`
			seen := map[string]bool{}
			for range 2 {
				got := lines(b.must("bash", args{"command": line}).Output)
				if len(got) != 2 || got[0] != "700" || seen[got[1]] {
					t.Fatalf("got %q", got)
				}
				seen[got[1]] = true
				if _, err := os.Lstat(got[1]); !os.IsNotExist(err) {
					t.Errorf("%s is still there: %v", got[1], err)
				}
			}
			_, err := b.call("bash", args{"command": `echo "$TMPDIR"; exec sleep 1000`, "timeout_s": 1})
			temp := strings.TrimSpace(fmt.Sprint(wantKind(t, err, schema.Timeout).Details["output"]))
			if _, err := os.Lstat(temp); temp == "" || !os.IsNotExist(err) {
				t.Errorf("%s is still there: %v", temp, err)
			}
		})
	}
}

// What a tool gets by env is known to the redaction, unless it could be a word.
func TestWhatAToolGetsIsASecret(t *testing.T) {
	t.Setenv("MAIL_ACCOUNT", "account-8812")
	t.Setenv("MAIL_MODE", "production")
	_, commands, err := executor.ParseTools([]byte("version: 1\ntools:\n"+shell("t", "true", "    env: [MAIL_ACCOUNT, MAIL_MODE, NOT_SET]")), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, err := redact.New([]byte("key"), redact.Rules{Values: commands.Secrets()})
	if err != nil {
		t.Fatal(err)
	}
	text, marks := r.Text("it is account-8812 in production", "/output", nil)
	if text != "it is [redacted] in production" || len(marks) != 1 || marks[0].Rule != "value:MAIL_ACCOUNT" {
		t.Errorf("got %q, %v", text, marks)
	}
}
