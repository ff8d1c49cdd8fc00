package journal_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// Locks are seen across namespaces, and so are beats. In another time namespace
// the steady clock is another one: the holder is watched, and not believed.
func TestAHolderInAnotherNamespaceIsSeen(t *testing.T) {
	if os.Getuid() != 0 {
		journaltest.Lacks(t, "root, who makes namespaces without a user namespace")
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		journaltest.Lacks(t, "time namespaces")
	}
	for name, c := range map[string]struct {
		attr  syscall.SysProcAttr
		clock bool // it is ours
	}{
		"pid":   {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, true},
		"mount": {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS}, true},
		"time":  {syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWTIME}, false}, // entered at the exec
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := (&exec.Cmd{Path: "/proc/self/exe", Args: []string{"", "-test.run=^$"}, SysProcAttr: &c.attr}).Run(); errors.Is(err, syscall.EPERM) {
				journaltest.Lacks(t, "the right to make namespaces")
			}
			store := journaltest.Files(t)
			p := journaltest.StartIn(t, &c.attr, "writer", journaltest.Writer{Dir: store.Dir(), Session: "s1", Step: true})
			p.WaitFor("open", 1)
			st := look(t, store, "s1")
			if st.State != lease.Active || st.Undecided == c.clock || st.Beat == nil {
				t.Errorf("the lease is %+v", st)
			}
			if name == "pid" && st.Holder.PID != 1 {
				t.Errorf("the holder calls itself process %d", st.Holder.PID)
			}
			if c.clock == strings.Contains(st.Observed(), "another clock") {
				t.Errorf("observed: %s", st.Observed())
			}
			// Whoever wants the session watches it beat, and is told that it does.
			_, err := journal.Open(ctx, store, "s1", journaltest.Options())
			if e := schema.AsError(err); !errors.Is(err, schema.SessionWriterActive) || strings.Contains(e.Details["observed"].(string), "clock") {
				t.Errorf("opening gives %v, %v", err, schema.AsError(err).Details)
			}
			p.Kill()
			if st := look(t, store, "s1"); st.State != lease.Stale || st.Undecided {
				t.Errorf("it is dead, and the lease is %+v", st)
			}
		})
	}
}
