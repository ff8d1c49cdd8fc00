package journal_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

func identified(texts ...string) (entries []journal.Entry) {
	for _, text := range texts {
		e := journaltest.Message(text)
		e.ID = ulid.Make()
		entries = append(entries, e)
	}
	return entries
}

// A writer that died in a write has left the beginning of its batch. Whoever
// sends the batch again gets all of it recorded, each event once.
func TestABatchOfWhichABeginningIsRecordedIsCompleted(t *testing.T) {
	t.Parallel()
	dir := journaltest.TempDir(t)
	store := journaltest.FilesIn(t, dir)
	batch := identified("one", "two", "three")
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if err != nil {
		t.Fatal(err)
	}
	wrote := journaltest.Append(t, j, batch...)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sessions", "s1", "000001.jsonl")
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	torn := fi.Size() - int64(len(wrote[2].Line)) - 1 - int64(len(wrote[1].Line))/2
	if err := os.Truncate(path, torn); err != nil {
		t.Fatal(err)
	}

	j = journaltest.Open(t, store, "s1")
	got := journaltest.Append(t, j, batch...)
	if len(got) != 3 || got[0].Head() != wrote[0].Head() || got[1].Seq != got[0].Seq+2 || got[2].Seq != got[1].Seq+1 {
		t.Fatalf("recorded are %v", got)
	}
	for i := range got {
		if got[i].ID != batch[i].ID || string(got[i].Data) != string(batch[i].Data) {
			t.Errorf("event %d is %s", i, got[i].Line)
		}
	}
	again := journaltest.Append(t, j, batch...)
	if n := len(journaltest.Verify(t, store, "s1").Events); n != 6 || again[2].Head() != got[2].Head() { // two seals and the start
		t.Errorf("after the third time there are %d events", n)
	}
}

// What is no beginning, or has something behind it already, is refused, and the
// refusal says what is there.
func TestAnyOtherPartOfABatchIsRefusedByName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, batch []int }{
		"an end":                     {[]int{1, 2}, []int{0, 1, 2}},
		"a middle":                   {[]int{1}, []int{0, 1, 2}},
		"in another order":           {[]int{1, 0}, []int{0, 1, 2}},
		"with something else behind": {[]int{0, 3}, []int{0, 1}},
		"with something else within": {[]int{0, 3, 1}, []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := identified("zero", "one", "two", "three")
			pick := func(at []int) (entries []journal.Entry) {
				for _, i := range at {
					entries = append(entries, all[i])
				}
				return entries
			}
			j := journaltest.Open(t, journaltest.Files(t), "s1")
			journaltest.Append(t, j, pick(c.before)...)
			before := j.Head()
			var want []string
			for _, i := range c.batch {
				if slices.Contains(c.before, i) {
					want = append(want, all[i].ID.String())
				}
			}
			_, err := j.Append(ctx, pick(c.batch)...)
			if !errors.Is(err, schema.AlreadyExists) || j.Head() != before || j.Err() != nil {
				t.Fatalf("got %v", err)
			}
			if ids, _ := schema.AsError(err).Details["recorded"].([]string); !slices.Equal(ids, want) {
				t.Errorf("it names %v, want %v", ids, want)
			}
		})
	}
}

// slowReads waits with every read, once it is told to.
type slowReads struct {
	journal.Store
	slow  chan struct{} // closed: from now on
	began chan struct{}
	leave chan struct{} // closed: done
}

func (s *slowReads) Read(ctx context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	select {
	case <-s.slow:
		s.began <- struct{}{}
		<-s.leave
	default:
	}
	return s.Store.Read(ctx, session, epoch, offset)
}

// Whoever looks at a journal does not wait for a disk that is slow to give an
// event back.
func TestALookAtAJournalWaitsForNoRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"an event is read", "an append finds its record"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &slowReads{journaltest.Files(t), make(chan struct{}), make(chan struct{}), make(chan struct{})}
			j := journaltest.Open(t, s, "s1")
			batch := identified("one")
			head := journaltest.Append(t, j, batch...)[0].Head()
			close(s.slow)
			read := make(chan error, 1)
			go func() {
				var err error
				if name == "an event is read" {
					_, err = j.Event(ctx, head.Seq)
				} else {
					_, err = j.Append(ctx, batch...)
				}
				read <- err
			}()
			<-s.began
			looked := make(chan schema.Head)
			go func() {
				j.View(func(journal.State) {})
				_ = j.Err()
				looked <- j.Head()
			}()
			select {
			case got := <-looked:
				if got != head {
					t.Errorf("the head is %v, want %v", got, head)
				}
			case <-time.After(time.Minute):
				t.Error("it waits")
			}
			go func() {
				for range s.began {
				}
			}()
			close(s.leave)
			if err := <-read; err != nil {
				t.Error(err)
			}
		})
	}
}
