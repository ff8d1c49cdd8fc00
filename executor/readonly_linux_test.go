package executor_test

import (
	"io/fs"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// An executor on a store that became read-only runs nothing, hands out no id,
// changes nothing, and says that it is not ready.
func TestAReadOnlyStoreIsNotReady(t *testing.T) {
	dir := t.TempDir()
	switch err := unix.Mount("steno-test", dir, "tmpfs", 0, "mode=0700"); {
	case err == unix.EPERM:
		journaltest.Lacks(t, "the right to mount")
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := placeOn(t, journaltest.StartNATS(t, journaltest.NATSOptions{}), dir)
	first := p.node([]executor.Tool{echo})
	first.open("s1")
	first.call("s1", "call-1", "echo", `{}`)
	first.stop()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	tree := func() (names []string) {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := len(tree())
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("count", false)})
	_, err := n.client.Call(within(t), "s1", request("call-2", "count", `{}`))
	wantErr(t, err, schema.LogWriteFailed)
	if count.of("call-2") != 0 {
		t.Error("the tool ran")
	}
	_, err = ask(t, n.conn, "steno.v1.session.open", `{}`)
	wantErr(t, err, schema.LogWriteFailed)
	if id := schema.AsError(err).Details["session"]; id != nil {
		t.Errorf("the refusal names session %v", id)
	}
	if ready, kind := n.readiness(); ready || kind != schema.SessionRecordUnavailable {
		t.Errorf("the readiness is %t %s", ready, kind)
	}
	if l := p.read("s1"); len(l.Findings) > 0 {
		t.Errorf("the findings are %v", l.Findings)
	}
	if after := len(tree()); after != before {
		t.Errorf("there were %d files and are %d", before, after)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	p.wantRecorded("s1", n.call("s1", "call-2", "count", `{}`))
	eventually(t, "the readiness", func() bool { ready, _ := n.readiness(); return ready })
}
