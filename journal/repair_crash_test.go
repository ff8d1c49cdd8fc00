package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// repairArg is what a child process of role "repairer" does: it repairs s1 and
// says "repaired HEAD" or "nothing".
type repairArg struct {
	Dir     string
	KillAt  string
	KillNth int
}

func repairer(arg []byte) error {
	var a repairArg
	if err := json.Unmarshal(arg, &a); err != nil {
		return err
	}
	f, err := journal.OpenFiles(a.Dir, false)
	if err != nil {
		return err
	}
	store, faults := journaltest.Faulty(f)
	if a.KillAt != "" {
		faults.At(a.KillAt, a.KillNth, func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		})
	}
	got, err := journal.Repair(ctx, store, "s1", repairing())
	switch {
	case err != nil:
		return err
	case got.Epoch == 0:
		journaltest.Say("nothing")
	default:
		journaltest.Say("repaired %s", got.Head)
	}
	return nil
}

// lay puts segments on a disk.
func lay(t *testing.T, s segments) *journal.Files {
	t.Helper()
	store := journaltest.Files(t)
	dir := filepath.Join(store.Dir(), "sessions", "s1")
	must(t, os.MkdirAll(dir, 0o700))
	for epoch, b := range s {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.jsonl", epoch)), b, 0o600))
	}
	return store
}

// flip changes a bit in the middle of a line on the disk.
func flip(t *testing.T, store *journal.Files, epoch uint64, line int) {
	t.Helper()
	path := filepath.Join(store.Dir(), "sessions", "s1", fmt.Sprintf("%06d.jsonl", epoch))
	b, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(b, newline)
	lines[line-1][len(lines[line-1])/2] ^= 1
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(bytes.Join(lines, nil), 0)
	must(t, errors.Join(err, f.Close()))
}

// damaged is a log with damage of several kinds.
func damaged(t *testing.T) segments {
	s := healthy(t)
	s.replace(1, 4, "hello", "hullo")
	s.set(2, 4)
	s.replace(3, 4, "thanks", "th\x00nks")
	s[3] = append(s[3], s.line(3, 5)[:80]...)
	return s
}

func TestARepairKilledAtAnyPointCanBeMadeAgain(t *testing.T) {
	for _, point := range []string{journaltest.Write, journaltest.Sync, journaltest.Claimed, journaltest.Written, journaltest.Synced, journaltest.Checked} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := damaged(t)
			before := read(t, s)
			for n := 1; ; n++ {
				store := lay(t, s)
				p := journaltest.Start(t, "repairer", repairArg{store.Dir(), point, n})
				killed, _ := p.Wait()
				unchanged(t, store, s)
				l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
				must(t, err)
				if len(l.Missing(heads(before))) > 0 || l.FirstError != nil && l.Count(schema.Repaired) > 0 {
					t.Errorf("killed at %s %d: half a repair: %v", point, n, l.Findings)
				}
				if !killed {
					if n == 1 || l.FirstError != nil || !strings.HasPrefix(strings.Join(p.Lines(), "\n"), "repaired ") {
						t.Errorf("not killed at %s %d: %q, %v", point, n, p.Lines(), l.FirstError)
					}
					return
				}
				got, err := journal.Repair(ctx, store, "s1", repairing())
				must(t, err)
				if (got.Epoch > 0) != (l.FirstError != nil) {
					t.Errorf("killed at %s %d, then repaired again: %+v; before it %v", point, n, got, l.FirstError)
				}
				after, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
				if err != nil || meaning(after.State) != meaning(before.State) || len(after.Repairs) != 1 {
					t.Errorf("killed at %s %d, then repaired again: %v, %+v", point, n, err, after.Repairs)
				}
				goesOn(t, store, after)
			}
		})
	}
}

func TestOfManyRepairsAtOnceOneWins(t *testing.T) {
	for range 5 {
		s := damaged(t)
		store := lay(t, s)
		var all []*journaltest.Process
		for range 4 {
			all = append(all, journaltest.Start(t, "repairer", repairArg{Dir: store.Dir()}))
		}
		won := 0
		for _, p := range all {
			switch p.WaitForEither("repaired", "nothing", "error") {
			case "repaired":
				won++
			case "error":
				if err := p.Err(); !errors.Is(err, schema.SessionWriterActive) {
					t.Errorf("a repair that came too late ended in %v", err)
				}
			}
		}
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
		if won != 1 || err != nil || len(l.Repairs) != 1 {
			t.Errorf("%d repairs won; %v, %+v", won, err, l.Repairs)
		}
		unchanged(t, store, s)
	}
}

