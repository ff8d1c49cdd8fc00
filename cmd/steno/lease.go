package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) leaseCommand() *cobra.Command {
	c := &cobra.Command{Use: "lease", Short: "who may write a session, and what to do about one that hangs",
		Long: "lease shows who holds which session, asks a holder to let go, or takes a session from one that hangs.\n" +
			"ls, show and force work on the files alone. None of these commands deletes anything.",
		Example: "  steno lease ls\n  steno lease show demo\n  steno lease release demo\n  steno lease force demo --reason 'it hangs on a dead disk'"}
	c.AddCommand(&cobra.Command{
		Use: "ls", Short: "list all sessions with their leases; reads files only and waits for nothing",
		Example: "  steno lease ls -o jsonl", Args: exactly(),
		RunE: a.onStore(func(ctx context.Context, store *journal.Files, _ []string) error { return a.listLeases(ctx, store) }),
	}, &cobra.Command{
		Use: "show SESSION", Short: "show the lease of a session and its evidence; reads files only and takes nothing",
		Long: "show says who holds a session, what shows that, and what to do next. Where the holder's clock is not ours, as in\n" +
			"another time namespace, or it has no beat, the holder is watched first, for 10 s at most.",
		Example: "  steno lease show demo -o json", Args: exactly("SESSION"),
		RunE: a.onStore(func(ctx context.Context, store *journal.Files, args []string) error {
			id, err := a.session(ctx, store, args[0])
			if err != nil {
				return err
			}
			st, err := a.observe(ctx, store, id)
			if err != nil {
				return err
			}
			return a.showLease(id, st)
		}),
	}, a.releaseCommand(), a.forceCommand())
	return c
}

// onStore runs a command on the store, which must be there.
func (a *app) onStore(f func(ctx context.Context, store *journal.Files, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		store, err := a.store(false)
		if err != nil {
			return err
		}
		defer store.Close()
		return f(c.Context(), store, args)
	}
}

// observe looks at a lease until it is decided.
func (a *app) observe(ctx context.Context, store *journal.Files, session string) (lease.Status, error) {
	told := false
	return lease.Observe(ctx, func() (lease.Status, error) {
		st, err := store.Lease(ctx, session)
		if err == nil && st.Undecided && st.Sealed && !told { // a seal comes in a moment, a beat may not
			told = true
			fmt.Fprintf(a.err, "watching the holder of %s for up to %s\n", inert(session), lease.Window)
		}
		return st, err
	})
}

// listLeases gives every session a row: one that cannot be looked at says why
// and does not hide the others.
func (a *app) listLeases(ctx context.Context, store *journal.Files) error {
	l := listing{a: a, head: []string{"SESSION", "STATE", "EPOCH", "HOLDER", "HOST", "PID", "PROGRAM", "BEAT", "KIND"}}
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			return err
		}
		st, err := store.Lease(ctx, id)
		if errors.Is(err, schema.NotFound) {
			continue // removed
		}
		row := executor.LeaseOf(id, st, err)
		row.Next = a.here(row.Next)
		if err := l.add(row, func() []string { return leaseCells(row) }); err != nil {
			return err
		}
	}
	return l.end()
}

func leaseCells(r executor.LeaseInfo) []string {
	h := r.Holder
	if h == nil || r.State == lease.Available { // there the last one is named
		h = &schema.Holder{}
	}
	pid := ""
	if h.PID != 0 {
		pid = strconv.Itoa(h.PID)
	}
	return []string{r.Session, string(r.State), fmt.Sprint(r.Epoch), h.ID, short(h.Host, 40), pid, short(h.Program, 40), beatAge(r), string(r.Kind)}
}

// beatAge is the age of the holder's beat for a cell.
func beatAge(r executor.LeaseInfo) string {
	switch {
	case r.BeatAge != nil:
		return (time.Duration(*r.BeatAge) * time.Millisecond).Round(100 * time.Millisecond).String()
	case r.Undecided:
		return "?" // lease show watches it
	}
	return ""
}

func (a *app) showLease(session string, st lease.Status) error {
	v := executor.LeaseOf(session, st, nil)
	v.Next = a.here(v.Next)
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	rows := [][]string{{"session", v.Session}, {"state", string(v.State)}, {"epoch", fmt.Sprint(v.Epoch)}}
	if h := v.Holder; h != nil {
		who := "holder"
		if v.State == lease.Available {
			who = "last holder"
		}
		rows = append(rows, []string{who, h.ID}, []string{"host", h.Host}, []string{"pid", fmt.Sprint(h.PID)}, []string{"program", h.Program})
	}
	if age := beatAge(v); age != "" {
		rows = append(rows, []string{"beat", age + " old"})
	}
	rows = append(rows, []string{"observed", v.Observed})
	if v.Kind != "" {
		rows = append(rows, []string{"kind", string(v.Kind)})
	}
	return a.table(nil, append(rows, []string{"next", v.Next}))
}

// releaseWait is how long a holder has to answer.
const releaseWait = 5 * time.Second

