package main

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) searchCommand() *cobra.Command {
	var s search
	var fixed bool
	var since, until string
	c := &cobra.Command{
		Use: "search PATTERN [SESSION…]", Short: "find events in all sessions, or in those that are named",
		Long: "search gives every event of whose data a text or number matches PATTERN, an expression of Go (RE2; (?i) ignores case),\n" +
			"and '' matches every event. Values that are kept beside the log, and archives, are looked through too. A session that is\n" +
			"damaged is named on standard error, makes exit 4, and what can be read of it is searched; verify finds all damage.\n" +
			"--since and --until take a time (2026-11-30 or 2026-11-30T08:30:00Z) or how long ago it is (36h).",
		Example: "  steno search 'git push'\n  steno search '' --kind timeout --since 24h\n  steno search 'rm -r' --tool bash --state interrupted -o jsonl",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s takes a PATTERN", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			pattern := args[0]
			if fixed {
				pattern = regexp.QuoteMeta(pattern)
			}
			var err error
			if s.pattern, err = regexp.Compile(pattern); err != nil {
				return usage("PATTERN is no expression of RE2: %s", err)
			}
			now := time.Now()
			if s.since, err = moment("--since", since, now); err == nil {
				s.until, err = moment("--until", until, now)
			}
			if err != nil {
				return err
			}
			if s.kind != "" && !slices.ContainsFunc(schema.Kinds(), func(k schema.KindInfo) bool { return k.Kind == schema.Kind(s.kind) }) {
				return usage("--kind is an error kind; %q is none", s.kind)
			}
			states := []string{string(replay.Pending), string(replay.Unknown), string(replay.OK), string(replay.Failed), string(replay.Interrupted)}
			if s.state != "" && !slices.Contains(states, s.state) {
				return usage("--state is one of %s", strings.Join(states, ", "))
			}
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			s.a, s.store = a, store
			s.named = len(args) > 1
			s.need(pattern)
			return s.all(c.Context(), args[1:])
		},
	}
	f := c.Flags()
	f.BoolVarP(&fixed, "fixed", "F", false, "PATTERN is a text and no expression")
	f.StringVar(&s.tool, "tool", "", "only events of calls of this tool")
	f.StringVar(&s.kind, "kind", "", "only events with an error of this kind")
	f.StringVar(&s.state, "state", "", "only events of calls in this state now: pending, unknown, ok, failed, interrupted")
	f.StringVar(&since, "since", "", "only events from this time on")
	f.StringVar(&until, "until", "", "only events before this time")
	return c
}

// moment reads a time of a flag; zero for none.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%s is a time, as 2026-11-30 or 2026-11-30T08:30:00Z, or how long ago it is, as 36h; got %q", flag, text)
}

// A search goes through sessions on all cores, and gives what it finds in their
// order.
type search struct {
	a     *app
	store *journal.Files

	pattern *regexp.Regexp
	tool    string
	kind    string
	state   string
	since   time.Time
	until   time.Time

	named    bool     // the command line names the sessions
	literal  []byte   // stands in every text that can match, where it has no escape; nil if there is none
	longest  int      // bytes that a match has at most; 0 where nobody knows
	literals [][]byte // each stands in every line that can match, unless that has an escape or a blob
}

// A hit is an event that was found.
type hit struct {
	Session string    `json:"session"`
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"ts"`
	Type    string    `json:"type"`
	CallID  string    `json:"call_id,omitzero"`
	Tool    string    `json:"tool,omitzero"` // where the call was seen
	At      string    `json:"at"`            // JSON pointer of the text in data, or of the value that lies beside the log
	Text    string    `json:"text"`          // what stands there, around the match
}

// A found is a session on its way through a search.
type found struct {
	id   string
	hits chan hit
	err  error // once hits is closed
}

// waitingHits bounds what is found and not written yet of a session that is not
// its turn.
const waitingHits = 256

func (s *search) all(ctx context.Context, only []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := runtime.GOMAXPROCS(0)
	work := make(chan *found)
	order := make(chan *found, 4*workers) // who is far ahead waits
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			r := sieve{search: s}
			for f := range work {
				f.err = r.session(ctx, f)
				close(f.hits)
			}
		})
	}
	var listed error
	wg.Go(func() {
		defer close(order)
		defer close(work)
		listed = s.sessions(ctx, only, func(id string) bool {
			f := &found{id: id, hits: make(chan hit, waitingHits)}
			for _, to := range []chan *found{order, work} {
				select {
				case to <- f:
				case <-ctx.Done():
					return false
				}
			}
			return true
		})
	})
	l := listing{a: s.a, head: []string{"SESSION", "SEQ", "TIME (UTC)", "TYPE", "CALL", "TEXT"}}
	var worst, failed error
	for f := range order {
		for h := range f.hits {
			if failed != nil {
				continue // let the worker go
			}
			if failed = l.add(h, func() []string {
				return []string{h.Session, fmt.Sprint(h.Seq), h.Time.UTC().Format("2006-01-02 15:04:05.000"), h.Type, h.CallID, h.Text}
			}); failed != nil {
				cancel(failed)
			}
		}
		if f.err != nil && ctx.Err() == nil { // one bad session never hides another
			s.a.report(f.err)
			if worst == nil || schema.KindOf(f.err).Info().Exit == schema.ExitCorrupt {
				worst = exitCode(schema.KindOf(f.err).Info().Exit)
			}
		}
	}
	wg.Wait()
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case listed != nil:
		return listed
	}
	if err := l.end(); err != nil {
		return err
	}
	return worst
}

// sessions gives those to search.
func (s *search) sessions(ctx context.Context, only []string, give func(string) bool) error {
	for _, name := range only {
		id, err := s.a.session(ctx, s.store, name)
		if err != nil {
			return err
		}
		if !give(id) {
			return nil
		}
	}
	if len(only) > 0 {
		return nil
	}
	for id, err := range s.store.Sessions(ctx) {
		if err != nil {
			return err
		}
		if !give(id) {
			return nil
		}
	}
	return nil
}

// states folds a session and says in which state its calls are.
func (s *search) states(ctx context.Context, id string) (map[string]replay.CallState, error) {
	st := replay.New()
	for _, err := range journal.NewScan(s.store, id, journal.ScanOptions{State: st}).Items(ctx) {
		if err != nil {
			return nil, err
		}
	}
	states := make(map[string]replay.CallState, len(st.Calls))
	for _, c := range st.Calls {
		states[c.ID] = c.State
	}
	return states, nil
}
