package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) tailCommand() *cobra.Command {
	var from uint64
	c := &cobra.Command{
		Use: "tail SESSION", Short: "show the events of a session as they come, until it ends",
		Long: "tail follows the log of a session, over take-overs, until session_ended or SIGINT (exit 130). It begins with the last\n" +
			"10 events, or with --from SEQ, which is how to go on where another tail stopped. Damage is named where it stands.\n" +
			"An event that the writer may yet lose, because nothing shows that it is on the disk, is marked tentative in the table;\n" +
			"should it not come to count, the table says so. -o jsonl gives the recorded lines, each once it is known to be durable:\n" +
			"from the lines behind it, from the end of its writer, or from the serve of this store or of --nats, which is heard too.\n" +
			"The table also has what that tells and no log has, as the progress of tools, marked as live and not recorded.\n" + latestHelp,
		Example: "  steno session tail latest\n  steno session tail demo --from 40 -o jsonl",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("from") && from == 0 {
				return usage("--from is the number of an event; they begin with 1")
			}
			return a.onSession(func(ctx context.Context, store *journal.Files, args []string) error {
				t := &tail{a: a, store: store, id: args[0], list: listing{a: a}, named: map[schema.Finding]bool{}, news: make(chan struct{}, 1), live: make(chan liveEvent, maxHeard)}
				if from > 0 {
					t.settled, t.begun = from-1, true
				}
				return t.follow(ctx)
			})(c, args)
		},
	}
	c.Flags().Uint64Var(&from, "from", 0, "begin with this event")
	return c
}

// A tail is one reader of a log that grows. What is appended to a segment it
// reads alone; a new epoch, and whatever does not simply continue what it has
// read, by a scan of the whole.
type tail struct {
	a     *app
	store *journal.Files
	id    string
	list  listing

	begun   bool       // events are given as they come; before, the last of them are kept
	kept    []tailed   // these
	settled uint64     // every event up to this one is given, or passed over
	given   schema.Sum // and its sum, where it was given
	held    []tailed   // those behind it, in their order
	dur     uint64     // what is known to be durable

	last   uint64          // the last event read
	sum    schema.Sum      //
	epoch  uint64          // the segment it stands in
	offset int64           // behind its line
	seen   []lease.Segment // the list of segments when they were read

	named map[schema.Finding]bool // by their places
	bad   bool                    // one has severity error
	ended bool                    // by session_ended

	conn *nats.Conn
	told atomic.Pointer[schema.Head] // of the last event that the server says is durable
	news chan struct{}

	live  chan liveEvent // what the server has told that is in no log
	heard uint64         // the number of the last one of a tool that was shown
}

// A tailed is an event that was read.
type tailed struct {
	line  []byte
	event schema.Event // of the line
	shown bool         // as tentative
}

const (
	tailFirst = 10 // events to begin with
	tailPause = 100 * time.Millisecond
)

func (t *tail) follow(ctx context.Context) (err error) {
	defer func() {
		if t.conn != nil {
			t.conn.Close()
		}
		if end := t.list.end(); t.a.format == "json" && err == nil {
			err = end
		}
	}()
	for {
		began := time.Now()
		err := t.look(ctx)
		switch {
		case errors.Is(context.Cause(ctx), errInterrupted):
			return nil // that is how to end it
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case t.ended && len(t.held) == 0 && t.bad:
			return exitCode(schema.ExitCorrupt)
		case t.ended && len(t.held) == 0:
			return nil
		}
		if err := t.wait(ctx, max(tailPause, 4*time.Since(began))); err != nil {
			return err
		}
	}
}

