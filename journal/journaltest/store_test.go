package journaltest_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

const brokenEnv = "STENO_TEST_BROKEN"

func TestMemory(t *testing.T) {
	breakIt := func(s journal.Store) journal.Store { return s }
	if b := os.Getenv(brokenEnv); b != "" {
		breakIt = broken[b]
	}
	journaltest.TestStore(t, func(*testing.T) journal.Store { return breakIt(journaltest.NewMemory()) })
}

// Each of these breaks one promise; the suite must find it in the named test.
var broken = map[string]func(journal.Store) journal.Store{
	"an_unknown_session_is_not_found": func(s journal.Store) journal.Store { return emptyForUnknown{s} },
	"a_claimed_slot_cannot_be_claimed_again_and_stores_nothing": func(s journal.Store) journal.Store {
		return claimsTwice{s}
	},
	"of_many_writers_that_claim_the_same_slot_exactly_one_gets_it": func(s journal.Store) journal.Store {
		return claimsTwice{s}
	},
	"what_was_appended_is_read_back_byte_for_byte,_also_from_an_offset": func(s journal.Store) journal.Store {
		return fromTheStart{s}
	},
	"a_writer_with_a_successor_acknowledges_nothing":                        func(s journal.Store) journal.Store { return noFence{s} },
	"a_writer_that_was_forced_out_is_lost_and_what_it_wrote_does_not_count": func(s journal.Store) journal.Store { return noFence{s} },
	"a_claimant_settles_what_stands_below_its_slot":                         func(s journal.Store) journal.Store { return settlesLess{s} },
	"whoever_takes_over_from_the_dead_has_all_they_acknowledged":            func(s journal.Store) journal.Store { return settlesLess{s} },
	"sessions_are_listed_in_order":                                          func(s journal.Store) journal.Store { return unordered{s} },
	"sessions_do_not_see_each_other":                                        func(s journal.Store) journal.Store { return caseBlind{s} },
	"a_claim_is_ambiguous_until_its_seal,_then_active;_a_dead_writer_is_stale,_a_released_session_available": func(s journal.Store) journal.Store {
		return neverHeld{s}
	},
	"a_session_is_opened_by_whoever_comes_first_and_refused_to_the_next": func(s journal.Store) journal.Store {
		return neverHeld{s}
	},
	"a_reader_beside_a_writer_sees_a_prefix": func(s journal.Store) journal.Store { return forgets{s} },
}

// A suite that finds nothing proves nothing, so it is run on stores that break
// their promises, in a process of its own for each, since a test that fails
// cannot be taken back.
func TestSuiteFindsBrokenStores(t *testing.T) {
	if os.Getenv(brokenEnv) != "" {
		return
	}
	for name := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(os.Args[0], "-test.run=^TestMemory$/^"+strings.ReplaceAll(name, ",", "[,]")+"$", "-test.v")
			c.Env = append(os.Environ(), brokenEnv+"="+name)
			out, err := c.CombinedOutput()
			if failed := "--- FAIL: TestMemory/" + name; err == nil || !strings.Contains(string(out), failed) {
				t.Errorf("the broken store passes: %v\n%s", err, out)
			}
		})
	}
}

type emptyForUnknown struct{ journal.Store }

func (s emptyForUnknown) Segments(ctx context.Context, session string) ([]lease.Segment, error) {
	list, err := s.Store.Segments(ctx, session)
	if errors.Is(err, schema.NotFound) {
		return nil, nil
	}
	return list, err
}

type claimsTwice struct{ journal.Store }

func (s claimsTwice) Claim(ctx context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	w, err := s.Store.Claim(ctx, session, epoch, header)
	if errors.Is(err, schema.AlreadyExists) {
		return noWriter{}, nil
	}
	return w, err
}

type noWriter struct{}

func (noWriter) Settle(context.Context, uint64) (int64, error) { return 0, nil }
func (noWriter) Put(context.Context, *schema.Blob) error       { return nil }
func (noWriter) Carry(context.Context, []byte) error           { return nil }
func (noWriter) Append(context.Context, []byte, bool) (journal.Outcome, error) {
	return journal.Stored, nil
}
func (noWriter) Next(context.Context, []byte, int64) (journal.Writer, error) { return noWriter{}, nil }
func (noWriter) Release() error                                              { return nil }

type fromTheStart struct{ journal.Store }

func (s fromTheStart) Read(ctx context.Context, session string, epoch uint64, _ int64) (io.ReadCloser, error) {
	return s.Store.Read(ctx, session, epoch, 0)
}

type noFence struct{ journal.Store }

func (s noFence) Claim(ctx context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	w, err := s.Store.Claim(ctx, session, epoch, header)
	if err != nil {
		return nil, err
	}
	return acknowledges{w}, nil
}

type acknowledges struct{ journal.Writer }

func (w acknowledges) Append(ctx context.Context, lines []byte, last bool) (journal.Outcome, error) {
	_, _ = w.Writer.Append(ctx, lines, last)
	return journal.Stored, nil
}

type settlesLess struct{ journal.Store }

func (s settlesLess) Claim(ctx context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	w, err := s.Store.Claim(ctx, session, epoch, header)
	if err != nil {
		return nil, err
	}
	return lessWriter{w}, nil
}

type lessWriter struct{ journal.Writer }

func (w lessWriter) Settle(ctx context.Context, epoch uint64) (int64, error) {
	size, err := w.Writer.Settle(ctx, epoch)
	return max(0, size-1), err
}

type unordered struct{ journal.Store }

func (s unordered) Sessions(ctx context.Context) iter.Seq2[string, error] {
	var ids []string
	for id, err := range s.Store.Sessions(ctx) {
		if err == nil {
			ids = append(ids, id)
		}
	}
	slices.Reverse(ids)
	return func(yield func(string, error) bool) {
		for _, id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}
}

type caseBlind struct{ journal.Store }

func (s caseBlind) Read(ctx context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	return s.Store.Read(ctx, strings.ToLower(session), epoch, offset)
}

type neverHeld struct{ journal.Store }

func (s neverHeld) Lease(ctx context.Context, session string) (lease.Status, error) {
	st, err := s.Store.Lease(ctx, session)
	if st.State == lease.Active {
		st.Held = false
		return st.Evidence.Status(), err
	}
	return st, err
}

// forgets answers before it has stored.
type forgets struct{ journal.Store }

func (s forgets) Claim(ctx context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	w, err := s.Store.Claim(ctx, session, epoch, header)
	if err != nil {
		return nil, err
	}
	return &lateWriter{Writer: w}, nil
}

type lateWriter struct {
	journal.Writer
	late []byte
}

func (w *lateWriter) Append(ctx context.Context, lines []byte, last bool) (journal.Outcome, error) {
	late := w.late
	w.late = slices.Clone(lines)
	if late == nil {
		return journal.Stored, nil
	}
	return w.Writer.Append(ctx, late, last)
}
