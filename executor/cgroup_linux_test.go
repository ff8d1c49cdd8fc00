package executor_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/journal/journaltest"
)

// Where groups are looked for is what the kernel says of this process, in version
// 2 of control groups and in version 1.
func TestWhereControlGroupsAreLookedFor(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	touch(t, filepath.Join(two, "cgroup.controllers"))
	for _, c := range []struct {
		mount, text string
		memory      bool
		want        [][2]string // below the mount
	}{
		{two, "0::/system.slice/steno.service\n", true, [][2]string{{"system.slice/steno.service", "system.slice/steno.service"}, {"system.slice", "system.slice/steno.service"}}},
		{two, "0::/a\n", false, [][2]string{{"a", "a"}, {"", "a"}}},
		{two, "0::/\n", true, [][2]string{{"", ""}}}, // and never beside the mount
		{two, "0::/../../x\n", true, nil},            // a container that was moved
		{two, "1:name=systemd:/\n0::/a:b\n", true, [][2]string{{"a:b", "a:b"}, {"", "a:b"}}},
		{two, "4:memory:/x\n", true, nil},
		{two, "", true, nil},
		{one, "8:pids:/\n4:memory:/x/y\n0::/z\n", true, [][2]string{{"memory/x/y", "memory/x/y"}, {"memory", "memory"}}},
		{one, "8:pids:/\n4:memory:/x/y\n0::/z\n", false, [][2]string{{"pids", "pids"}, {"pids", "pids"}}},
		{one, "4:memory:/../x\n0::/\n", true, nil},
		{one, "broken\n:\n", true, nil},
	} {
		got := executor.GroupFolders(c.mount, c.text, c.memory)
		for i := range c.want {
			c.want[i] = [2]string{filepath.Join(c.mount, c.want[i][0]), filepath.Join(c.mount, c.want[i][1])}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// What is written into a group, and read from it, in both versions.
func TestTheBoundsOfAControlGroup(t *testing.T) {
	t.Parallel()
	const most = 8 + 32 // and the helper
	for name, want := range map[string]map[string]string{
		"2":              {"memory.max": "67108864", "memory.swap.max": "0", "pids.max": strconv.Itoa(most)},
		"2 without swap": {"memory.max": "67108864", "pids.max": strconv.Itoa(most)},
		"1":              {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864", "pids.max": strconv.Itoa(most)},
	} {
		dir := t.TempDir()
		for file := range want {
			touch(t, filepath.Join(dir, file))
		}
		if err := executor.LimitGroup(dir, 64<<20, 8); err != nil {
			t.Errorf("version %s: %v", name, err)
		}
		list, _ := os.ReadDir(dir)
		for _, e := range list {
			if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err != nil || string(text) != want[e.Name()] {
				t.Errorf("version %s: %s has %q (%v)", name, e.Name(), text, err)
			}
		}
	}
	// A group whose parent hands no controllers down bounds nothing, and is refused.
	bare := t.TempDir()
	touch(t, filepath.Join(bare, "cgroup.procs"))
	for _, err := range []error{executor.LimitGroup(bare, 64<<20, 0), executor.LimitGroup(bare, 0, 8)} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a group without controllers is bounded: %v", err)
		}
	}
	for want, files := range map[string]map[string]string{
		"":                     {"memory.events": "low 0\nhigh 3\nmax 7\noom 0\noom_kill 0\noom_group_kill 0\n", "pids.events": "max 0\n"},
		"memory":               {"memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n", "pids.events": "max 0\n"},
		"processes":            {"memory.events": "oom 1\noom_kill 0\noom_group_kill 1\n", "pids.events": "max 12\n"},
		"memory and processes": {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "pids.events": "max 1\n"},
	} {
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := executor.Reached(dir); got != want {
			t.Errorf("%q: %q were reached", want, got)
		}
	}
}

// unified is a mount of version 2, of which a machine that has the controllers in
// version 1 still has the groups.
func unified(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && f[3] == "/" {
			return f[4]
		}
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "cgroup2", 0, ""); err != nil {
		journaltest.Lacks(t, "control groups of version 2")
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A real group of version 2: a helper goes in, starts and leaves again; what it
// cannot bound is refused; what a killed process has left is swept, and nothing
// that is in use.
func TestAControlGroupOfVersion2(t *testing.T) {
	in := unified(t)
	dir, try, remove, left, err := executor.NewGroup(in, 0)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		journaltest.Lacks(t, "the right to make control groups")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := try(); err != nil {
		t.Errorf("the helper: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(text) > 0 {
		t.Errorf("left in the group are %q (%v)", text, err)
	}
	controllers, err := os.ReadFile(filepath.Join(in, "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Fields(string(controllers)), "memory") {
		before, _ := filepath.Glob(filepath.Join(in, "steno-*"))
		if _, _, _, _, err := executor.NewGroup(in, 64<<20); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a group without the controller is bounded: %v", err)
		}
		if now, _ := filepath.Glob(filepath.Join(in, "steno-*")); len(now) > len(before) {
			t.Errorf("of a group that was refused is left %q, before %q", now, before)
		}
	}
	exists := func() bool { _, err := os.Lstat(dir); return err == nil }
	executor.SweepGroups(in)
	if !exists() {
		t.Fatal("a group is swept whose process lives")
	}
	inside := exec.Command("sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer inside.Process.Kill()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(inside.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	left()
	executor.SweepGroups(in)
	if !exists() {
		t.Fatal("a group is swept in which something runs")
	}
	_ = inside.Process.Kill()
	_ = inside.Wait()
	eventually(t, "the group is swept", func() bool { executor.SweepGroups(in); return !exists() })
	if err := remove(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was still there: %v", err)
	}
}
