package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// Writers that come and go at once: each open is granted or refused by a kind
// that says what to do, and all that was acknowledged is in one history.
func TestManyWritersInTurnShareOneHistory(t *testing.T) {
	for _, force := range []bool{false, true} {
		store := journaltest.Files(t)
		const writers, turns = 6, 6
		var mu sync.Mutex
		var told []schema.Head
		lost := 0
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				opt := journaltest.Options()
				opt.Force = force && w == 0
				for range turns {
					j, err := journal.Open(ctx, store, "s1", opt)
					if err == nil {
						mu.Lock()
						told = append(told, j.Head())
						mu.Unlock()
						if _, err = j.Append(ctx, journaltest.Note("x")); err == nil {
							mu.Lock()
							told = append(told, j.Head())
							mu.Unlock()
						}
						if w%2 == 0 && err == nil {
							err = j.Release(ctx, "turn")
						}
						_ = j.Close()
					}
					switch {
					case err == nil, errors.Is(err, schema.SessionWriterActive):
					case force && errors.Is(err, schema.SessionWriterLost):
						mu.Lock()
						lost++
						mu.Unlock()
					default:
						t.Errorf("a writer got %v", err)
					}
				}
			})
		}
		wg.Wait()
		l := journaltest.Verify(t, store, "s1")
		if gone := l.Missing(told); len(gone) > 0 {
			t.Errorf("acknowledged and not there: %v", gone)
		}
		t.Logf("forced %t: %d acknowledged, %d lost, %d epochs, findings %d", force, len(told), lost, l.Epochs, len(l.Findings))
	}
}

// beaten is a store in which another is always faster.
type beaten struct{ journal.Store }

func (beaten) Claim(_ context.Context, session string, epoch uint64, _ []byte) (journal.Writer, error) {
	return nil, schema.Errorf(schema.AlreadyExists, "another was faster").With("session", session).With("epoch", epoch)
}

func TestAWriterThatIsAlwaysBeatenIsToldThatTheSessionIsActive(t *testing.T) {
	_, err := journal.Open(ctx, beaten{journaltest.NewMemory()}, "s1", journaltest.Options())
	if schema.KindOf(err) != schema.SessionWriterActive || schema.AsError(err).Details["epoch"] != uint64(1) {
		t.Errorf("got %v", err)
	}
}
