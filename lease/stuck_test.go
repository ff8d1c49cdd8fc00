package lease_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"steno/lease"
)

// An append that stands still silences the process, in whichever of its parts;
// one that goes on does not, however many there are, and neither does an idle one.
func TestTheBeatStopsWithAnAppendThatStandsStill(t *testing.T) {
	none := func(*os.File, io.Writer) error { return nil }
	for name, do := range map[string]func(s *lease.Slot) error{
		"append": func(s *lease.Slot) error { return s.Append([]byte("x\n"), false) },
		"roll": func(s *lease.Slot) error {
			next, dir, err := s.Next([]byte("claim\n"), 0)
			return errors.Join(err, next.Close(), dir.Close())
		},
		"settle":               func(s *lease.Slot) error { _, err := s.Settle(1); return err },
		"a blob":               func(s *lease.Slot) error { return s.WriteBlob("b", false, func(io.Writer) error { return nil }) },
		"a blob that is there": func(s *lease.Slot) error { return s.SettleBlob("there", none) },
	} {
		t.Run(name, func(t *testing.T) {
			var stuck, free chan struct{}
			var waits bool
			b := newBeating(t, &lease.Faults{Sync: func(f *os.File) error {
				if waits {
					waits = false
					stuck <- struct{}{}
					<-free
				}
				return nil
			}})
			synctest.Test(t, func(t *testing.T) {
				stuck, free = make(chan struct{}), make(chan struct{})
				slot, count := b.begin(t)
				must(t, slot.WriteBlob("there", false, func(io.Writer) error { return nil }))
				// Idle, and appends that take less than the window.
				time.Sleep(lease.Window)
				for range 10 {
					must(t, slot.Append([]byte("x\n"), false))
					time.Sleep(lease.Interval)
				}
				if n := count(); n < 15 || n > 16 {
					t.Errorf("an idle and a busy process have beaten %d times", n)
				}
				waits = true
				done := make(chan error)
				go func() { done <- do(slot) }()
				<-stuck
				time.Sleep(lease.Window / 2)
				early := count()
				time.Sleep(lease.Window)
				before := count()
				time.Sleep(5 * lease.Window)
				if after := count(); after != before || early == before {
					t.Errorf("it stands still, and the beat goes from %d to %d, then to %d", early, before, after)
				}
				close(free)
				must(t, <-done)
				time.Sleep(2 * lease.Interval)
				if after := count(); after == before {
					t.Error("it goes on, and the beat does not")
				}
			})
		})
	}
}

// A blob may take longer than the window on a slow disk.
func TestAProcessBeatsWhileABlobMoves(t *testing.T) {
	slow := false
	var syncs int
	b := newBeating(t, &lease.Faults{
		Write: func(f *os.File, b []byte) (int, error) { return len(b), nil },
		Sync: func(f *os.File) error {
			if syncs++; slow {
				time.Sleep(lease.Window / 2)
			}
			return nil
		},
	})
	synctest.Test(t, func(t *testing.T) {
		slot, count := b.begin(t)
		slow = true
		const parts = 100
		for name, do := range map[string]func() error{
			"that is written": func() error {
				return slot.WriteBlob("b", false, func(to io.Writer) error {
					for range parts {
						if _, err := to.Write(make([]byte, 1<<20)); err != nil {
							return err
						}
						time.Sleep(lease.Interval)
					}
					return nil
				})
			},
			"that is there": func() error {
				must(t, os.WriteFile(filepath.Join(mkdirAll(filepath.Join(b.path, "blobs")), "there"), nil, 0o600))
				must(t, os.Chmod(filepath.Join(b.path, "blobs"), 0o700))
				return slot.SettleBlob("there", func(f *os.File, seen io.Writer) error {
					for range parts {
						fmt.Fprint(seen, "x")
						time.Sleep(lease.Interval)
					}
					return f.Close()
				})
			},
		} {
			before, many := count(), syncs
			must(t, do())
			if n := count() - before; n < parts-1 {
				t.Errorf("a blob %s took %d intervals, and there were %d beats", name, parts, n)
			}
			// Not all at the end, where it would stand still for long.
			if n := syncs - many; name == "that is written" && n < 3+parts/32 {
				t.Errorf("a blob of %d MiB was synced %d times", parts, n)
			}
		}
	})
}

// beating is a slot with a beat, for a test in a bubble.
type beating struct {
	parent *os.Root
	path   string
	faults *lease.Faults
}

func newBeating(t *testing.T, faults *lease.Faults) *beating {
	t.Helper()
	parent, err := os.OpenRoot(t.TempDir())
	must(t, err)
	t.Cleanup(func() { parent.Close() })
	must(t, parent.Mkdir("s1", 0o700))
	return &beating{parent, filepath.Join(parent.Name(), "s1"), faults}
}

func (b *beating) begin(t *testing.T) (slot *lease.Slot, count func() uint64) {
	t.Helper()
	d, err := lease.Open(b.parent, "s1", b.faults)
	must(t, err)
	h, _ := stored(t)
	head, self := header(t, 1)
	lane := h.Join(self)
	slot, err = d.Claim(1, head)
	must(t, err)
	t.Cleanup(func() { slot.Close(); d.Close(); lane.Leave() })
	slot.BeatIn(lane, false)
	return slot, func() uint64 {
		synctest.Wait()
		return h.Beat(self.ID).Count
	}
}
