package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"steno/journal"
	"steno/schema"
)

// latest stands for a session in the place of its id.
const latest = "latest"

const latestHelp = "SESSION may be latest: the one whose newest event has the latest time, unless a session has that name."

// onSession runs a command that reads the log of the session that its first word
// names through.
func (a *app) onSession(f func(ctx context.Context, store *journal.Files, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		store, err := a.reader()
		if err != nil {
			return err
		}
		defer store.Close()
		if args[0], err = a.session(c.Context(), store, args[0]); err != nil {
			return err
		}
		return f(c.Context(), store, args)
	}
}

// session is the id of the session that the command line names.
func (a *app) session(ctx context.Context, store journal.Store, name string) (string, error) {
	if name != latest {
		return name, schema.CheckSession(name)
	}
	if _, err := store.Segments(ctx, latest); !errors.Is(err, schema.NotFound) {
		return latest, nil // what is wrong with it, whoever reads it says
	}
	var id string
	var newest time.Time
	for s, err := range store.Sessions(ctx) {
		if err != nil {
			return "", err
		}
		if t, ok := lastTime(ctx, store, s); ok && !t.Before(newest) {
			id, newest = s, t
		}
	}
	if id == "" {
		return "", schema.Errorf(schema.NotFound, "no session has an event yet").With("next", "record one; run: steno demo")
	}
	fmt.Fprintf(a.err, "%s is %s\n", latest, id)
	return id, nil
}

// named is session for a command that does not read the store itself. On another
// machine's NATS server latest is a name like others.
func (a *app) named(ctx context.Context, name string) (string, error) {
	if name != latest || a.nats != "" {
		return name, nil
	}
	store, err := a.store(false)
	if err != nil {
		return "", err
	}
	defer store.Close()
	return a.session(ctx, store, name)
}

// lastTime is the time of a session's newest sound line, false without one. It
// reads the ends of segments only, so it does not know whether the line counts.
func lastTime(ctx context.Context, store journal.Store, id string) (time.Time, bool) {
	list, err := store.Segments(ctx, id)
	if err != nil {
		return time.Time{}, false // it does not hide the others
	}
	for i := len(list) - 1; i >= 0; i-- {
		// Most lines are short. Behind the one that is looked for a torn one may stand.
		for _, n := range []int64{8 << 10, 2*schema.MaxLine + 2} {
			if e, ok := lastEvent(ctx, store, id, list[i].Epoch, max(0, list[i].Size-n), list[i].Size); ok {
				return e.Time, !e.Removes()
			} else if n >= list[i].Size {
				break
			}
		}
	}
	return time.Time{}, false
}

func lastEvent(ctx context.Context, store journal.Store, id string, epoch uint64, from, to int64) (e schema.Event, ok bool) {
	f, err := store.Read(ctx, id, epoch, from)
	if err != nil {
		return e, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, to-from))
	if err != nil {
		return e, false
	}
	for end := bytes.LastIndexByte(b, '\n'); end >= 0; {
		begin := bytes.LastIndexByte(b[:end], '\n')
		if e.Decode(b[begin+1:end]) == nil {
			return e, true
		}
		end = begin
	}
	return e, false
}

// asOfFlag lets a command look at a session as it was.
func asOfFlag(c *cobra.Command, asOf *uint64) {
	c.Flags().Uint64Var(asOf, "as-of", 0, "read up to this event, as if the log ended there")
}

// checkAsOf refuses the number of no event.
func checkAsOf(c *cobra.Command, asOf uint64) error {
	if c.Flags().Changed("as-of") && asOf == 0 {
		return usage("--as-of is the number of an event; they begin with 1")
	}
	return nil
}

// upTo gives the items of a reading with ScanOptions.AsOf. An end before that
// event is NotFound; where it lies in a hole the reading ends there.
func upTo(ctx context.Context, scan *journal.Scan, id string, asOf uint64) iter.Seq2[journal.Item, error] {
	if asOf == 0 {
		return scan.Items(ctx)
	}
	return func(yield func(journal.Item, error) bool) {
		for it, err := range scan.Items(ctx) {
			if !yield(it, err) || err != nil || it.Event != nil && it.Event.Seq == asOf {
				return
			}
		}
		if last := scan.Head.Seq; !scan.Beyond {
			yield(journal.Item{}, schema.Errorf(schema.NotFound, "session %s has no event %d: it ends with %d", id, asOf, last).
				With("session", id).With("seq", asOf).With("next", "give --as-of a number up to the last event; run: steno head "+id))
		}
	}
}

// tellTrusted says that sums are not compared.
func (a *app) tellTrusted(id string, trusted bool) {
	if trusted {
		fmt.Fprintf(a.err, "session %s is shown as it stands; %s\n", id, unchecked)
	}
}

// width is how many columns there are to draw in: those of the terminal, 100
// without one.
func (a *app) width() int {
	const usual = 100
	if p, ok := a.out.(printer); ok {
		if f, ok := p.to.(*os.File); ok {
			if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
				return max(60, int(size.Col))
			}
		}
	}
	return usual
}

// forPeople reports whether what is written is for people and no program.
func (a *app) forPeople() bool { return a.format == "" || a.format == "table" }
