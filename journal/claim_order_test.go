package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A reordered store is a real one whose claimant does its steps in another
// order, or does what happens meanwhile at the instant that matters.
type reordered struct {
	journal.Store
	before func(epoch uint64)                                                        // the claim
	settle func(epoch uint64, real func(epoch uint64) (int64, error)) (int64, error) // instead of it
}

func (s reordered) Claim(ctx context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	if s.before != nil {
		s.before(epoch)
	}
	w, err := s.Store.Claim(ctx, session, epoch, header)
	if err != nil {
		return nil, err
	}
	return reorderedWriter{w, s}, nil
}

type reorderedWriter struct {
	journal.Writer
	s reordered
}

func (w reorderedWriter) Settle(ctx context.Context, epoch uint64) (int64, error) {
	return w.s.settle(epoch, func(epoch uint64) (int64, error) { return w.Writer.Settle(ctx, epoch) })
}

// race lets a claimant take a session from a writer that lives, and gives what
// is wrong afterwards, on the disk as it is and after a power cut.
func race(t *testing.T, claimant func(c *cutter, first *journal.Journal) reordered) error {
	c := newCutter(t)
	first := c.open()
	c.append(first)
	opt := journaltest.Options()
	opt.Force, opt.Reason = true, "the test says so"
	j, err := journal.Open(ctx, claimant(c, first), "s1", opt)
	if err != nil {
		return err
	}
	defer j.Close()
	c.acknowledged = append(c.acknowledged, j.Head())
	if l, err := journaltest.Read(c.store, "s1", journal.ScanOptions{}); err != nil || l.FirstError != nil {
		return fmt.Errorf("%w, %v", err, l.FirstError)
	} else if gone := l.Missing(c.acknowledged); len(gone) > 0 {
		return fmt.Errorf("acknowledged and not there: %v", gone)
	}
	if c.end(); len(c.wrong) > 0 {
		return errors.New(c.wrong[0])
	}
	return nil
}

// lateWrite is a line of a superseded writer that is written and not synced.
func lateWrite(c *cutter, first *journal.Journal) {
	c.t.Helper()
	c.faults.FailSync(1, journaltest.ErrDisk)
	if _, err := first.Append(ctx, journaltest.Note("late")); !errors.Is(err, schema.SessionWriterLost) {
		c.t.Errorf("the superseded writer ended in %v", err)
	}
}

// What TestModelNoticesABrokenRule does in the model, on real files: each order
// is kept by a claimant and then broken by one.
func TestTheOrderOfAClaimMatters(t *testing.T) {
	for name, claimant := range map[string]func(broken bool) func(*cutter, *journal.Journal) reordered{
		// The writer appends, and answers, before the claim; the claimant has
		// looked before that.
		"read before the claim": func(broken bool) func(*cutter, *journal.Journal) reordered {
			return func(c *cutter, first *journal.Journal) reordered {
				noted := map[uint64]int64{}
				return reordered{c.store, func(uint64) {
					segments, err := c.store.Segments(ctx, "s1")
					must(c.t, err)
					for _, g := range segments {
						noted[g.Epoch] = g.Size
					}
					c.append(first)
				}, func(epoch uint64, real func(uint64) (int64, error)) (int64, error) {
					size, err := real(epoch)
					if broken {
						size = noted[epoch]
					}
					return size, err
				}}
			}
		},
		// The writer writes a line after its segment was settled.
		"read beyond the noted size": func(broken bool) func(*cutter, *journal.Journal) reordered {
			return func(c *cutter, first *journal.Journal) reordered {
				return reordered{c.store, nil, func(epoch uint64, real func(uint64) (int64, error)) (int64, error) {
					size, err := real(epoch)
					lateWrite(c, first)
					if broken {
						size = 1 << 40
					}
					return size, err
				}}
			}
		},
		// Another has claimed before, and seals between the two settlings.
		"oldest first": func(broken bool) func(*cutter, *journal.Journal) reordered {
			return func(c *cutter, first *journal.Journal) reordered {
				claimed, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
				c.faults.At(journaltest.Claimed, 1, func() { close(claimed); <-goOn })
				go func() {
					opt := journaltest.Options()
					opt.Force, opt.Reason = true, "the test says so"
					_, err := journal.Open(ctx, c.store, "s1", opt)
					ended <- err
				}()
				<-claimed
				sizes, order := map[uint64]int64{}, []uint64{2, 1}
				if broken {
					order = []uint64{1, 2}
				}
				return reordered{c.store, nil, func(epoch uint64, real func(uint64) (int64, error)) (size int64, err error) {
					if len(sizes) == 0 {
						sizes[order[0]], err = real(order[0])
						must(c.t, err)
						lateWrite(c, first)
						close(goOn)
						if err := <-ended; !errors.Is(err, schema.SessionWriterLost) {
							c.t.Errorf("the other claimant ended in %v", err)
						}
						sizes[order[1]], err = real(order[1])
						must(c.t, err)
					}
					return sizes[epoch], nil
				}}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := race(t, claimant(false)); err != nil {
				t.Errorf("in the right order: %v", err)
			}
			err := race(t, claimant(true))
			if err == nil {
				t.Error("nothing is wrong")
			}
			journaltest.Tried("claim: %s: %v", name, err)
		})
	}
}
