package executor_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"steno/executor"
	"steno/schema"
)

// A command tries to get at the store, which lies in its workspace and holds
// storeText.
func TestACommandCannotTouchTheStore(t *testing.T) {
	b := walled(t)
	log := b.file("state/sessions/log.jsonl", storeText)
	b.file("state/nats/credentials.json", storeText)
	if err := os.Symlink(b.store, filepath.Join(b.dir, "way")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	pid, device := strconv.Itoa(os.Getpid()), deviceOf(t, b.store)
	for name, line := range map[string]string{
		"read":            "cat state/sessions/log.jsonl state/nats/credentials.json way/sessions/log.jsonl " + log,
		"list":            "ls -A state | grep .; find . | grep log.jsonl",
		"write":           "echo x >>state/sessions/log.jsonl; echo x >" + log,
		"make":            "touch state/made; mkdir state/sessions",
		"remove":          "rm -rf state state/sessions way/nats; false",
		"rename over":     "echo x >mine; mv mine " + log + "; mv -T mine state",
		"rename away":     "mv state elsewhere && cat elsewhere/sessions/log.jsonl",
		"hard link":       "ln state/sessions/log.jsonl got; ln " + log + " got; cat got",
		"attributes":      "chattr +i state; chmod 777 state; touch -d 2001-01-01 state/sessions/log.jsonl",
		"unmount":         "umount state; umount -l state; umount -l " + b.store + "; cat state/sessions/log.jsonl",
		"remount":         "mount -o remount,rw state && touch state/made",
		"move the mount":  "mkdir m; mount --move state m; cat state/sessions/log.jsonl",
		"bind":            "mkdir b; mount --bind . b; mount --rbind / b; cat b/state/sessions/log.jsonl b" + log,
		"a new namespace": "unshare -m sh -c 'umount -l state; cat state/sessions/log.jsonl'; unshare -Ur -m sh -c 'umount -l state; mkdir c; mount --bind . c; cat state/sessions/log.jsonl c/state/sessions/log.jsonl'",
		"another root":    "chroot / cat " + log + "; pivot_root . .",
		"another process": "cat /proc/" + pid + "/root" + log + "; cat /proc/*/root" + log + "; ls -l /proc/*/fd/* | grep log.jsonl; nsenter -t " + pid + " -m cat " + log + "; nsenter -t 1 -m cat " + log,
		"its helper":      "cat /proc/1/root" + log + " /proc/1/maps; ls /proc/1/fd | grep .; echo x >/proc/1/mem; gdb -p 1 -batch 2>/dev/null | grep attached",
		"the device":      "mknod dev b " + device + " && head -c 1 dev",
		"the disks":       "for d in $(find /dev -type b); do head -c 1 $d && echo READ $d; (: >>$d) 2>/dev/null && echo OPENED $d; done; false",
		"a new /proc":     "mkdir p; mount -t proc proc p && cat p/" + pid + "/root" + log,
		"its executor":    "kill -KILL " + pid + " && echo killed",
		"all processes":   "kill -KILL -1; true",
		"kernel settings": "for f in kernel/core_pattern kernel/modprobe fs/suid_dumpable; do (: >>/proc/sys/$f) 2>/dev/null && echo OPENED $f; done; (: >>/proc/sysrq-trigger) 2>/dev/null && echo OPENED; (: >>/sys/kernel/uevent_helper) 2>/dev/null && echo OPENED; mount -o remount,rw /proc/sys && echo OPENED; umount /proc/sys && echo OPENED; false",
		"control groups":  "mkdir /sys/fs/cgroup/made && echo OPENED; for f in $(find /sys/fs/cgroup -name cgroup.procs); do (: >>$f) 2>/dev/null && echo OPENED $f; done; false",
		"descriptors":     "for n in 3 4 5 6 7 8 9; do (eval \"cat <&$n\") 2>/dev/null; done; ls /proc/self/fd | grep -v '^[0123]$'",
	} {
		t.Run(name, func(t *testing.T) {
			res := b.must("bash", args{"command": line})
			if strings.Contains(res.Output, storeText) || strings.Contains(res.Output, "READ") || strings.Contains(res.Output, "OPENED") || res.OK && name != "all processes" {
				t.Errorf("it gets %+v", res)
			}
			after, err := os.Stat(log)
			if text := b.text("state/sessions/log.jsonl"); err != nil || text != storeText || !after.ModTime().Equal(before.ModTime()) || after.Mode() != before.Mode() || !os.SameFile(before, after) {
				t.Errorf("the store holds %q, %v, %v", text, after, err)
			}
			if list, err := os.ReadDir(b.store); err != nil || len(list) != 2 {
				t.Errorf("in the store is %v, %v", list, err)
			}
		})
	}
}

func deviceOf(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return strconv.FormatUint(st.Dev>>8&0xfff, 10) + " " + strconv.FormatUint(st.Dev&0xff, 10)
}

// A store that has left its place would not be covered.
func TestACommandDoesNotRunWhereTheStoreCannotBeHidden(t *testing.T) {
	b := walled(t)
	if err := os.Rename(b.store, b.store+"-moved"); err != nil {
		t.Fatal(err)
	}
	_, err := b.call("bash", args{"command": "touch made"})
	wantKind(t, err, schema.BashDisabled)
	if err := os.Mkdir(b.store, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = b.call("bash", args{"command": "touch made"})
	wantKind(t, err, schema.BashDisabled)
	if _, err := os.Stat(filepath.Join(b.dir, "made")); err == nil {
		t.Error("it ran")
	}
}

// A bomb stops at the bound on processes, and all of it ends with the command.
func TestAForkBombEnds(t *testing.T) {
	b := walled(t)
	before := processes(t)
	_, err := b.call("bash", args{"command": "bomb() { bomb & bomb & wait; }; bomb", "timeout_s": 2})
	if err != nil { // or the bomb has ended by itself, out of processes
		wantKind(t, err, schema.Timeout)
	}
	if res := b.must("bash", args{"command": "cat /proc/sys/kernel/pid_max; ls -d /proc/[0-9]* | wc -l"}); lines(res.Output)[0] == strings.TrimSpace(before) {
		t.Errorf("processes are not bounded: %s", res.Output)
	}
	if after := processes(t); after != before {
		t.Errorf("kernel.pid_max was %s and is %s", before, after)
	}
}

// processes is the bound on the processes of this machine.
func processes(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheLimitsOfACommandToolHold(t *testing.T) {
	b := walled(t)
	b.commands(shell("cpu", "while :; do :; done", "    limits: {cpu: 1s}") +
		shell("file", "head -c 2097152 /dev/zero >f; wc -c <f", "    limits: {file_size: 1MiB}") +
		shell("files", "ulimit -n; ulimit -Hn", "    limits: {files: 77}") + shell("core", "ulimit -c"))
	if res := b.must("cpu", args{}); member[string](t, res, "signal") != "CPU time limit exceeded" {
		t.Errorf("got %+v, %s", res, res.Structured)
	}
	if res := b.must("file", args{}); !strings.Contains(res.Output, "1048576") {
		t.Errorf("got %+v", res)
	}
	if res := b.must("files", args{}); res.Output != "77\n77\n" {
		t.Errorf("got %+v", res)
	}
	if res := b.must("core", args{}); res.Output != "0\n" {
		t.Errorf("got %+v", res)
	}
}

// A second process of this test does not call Helper.
func TestWithoutAHelperThereAreNoCommands(t *testing.T) {
	const here = "STENO_TEST_NO_HELPER"
	if os.Getenv(here) != "" {
		b := newBench(t)
		executor.ForgetHelper()
		_, err := b.call("bash", args{"command": "touch made"})
		if e := wantKind(t, err, schema.BashDisabled); !strings.Contains(e.Error()+e.Details["next"].(string), "executor.Helper") {
			t.Errorf("got %v", e)
		}
		return
	}
	again := exec.Command(os.Args[0], "-test.run=^TestWithoutAHelperThereAreNoCommands$")
	again.Env = append(os.Environ(), here+"=1")
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestOnlyAHelperIsOne(t *testing.T) {
	again := exec.Command(os.Args[0])
	again.Args = []string{"steno-helper", "-test.run=^$"}
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A trial that fails for a reason that may pass takes no walls away.
func TestWallsAreNotGivenUpForWhatMayPass(t *testing.T) {
	b := walled(t)
	known := executor.ForgetWalls()
	defer known()
	t.Setenv("TMPDIR", filepath.Join(b.dir, "nowhere"))
	if err := executor.Walls(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder for temporary files it is %v", err)
	}
	t.Setenv("TMPDIR", b.dir)
	if err := executor.Walls(); err != nil {
		t.Errorf("afterwards it is %v", err)
	}
}
