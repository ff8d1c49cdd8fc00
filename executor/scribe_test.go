package executor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// An order is what a scribe is told to do, a line of JSON each.
type order struct {
	Do      string // open, append, close, turns, park, unpark, limit
	Dir     string // of the store
	Session string
	Force   string // the reason
	ID      string
	Type    string
	Data    json.RawMessage
	Times   int
	Free    *int   // of limit: bytes free on the disk; nil: as many as ever
	Marker  string // of turns: a file that only who has the session makes
}

// An outcome is the answer to an order.
type outcome struct {
	Kind    schema.Kind // "" for success
	Message string
	Epoch   uint64 // of the writer
	How     string
	Head    schema.Head
	First   uint64 // the number of the first event of this order
	Line    string // of the last event that it was answered with
}

// scribe is a child process that writes a session through package journal as
// it is told. It answers each order but park, unpark and limit by "answer
// OUTCOME", and says "waiting" when an append waits for room on the disk.
func scribe([]byte) error {
	orders := make(chan order)
	unpark := make(chan struct{})
	parked := false
	var disk atomic.Pointer[journaltest.Faults]
	go func() {
		in := bufio.NewScanner(os.Stdin)
		in.Buffer(nil, 4<<20)
		for in.Scan() {
			var o order
			if err := json.Unmarshal(in.Bytes(), &o); err != nil {
				panic(err)
			}
			switch o.Do {
			case "park":
				parked = true
			case "unpark":
				close(unpark)
			case "limit":
				if o.Free == nil {
					disk.Load().Empty()
				} else {
					disk.Load().Fill(*o.Free)
				}
			default:
				orders <- o
			}
		}
		os.Exit(0) // the parent is gone
	}()
	var j *journal.Journal
	for o := range orders {
		var out outcome
		err := func() (err error) {
			switch o.Do {
			case "open":
				if j, err = o.open(&disk, parked, unpark); err == nil {
					out.First = j.Head().Seq
				}
			case "append":
				out.First, out.Line, err = o.append(j)
			case "close":
				if err = j.Release(context.Background(), "done"); err == nil {
					err = j.Close()
				}
				out.Head = j.Head()
			case "turns":
				err = o.turns()
			}
			return err
		}()
		if err != nil {
			out.Kind, out.Message = schema.KindOf(err), fmt.Sprint(err, schema.AsError(err).Details)
		}
		if j != nil {
			out.Epoch, out.How, out.Head = j.Epoch(), j.How(), j.Head()
		}
		b, err := json.Marshal(out)
		if err != nil {
			return err
		}
		journaltest.Say("answer %s", b)
	}
	return nil
}

func (o order) open(disk *atomic.Pointer[journaltest.Faults], parked bool, unpark chan struct{}) (*journal.Journal, error) {
	files, err := journal.OpenFiles(o.Dir, false)
	if err != nil {
		return nil, err
	}
	store, faults := journaltest.Faulty(files)
	disk.Store(faults)
	if parked {
		faults.At(journaltest.Write, 1, func() { // it has looked; this is its claim
			journaltest.Say("parked")
			<-unpark
		})
	}
	opt := journaltest.Options()
	opt.Force, opt.Reason = o.Force != "", o.Force
	opt.Waiting = func(why error) {
		if why != nil {
			journaltest.Say("waiting")
		}
	}
	return journal.Open(context.Background(), store, o.Session, opt)
}

func (o order) append(j *journal.Journal) (first uint64, line string, err error) {
	e := journal.Entry{Type: o.Type}
	if o.ID != "" {
		if e.ID, err = ulid.ParseStrict(o.ID); err != nil {
			return 0, "", err
		}
	}
	if e.Data, _, err = schema.Compact(nil, o.Data, 1); err != nil {
		return 0, "", err
	}
	for range max(1, o.Times) {
		r, err := j.Append(context.Background(), e)
		if err != nil {
			return first, line, err
		}
		if first == 0 {
			first = r[0].Seq
		}
		line = string(r[0].Line)
	}
	return first, line, nil
}

// turns opens and gives back the session, and looks each time whether somebody
// else has it too.
func (o order) turns() error {
	for done := 0; done < o.Times; {
		j, err := o.open(new(atomic.Pointer[journaltest.Faults]), false, nil)
		if errors.Is(err, schema.SessionWriterActive) {
			continue
		}
		if err != nil {
			return err
		}
		f, err := os.OpenFile(o.Marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return schema.Errorf(schema.Internal, "somebody else is inside").Cause(err)
		}
		if err := errors.Join(f.Close(), os.Remove(o.Marker), j.Release(context.Background(), "done"), j.Close()); err != nil {
			return err
		}
		done++
	}
	return nil
}

// A writer is a scribe and how many answers it has given.
type writer struct {
	*journaltest.Process
	answers int
	last    outcome
	waits   bool // for room, with an append
}

func (w *writer) send(t testing.TB, o order) {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Tell(string(b))
}

func (w *writer) answer(t testing.TB) outcome {
	t.Helper()
	w.answers++
	w.last = outcome{}
	if err := json.NewDecoder(strings.NewReader(w.WaitFor("answer", w.answers))).Decode(&w.last); err != nil {
		t.Fatal(err)
	}
	return w.last
}