// wait returns when there may be more to read, and shows what is live meanwhile.
func (t *tail) wait(ctx context.Context, pause time.Duration) error {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case e := <-t.live:
			if err := t.tellLive(e); err != nil {
				return err
			}
		case <-t.news:
			return nil
		case <-over.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// look reads what is new.
func (t *tail) look(ctx context.Context) error {
	list, err := t.store.Segments(ctx, t.id)
	if err != nil {
		return err
	}
	if t.seen == nil || !slices.Equal(list, t.seen) {
		ok := false
		if n := len(list); t.seen != nil && n == len(t.seen) && list[n-1].Epoch == t.epoch && list[n-1].Size > t.offset {
			if ok, err = t.more(ctx, list[n-1].Size); err != nil {
				return err
			}
		}
		if !ok {
			if err := t.whole(ctx); err != nil {
				return err
			}
		}
		t.seen = list
	}
	if len(t.held) == 0 {
		return nil
	}
	// A writer that is gone leaves nothing tentative behind.
	st, err := t.store.Lease(ctx, t.id)
	if err != nil {
		return err
	}
	if n := len(list); n > 0 && !st.Held && st.Epoch == list[n-1].Epoch {
		t.dur = max(t.dur, t.last)
	}
	if err := t.give(); err != nil || !t.a.forPeople() {
		return err
	}
	for i := range t.held {
		if e := &t.held[i]; !e.shown {
			if err := t.write(*e, true); err != nil {
				return err
			}
			e.shown = true
		}
	}
	return nil
}

// more reads the lines behind the last one in its segment. ok is false where
// they do not simply continue it.
func (t *tail) more(ctx context.Context, size int64) (ok bool, err error) {
	f, err := t.store.Read(ctx, t.id, t.epoch, t.offset)
	if err != nil {
		return false, nil // the scan says what is wrong
	}
	defer f.Close()
	lines := bufio.NewReaderSize(io.LimitReader(f, size-t.offset), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF { // the writer is at work, on a line perhaps
			return len(line) <= schema.MaxLine, nil
		}
		e := tailed{line: bytes.TrimSuffix(line, []byte("\n"))}
		if err != nil || e.event.Decode(e.line) != nil || e.event.Session != t.id || e.event.Epoch != t.epoch || e.event.Seq != t.last+1 || e.event.Prev != t.sum {
			return false, nil
		}
		t.offset += int64(len(line))
		t.take(e)
		if err := t.give(); err != nil {
			return false, err
		}
	}
}

// whole reads the log from its beginning, and passes over what is settled.
func (t *tail) whole(ctx context.Context) error {
	t.hear(ctx)
	before, first := t.held, t.seen == nil
	t.held, t.dur, t.last = nil, 0, 0
	for it, err := range journal.NewScan(t.store, t.id, journal.ScanOptions{State: replay.NewChecker()}).Items(ctx) {
		if err != nil {
			return err
		}
		if it.Finding != nil {
			// Who goes on where another stopped has heard of what stands before.
			if err := t.name(*it.Finding, !first || t.last >= t.settled); err != nil {
				return err
			}
			continue
		}
		if it.Event.Seq == t.settled && t.given != (schema.Sum{}) && it.Event.Sum != t.given {
			return schema.Errorf(schema.HeadMismatch, "event %d is another one now than was shown", t.settled).With("session", t.id).With("seq", t.settled)
		}
		t.offset = it.Offset + int64(len(it.Line)) + 1
		if it.Event.Seq <= t.settled {
			t.take(tailed{event: *it.Event})
			t.epoch = it.Segment
			continue
		}
		e := tailed{line: bytes.Clone(it.Line)}
		if err := e.event.Decode(e.line); err != nil {
			return err
		}
		if len(before) > 0 {
			if e.event.Sum != before[0].event.Sum {
				if err := t.lost(before); err != nil {
					return err
				}
				before = nil
			} else {
				e.shown, before = before[0].shown, before[1:]
			}
		}
		if !it.Tentative {
			t.dur = max(t.dur, e.event.Seq)
		}
		t.take(e)
		t.epoch = it.Segment // of a line that was carried over, another than the event's
		if err := t.give(); err != nil {
			return err
		}
	}
	if err := t.lost(before); err != nil {
		return err
	}
	for _, e := range t.kept {
		if err := t.write(e, false); err != nil {
			return err
		}
	}
	t.kept, t.begun = nil, true
	return t.give()
}

// take goes on by an event.
func (t *tail) take(e tailed) {
	t.last, t.sum, t.epoch = e.event.Seq, e.event.Sum, e.event.Epoch
	t.dur = max(t.dur, e.event.Dur)
	t.ended = t.ended || e.event.Type == schema.TypeSessionEnded
	if e.event.Seq > t.settled {
		t.held = append(t.held, e)
	}
}

// give writes what is known to be durable.
func (t *tail) give() error {
	told := t.told.Load()
	for len(t.held) > 0 {
		e := t.held[0]
		if e.event.Seq > t.dur && (told == nil || told.Epoch != e.event.Epoch || told.Seq < e.event.Seq) {
			return nil
		}
		t.settled, t.given, t.held = e.event.Seq, e.event.Sum, t.held[1:]
		if !t.begun {
			t.kept = append(t.kept, e)
			t.kept = t.kept[max(0, len(t.kept)-tailFirst):]
		} else if !e.shown {
			if err := t.write(e, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// write gives one event.
func (t *tail) write(e tailed, tentative bool) error {
	switch t.a.format {
	case "jsonl":
		_, err := t.a.out.Write(append(e.line, '\n'))
		return err
	case "json":
		return t.list.add(jsontext.Value(e.line), nil)
	}
	text := about(&e.event)
	if tentative {
		text += "  (tentative)"
	}
	return t.a.eventRow(&e.event, text)
}

// lost says that events that were shown as tentative do not count.
func (t *tail) lost(gone []tailed) error {
	if len(gone) == 0 || !gone[0].shown {
		return nil
	}
	_, err := fmt.Fprintf(t.a.out, "%6s  %-23s  what was shown as tentative from event %d on does not count\n", "", "", gone[0].event.Seq)
	return err
}

// name names a finding, once.
func (t *tail) name(f schema.Finding, tell bool) error {
	place := schema.Finding{Kind: f.Kind, Reason: f.Reason, Segment: f.Segment, Line: f.Line, Offset: f.Offset}
	t.bad = t.bad || f.Severity == schema.SeverityError
	if t.named[place] || len(t.named) > maxKept {
		return nil
	}
	t.named[place] = true
	switch {
	case !tell:
	case len(t.named) > maxKept:
		fmt.Fprintf(t.a.err, "there is more damage; it is named by: steno verify %s\n", t.id)
	case t.a.forPeople():
		_, err := fmt.Fprintf(t.a.out, "%6s  %-23s  %s\n", "", "", findingText(f))
		return err
	default:
		t.a.report(f.Err(t.id))
	}
	return nil
}

// hear listens to the server, which tells of every event once it is durable. It
// is a hint: the log is read all the same, and where nobody serves alone.
func (t *tail) hear(ctx context.Context) {
	if t.conn != nil && !t.conn.IsClosed() {
		return
	}
	var err error
	if t.a.nats != "" {
		t.conn, err = dial(t.a.nats)
	} else {
		t.conn, err = t.a.throughServe(ctx)
	}
	if err != nil || t.conn == nil {
		t.conn = nil
		return
	}
	_, err = t.conn.Subscribe("steno.v1.event."+t.id+".>", func(m *nats.Msg) {
		var e schema.Event
		if e.Decode(m.Data) != nil {
			t.overhear(m.Data)
			return
		}
		head := e.Head()
		t.told.Store(&head)
		select {
		case t.news <- struct{}{}:
		default:
		}
	})
	if err == nil {
		err = t.conn.FlushTimeout(connectTimeout) // what is published from here on is heard
	}
	if err != nil {
		t.conn.Close()
		return
	}
	// What was durable before somebody listened, the holder says; where it does not
	// beat, somebody else may answer, from what the files say.
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client, err := executor.NewClient(t.conn, "")
	if st, look := t.store.Lease(ctx, t.id); err != nil || look != nil || st.State != lease.Active {
		return
	}
	if a, err := client.Get(wait, t.id); err == nil {
		if head, err := schema.ParseHead(a.Head); err == nil {
			t.told.CompareAndSwap(nil, &head) // what was heard meanwhile is newer
		}
	}
}
