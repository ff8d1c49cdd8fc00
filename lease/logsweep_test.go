package lease_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"steno/lease"
	"steno/schema"
)

// A claimant looks at what is below its claim. A seal that is written there
// afterwards, by one who has lost by then, is not what it goes on from: what the
// log has of the segment before that is needed until its own seal is durable.
func TestASealThatMayHaveBeenOverlookedEndsNoLog(t *testing.T) {
	h, dir := stored(t)
	must(t, os.MkdirAll(filepath.Join(dir, "sessions", "s1"), 0o700))
	all, err := os.OpenRoot(filepath.Join(dir, "sessions"))
	must(t, err)
	defer all.Close()
	d, err := lease.Open(all, "s1", nil)
	must(t, err)
	defer d.Close()
	seal := func(s *lease.Slot, epoch uint64) error {
		return s.Append(event("s1", epoch, schema.TypeWriterOpened), false)
	}
	ended := func(want bool, when string) {
		t.Helper()
		if got := lease.Superseded(h, "s1", 1, nil); got != want {
			t.Errorf("%s the log is needed no more: %t", when, got)
		}
	}
	one := claim(t, d, 1)
	must(t, seal(one, 1))
	must(t, one.Close())
	ended(false, "with no other segment")
	two := claim(t, d, 2)
	defer two.Close()
	ended(false, "with a claim behind it")
	three := claim(t, d, 3)
	defer three.Close()
	if err := seal(two, 2); !errors.Is(err, schema.SessionWriterLost) {
		t.Fatalf("the seal below a claim gives %v", err)
	}
	ended(false, "with a seal that the newest claimant may not have seen")
	must(t, seal(three, 3))
	ended(true, "with a seal in the newest slot")
}
