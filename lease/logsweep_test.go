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

// What is not there may come back: a session's folder that was moved away for a
// while, or that of all sessions, on a volume that is not mounted.
func TestALogStaysWhileItsSessionIsAway(t *testing.T) {
	h, dir := stored(t)
	session := filepath.Join(dir, "sessions", "s1")
	must(t, os.MkdirAll(session, 0o700))
	segment := filepath.Join(session, "000001.jsonl")
	must(t, os.WriteFile(segment, []byte("a\n"), 0o600))
	const id = "01KBCDEFGHJKMNPQRSTVWXYZ00"
	must(t, os.MkdirAll(filepath.Join(dir, "holders", "dead"), 0o700))
	log := filepath.Join(dir, "holders", "dead", "log-"+id)
	must(t, os.WriteFile(log, lease.AppendRecord(nil, id, 0, "s1", 1, 2, []byte("b\n")), 0o600))
	stays := func(want bool, when string) {
		t.Helper()
		lease.SweepLogs(h, nil)
		if _, err := os.Stat(log); (err == nil) != want {
			t.Fatalf("%s the log is there: %v", when, err)
		}
	}
	stays(true, "with a line that the segment has not")
	for _, away := range []string{session, filepath.Dir(session)} {
		must(t, os.Rename(away, away+"-away"))
		stays(true, "while "+filepath.Base(away)+" is away")
		must(t, os.Mkdir(away, 0o700))
		stays(true, "while another folder is in the place of "+filepath.Base(away))
		must(t, errors.Join(os.Remove(away), os.Rename(away+"-away", away)))
	}
	must(t, os.Rename(segment, segment+"-away"))
	stays(true, "without the segment")
	must(t, os.Rename(segment+"-away", segment))
	must(t, os.WriteFile(segment, []byte("a\nb\n"), 0o600))
	stays(false, "with all that it has in the segment")
}