// Whatever a log has been through, what is sound in it is given, and after a
// repair it is all there and a writer goes on.
func TestRandomDamageCanBeRepairedAgainAndAgain(t *testing.T) {
	t.Parallel()
	seed := journaltest.Seed(t)
	base := healthy(t)
	repairs, rounds := 0, journaltest.Amount(300, 1500, 20000)
	for round := range rounds {
		r := journaltest.Rand(seed, "repair", round)
		s := base.clone()
		for again := range 3 {
			for range 1 + r.IntN(4) {
				hurt(r, s)
			}
			store := s.store()
			before, err := journaltest.Read(store, "s1", journal.ScanOptions{})
			must(t, err)
			got, err := journal.Repair(ctx, store, "s1", repairing())
			unchanged(t, store, s)
			if errors.Is(err, schema.UnsupportedSchemaVersion) || errors.Is(err, schema.SessionWriterAmbiguous) {
				break
			}
			if err != nil || (got.Epoch > 0) != (before.FirstError != nil) {
				t.Fatalf("round %d.%d: %+v, %v; before it %v", round, again, got, err, before.FirstError)
			}
			after, err := journaltest.Read(store, "s1", journal.ScanOptions{Strict: true})
			if err != nil {
				t.Fatalf("round %d.%d: strict: %v\nbefore %+v\nlisted %+v", round, again, err, before.Findings, got.Skipped)
			}
			if meaning(after.State) != meaning(before.State) || len(after.Missing(heads(before))) > 0 {
				t.Fatalf("round %d.%d: the log means something else\nbefore %+v\nafter %+v", round, again, before.Findings, after.Findings)
			}
			if got.Epoch > 0 {
				repairs++
			}
			if j, err := journal.Open(ctx, store, "s1", journaltest.Options()); err == nil {
				journaltest.Append(t, j, journaltest.Note("goes on"))
				must(t, j.Close())
			} else {
				t.Fatalf("round %d.%d: no writer goes on: %v", round, again, err)
			}
			s = segmentsOf(t, store)
		}
	}
	if repairs < rounds/2 {
		t.Errorf("only %d repairs in %d rounds", repairs, rounds)
	}
	journaltest.Tried("%d rounds of damage, %d repairs", rounds, repairs)
}

// hurt damages a log somewhere.
func hurt(r *rand.Rand, s segments) {
	epochs := make([]uint64, 0, len(s))
	for epoch, b := range s {
		if len(b) > 0 {
			epochs = append(epochs, epoch)
		}
	}
	slices.Sort(epochs)
	if len(epochs) == 0 {
		return
	}
	epoch := epochs[r.IntN(len(epochs))]
	b := s[epoch]
	at, line := r.IntN(len(b)), 1+r.IntN(len(s.lines(epoch)))
	piece := b[at:min(len(b), at+1+r.IntN(700))]
	switch r.IntN(12) {
	case 0:
		b[at] ^= 1 << r.IntN(8)
	case 1:
		clear(piece)
	case 2:
		for i := range piece {
			piece[i] = byte(r.Uint32())
		}
	case 3:
		s.set(epoch, line)
	case 4:
		s.insert(epoch, line, s.line(epoch, line))
	case 5:
		from := epochs[r.IntN(len(epochs))]
		s.insert(epoch, line, s.line(from, 1+r.IntN(len(s.lines(from)))))
	case 6:
		s[epoch] = b[:at]
	case 7:
		if len(epochs) > 1 {
			delete(s, epoch)
		}
	case 8:
		s.line(epoch, line)[len(s.line(epoch, line))-1] ^= 1 << r.IntN(8)
	case 9:
		s[epoch] = slices.Concat(b[:at], []byte("\n"), b[at:])
	case 10:
		s[epoch] = append(b, piece...)
	case 11:
		copy(s.line(epoch, line), bytes.Repeat([]byte(" "), len(s.line(epoch, line))-1))
	}
}

// What a repair has left out is no reason not to go on after a failed sync.
func TestAWriterRollsInARepairedSession(t *testing.T) {
	files := lay(t, damaged(t))
	_, err := journal.Repair(ctx, files, "s1", repairing())
	must(t, err)
	store, faults := journaltest.Faulty(files)
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	faults.FailSync(1, journaltest.ErrDisk)
	rolled := journaltest.Append(t, j, journaltest.Note("rolled"))[0]
	if j.Epoch() != 6 {
		t.Errorf("the writer is in epoch %d", j.Epoch())
	}
	if r, err := j.Event(ctx, rolled.Seq); err != nil || r.Sum != rolled.Sum {
		t.Errorf("event %d is read back as %s, %v", rolled.Seq, r.Sum, err)
	}
	if _, err := j.Event(ctx, 3); !errors.Is(err, schema.NotFound) {
		t.Errorf("event 3, which was left out: %v", err)
	}
	must(t, j.Close())
	l, err := journaltest.Read(files, "s1", journal.ScanOptions{Strict: true})
	if err != nil || len(l.Missing([]schema.Head{rolled.Head()})) > 0 || len(l.Repairs) != 1 {
		t.Errorf("strict: %v, repairs %+v", err, l.Repairs)
	}
}
