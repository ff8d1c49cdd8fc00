package lease_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"steno/lease"
	"steno/schema"
)

// A process that has no descriptor left has lost nothing by that: it looks into
// the folders that do not stay open by their path, and notices what it would notice
// otherwise. It is a process of its own.
func TestACheckNeedsNoDescriptor(t *testing.T) {
	const name = "STENO_TEST_NO_DESCRIPTOR"
	if os.Getenv(name) == "" {
		t.Parallel()
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), name+"=1")
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "without descriptors: 5 changes") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	type session struct {
		slot *lease.Slot
		path string
		do   func(path string) error
		why  string // "" is not lost
	}
	var all []session
	for _, logged := range []bool{true, false} {
		for _, c := range []session{
			{do: func(string) error { return nil }},
			{do: func(p string) error { return os.Symlink("nowhere", filepath.Join(p, "000002.jsonl")) }, why: "claimed"},
			{do: func(p string) error { return os.Rename(filepath.Join(p, "000001.jsonl"), filepath.Join(p, "x")) }, why: "segment"},
			{do: func(p string) error { return os.Rename(p, p+"-moved") }, why: "folder"},
			{do: func(p string) error {
				if err := os.Rename(p, p+"-moved"); err != nil {
					return err
				}
				return os.Symlink(filepath.Base(p)+"-moved", p)
			}, why: "folder"},
		} {
			d, path := folder(t, nil)
			c.slot, c.path = claim(t, d, 1), path
			must(t, c.slot.Append([]byte("seal\n"), false))
			store, err := os.OpenRoot(filepath.Dir(filepath.Dir(path)))
			must(t, err)
			holders := lease.NewHolders(store)
			t.Cleanup(holders.Close)
			c.slot.BeatIn(holders.Join(lease.Self("test")), logged)
			must(t, c.slot.Append([]byte("one\n"), false))
			if !lease.LetGo(c.slot) {
				t.Fatal("the folder is still open")
			}
			all = append(all, c)
		}
	}
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 256
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	var taken []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			if !strings.Contains(err.Error(), syscall.EMFILE.Error()) {
				t.Error(err)
			}
			break
		}
		taken = append(taken, f)
	}
	var errs [3][]error
	for _, c := range all {
		errs[0] = append(errs[0], c.slot.Append([]byte("two\n"), false))
		errs[1] = append(errs[1], c.do(c.path))
		errs[2] = append(errs[2], c.slot.Append([]byte("three\n"), false))
	}
	for _, f := range taken {
		f.Close()
	}
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if len(taken) == 0 {
		t.Error("there was no descriptor to take")
	}
	for i, c := range all {
		must(t, errs[0][i])
		must(t, errs[1][i])
		switch err := errs[2][i]; {
		case c.why == "":
			must(t, err)
		default:
			if want(t, err, schema.SessionWriterLost); !strings.Contains(err.Error(), c.why) {
				t.Errorf("%d: got %v, want a word about the %s", i, err, c.why)
			}
		}
	}
	fmt.Println("without descriptors:", len(all)/2, "changes")
}