func (a *app) releaseCommand() *cobra.Command {
	var reason string
	var dryRun *bool
	c := &cobra.Command{
		Use: "release SESSION", Short: "ask the holder of a session to let go of it",
		Long: "release asks the process that holds a session to write down that it lets go, and to give the lease back.\n" +
			"It goes through the serve on this store, or the server of --nats. Calls that run keep their session until they end.",
		Example: "  steno lease release demo --reason 'another process is to have it'", Args: exactly("SESSION"),
		RunE: a.onStore(func(ctx context.Context, store *journal.Files, args []string) error {
			return a.release(ctx, store, args[0], reason, *dryRun)
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "goes into the log")
	dryRun = dryRunFlag(c)
	return c
}

func (a *app) release(ctx context.Context, store *journal.Files, session, reason string, dryRun bool) error {
	st, err := a.observe(ctx, store, session)
	if err != nil {
		return err
	}
	if dryRun && st.State == lease.Active {
		return a.plan(session, "", "ask process %d, holder %s, to let go of it", st.Holder.PID, st.Holder.ID)
	}
	if st.State == lease.Active {
		why := "asked for by " + byUser()
		if reason != "" {
			why += ": " + reason
		}
		if asked := a.ask(ctx, st.Holder.ID, executor.ReleaseRequest{Session: session, Reason: why}); asked != nil {
			// What the files say now decides: it may have let go without a word.
			if st, err = a.observe(ctx, store, session); err != nil {
				return err
			}
			if st.State == lease.Active {
				return asked
			}
		} else if st, err = store.Lease(ctx, session); err != nil {
			return err
		}
	}
	if err := st.Err(session); err != nil && st.State != lease.Active { // active: the next writer has it already
		return err
	}
	return a.showLease(session, st)
}

// ask asks a holder to release a session.
func (a *app) ask(ctx context.Context, holder string, req executor.ReleaseRequest) error {
	nobody := func(cause error) error {
		return schema.Errorf(schema.SessionWriterActive, "the holder of session %s cannot be asked: it does not listen here", req.Session).
			With("session", req.Session).With("holder", holder).
			With("next", "if it serves on a NATS server, ask there: steno lease release "+req.Session+" --nats CONTEXT; or wait until that process has ended; run: steno lease show "+req.Session).Cause(cause)
	}
	nc, err := a.connectTo(ctx, req.Session)
	if err != nil {
		return err
	}
	if nc == nil {
		return nobody(nil)
	}
	defer nc.Close()
	client, err := executor.NewClient(nc, "")
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	_, err = client.Release(wait, holder, req)
	if errors.Is(err, schema.Unavailable) {
		return nobody(err)
	}
	return err
}

func (a *app) forceCommand() *cobra.Command {
	var reason string
	var dryRun *bool
	c := &cobra.Command{
		Use: "force SESSION --reason WHY", Short: "take a session from a holder that does not beat",
		Long: "force takes a session whose lease is ambiguous, writes who did it, why, and what was seen into the log, and releases\n" +
			"it. The old holder acknowledges nothing from then on, and learns that it has lost when it wakes up. What its tools\n" +
			"still do in the world is not stopped: end the process if you can.\n" +
			"A holder that beats is not forced; ask it with: steno lease release.",
		Example: "  steno lease force demo --reason 'the process hangs on a dead disk'", Args: exactly("SESSION"),
		RunE: a.onStore(func(ctx context.Context, store *journal.Files, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason is missing").With("next", "say why: steno lease force SESSION --reason WHY")
			}
			return a.force(ctx, store, args[0], reason, *dryRun)
		}),
	}
	c.Flags().StringVar(&reason, "reason", "", "why; it goes into the log")
	dryRun = dryRunFlag(c)
	return c
}

func (a *app) force(ctx context.Context, store *journal.Files, session, reason string, dryRun bool) error {
	st, err := a.observe(ctx, store, session)
	if err != nil {
		return err
	}
	switch st.State {
	case lease.Active:
		return st.Err(session)
	case lease.Available: // there is nobody to take it from
		return a.showLease(session, st)
	}
	if dryRun {
		return a.plan(session, "", "take it in epoch %d, though %s, and release it, by %s: %s", st.Epoch+1, st.Observed(), byUser(), reason)
	}
	j, err := journal.Open(ctx, store, session, journal.Options{
		Holder:   lease.Self("steno " + executor.Version + " lease force"),
		NewState: func() journal.State { return replay.NewChecker() },
		Force:    true, By: byUser(), Reason: reason,
	})
	if err != nil {
		return err
	}
	if err := j.Release(ctx, "forced: "+reason); err != nil {
		return err
	}
	if st, err = store.Lease(ctx, session); err != nil {
		return err
	}
	if served, err := a.served(); err == nil && served { // whoever writes next on this store does it through that one
		fmt.Fprintf(a.err, "a serve runs on this store, and calls go through it: if it does not answer, end %s\n", a.server())
	}
	return a.showLease(session, st)
}

// byUser is who runs this command, for the log.
func byUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return "user " + u.Username
	}
	return "user " + strconv.Itoa(os.Getuid())
}
