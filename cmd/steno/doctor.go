package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor [SESSION]", Short: "say what keeps a session, or all of them, from going on, and what to do; reads files only",
		Long: "doctor looks at the store (its file system, owner, modes, room, the serve on it, the server of --nats, what confines\n" +
			"commands, --policy) and reads the logs: leases, damage, calls whose outcome is open, questions to a person, policies.\n" +
			"It says ready, ready_with_warnings or blocked, and of each thing the next step. Of all sessions it tells what is not in\n" +
			"order, of the one that is named everything. Exit 0, or of what blocks first the code of its kind. " + latestHelp,
		Example: "  steno doctor\n  steno doctor demo -o json",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("SESSION")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			d := &doctor{a: a, list: listing{a: a}}
			return d.run(c.Context(), args)
		},
	}
	a.policyFlag(c)
	a.toolsFlag(c)
	return c
}

// What a doctor says of one thing, and of all.
const (
	statusOK      = "ok"
	statusWarning = "warning"
	statusBlocked = "blocked"

	statusReady    = "ready"
	statusWarnings = "ready_with_warnings"
)

// A diagnosis is what a doctor says of one thing.
type diagnosis struct {
	Check   string      `json:"check"`
	Session string      `json:"session,omitzero"`
	Status  string      `json:"status"`
	Kind    schema.Kind `json:"kind,omitzero"` // of the error that it would be
	Text    string      `json:"text"`
	Next    string      `json:"next,omitzero"`
}

// A doctor tells as it looks, and keeps the worst.
type doctor struct {
	a        *app
	list     listing
	all      bool // also what is in order
	failed   error
	warnings int
	blocked  int
	kind     schema.Kind // of what blocks first
}

func (d *doctor) run(ctx context.Context, args []string) error {
	if d.a.format == "json" {
		io.WriteString(d.a.out, `{"checks":`)
	}
	store := d.store(ctx)
	if store != nil {
		defer store.Close()
		d.session(ctx, store, args)
	}
	if d.failed != nil {
		return d.failed
	}
	status := statusReady
	switch {
	case d.blocked > 0:
		status = statusBlocked
	case d.warnings > 0:
		status = statusWarnings
	}
	if err := d.end(status); err != nil || d.blocked == 0 {
		return err
	}
	return exitCode(d.kind.Info().Exit)
}

func (d *doctor) end(status string) error {
	v := struct {
		Status   string `json:"status"`
		Warnings int    `json:"warnings"`
		Blocked  int    `json:"blocked"`
	}{status, d.warnings, d.blocked}
	switch d.a.format {
	case "json":
		if !d.list.any {
			io.WriteString(d.a.out, "[")
		}
		_, err := fmt.Fprintf(d.a.out, `],"status":%q,"warnings":%d,"blocked":%d}`+"\n", v.Status, v.Warnings, v.Blocked)
		return err
	case "jsonl":
		return d.a.json(v)
	}
	_, err := fmt.Fprintf(d.a.out, "%s: %s, %d blocked\n", status, many(d.warnings, "warning"), d.blocked)
	return err
}

// tell says one thing.
func (d *doctor) tell(v diagnosis) {
	v.Next = d.a.here(v.Next)
	switch v.Status {
	case statusWarning:
		d.warnings++
	case statusBlocked:
		if d.blocked++; d.kind == "" {
			d.kind = v.Kind
		}
	}
	if d.failed != nil || v.Status == statusOK && v.Session != "" && !d.all {
		return
	}
	if !d.a.forPeople() {
		d.failed = d.list.add(v, nil)
		return
	}
	on := v.Check
	if v.Session != "" {
		on += " " + v.Session
	}
	if _, d.failed = fmt.Fprintf(d.a.out, "%-8s %s: %s\n", v.Status, inert(on), inert(v.Text)); d.failed == nil && v.Next != "" {
		_, d.failed = fmt.Fprintf(d.a.out, "%-8s   next: %s\n", "", inert(v.Next))
	}
}

// blocks says an error.
func (d *doctor) blocks(check, session string, err error) {
	b := schema.Body(err)
	next, _ := b.Details["next"].(string)
	d.tell(diagnosis{check, session, statusBlocked, b.Kind, b.Message, next})
}

// store looks at the store and what is around it; nil if it cannot be opened.
func (d *doctor) store(ctx context.Context) *journal.Files {
	d.around(ctx)
	f, err := d.a.reader()
	if err != nil {
		d.blocks("store", "", err)
		return nil
	}
	d.tell(diagnosis{Check: "store", Status: statusOK, Text: f.ID()})
	d.room()
	if _, err := f.Secret(); err != nil && !errors.Is(err, schema.NotFound) { // the first writer makes it
		d.blocks("secret", "", err)
	}
	if served, err := d.a.served(); err != nil {
		d.blocks("serve", "", err)
	} else if !served {
		d.tell(diagnosis{Check: "serve", Status: statusOK, Text: "none runs on this store"})
	} else if nc, err := d.a.throughServe(ctx); err != nil {
		d.blocks("serve", "", err)
	} else if nc != nil {
		d.broker(ctx, "serve", nc)
		nc.Close()
	}
	return f
}

// around looks at what is no part of the store.
func (d *doctor) around(ctx context.Context) {
	if p, err := d.a.readPolicy(); err != nil {
		d.blocks("policy", "", err)
	} else if p != nil {
		d.tell(diagnosis{Check: "policy", Status: statusOK, Text: d.a.policy + " can be read"})
	}
	d.walls()
	d.servers(ctx)
	d.workers(ctx)
	if d.a.nats != "" {
		nc, err := dial(d.a.nats)
		if err != nil {
			d.blocks("broker", "", err)
			return
		}
		defer nc.Close()
		if err := d.a.someoneServes(ctx, nc); err != nil {
			d.blocks("broker", "", err)
		}
		d.broker(ctx, "broker", nc)
	}
}

// walls says what is around the commands of tools.
func (d *doctor) walls() {
	file, err := d.a.toolsFile()
	if err != nil {
		d.blocks("tools", "", err)
		return
	}
	seen := map[string]bool{}
	for _, t := range file.Tools {
		var info executor.ToolInfo
		if b, err := t.Spec(executor.FormatSteno); err != nil || schema.Unmarshal(b, &info) != nil || info.Confined == "" || seen[info.Confined] {
			continue
		}
		seen[info.Confined] = true
		v := diagnosis{Check: "commands", Status: statusOK, Text: info.Name + ": " + info.Confined}
		switch {
		case strings.HasPrefix(info.Confined, "no command runs"):
			v.Status, v.Kind, v.Next = statusBlocked, schema.BashDisabled, "mend what the text says, or do without tools that run commands"
		case strings.HasPrefix(info.Confined, "a process group only"), strings.HasPrefix(info.Confined, "not known"), strings.Contains(info.Confined, "no landlock"):
			v.Status, v.Next = statusWarning, "go to a machine that allows user namespaces and Landlock, or keep bash and command tools from it by a policy"
		}
		d.tell(v)
	}
}

// room looks at the folder of the store.
func (d *doctor) room() {
	dir := d.a.dir
	if root, err := os.OpenRoot(dir); err == nil {
		err = lease.Supported(root)
		root.Close()
		if err != nil {
			d.blocks("file system", "", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		d.blocks("store", "", schema.Errorf(schema.LogReadFailed, "the store's folder cannot be looked at").Cause(err))
		return
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		d.tell(diagnosis{Check: "owner", Status: statusWarning, Text: fmt.Sprintf("the store belongs to user %d, who alone may write it; this is user %d", st.Uid, os.Geteuid()), Next: "to write, be the owner of the store"})
	case unix.Access(dir, unix.W_OK) != nil:
		d.tell(diagnosis{Check: "disk", Status: statusBlocked, Kind: schema.LogWriteFailed, Text: "the store cannot be written: the disk or its folder is read-only", Next: "mount the disk for writing, or give the folder mode 0700"})
	}
	if mode := st.Mode & 0o777; mode&0o077 != 0 {
		d.tell(diagnosis{Check: "modes", Status: statusWarning, Text: fmt.Sprintf("others may enter the store: its folder has mode %04o", mode), Next: "run: chmod 700 " + dir})
	}
	s, err := spaceOf(dir)
	switch {
	case err != nil:
		d.blocks("disk", "", err)
	case s.critical():
		d.tell(diagnosis{Check: "disk", Status: statusBlocked, Kind: schema.LogWriteFailed, Text: s.String(), Next: "make room on the disk of the store"})
	case s.low():
		d.tell(diagnosis{Check: "disk", Status: statusWarning, Text: s.String(), Next: "make room on the disk of the store; steno session pack makes sessions small"})
	default:
		d.tell(diagnosis{Check: "disk", Status: statusOK, Text: s.String()})
	}
}

// session looks at one session, or at all.
func (d *doctor) session(ctx context.Context, store *journal.Files, args []string) {
	if len(args) > 0 {
		id, err := d.a.session(ctx, store, args[0])
		if err != nil {
			d.blocks("session", inert(args[0]), err)
			return
		}
		d.all = true
		d.look(ctx, store, id)
		return
	}
	n := 0
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			d.blocks("sessions", "", err)
			return
		}
		if _, err := store.Lease(ctx, id); errors.Is(err, schema.NotFound) {
			continue // removed
		}
		n++
		if d.look(ctx, store, id); d.failed != nil {
			return
		}
	}
	d.tell(diagnosis{Check: "sessions", Status: statusOK, Text: many(n, "session") + " looked at"})
}

// look looks at the lease and the log of a session.
func (d *doctor) look(ctx context.Context, store *journal.Files, id string) {
	st, err := store.Lease(ctx, id)
	if err != nil {
		d.blocks("lease", id, err)
		if errors.Is(err, schema.NotFound) {
			return
		}
	} else {
		d.lease(id, st)
	}
	t := newTally()
	r, err := readSession(ctx, store, id, 0, journal.ScanOptions{State: t})
	switch {
	case ctx.Err() != nil:
		d.failed = context.Cause(ctx)
		return
	case err != nil:
		d.blocks("log", id, err)
		return
	case r.first != nil:
		d.tell(diagnosis{"log", id, statusBlocked, r.first.Kind, findingText(*r.first) + fmt.Sprintf("; %s in all", many(r.count, "finding")), r.Next})
	case r.count > 0:
		d.tell(diagnosis{Check: "log", Session: id, Status: statusOK, Text: fmt.Sprintf("%s, in order; %s to notice", many(r.Events, "event"), many(r.count, "thing"))})
	default:
		d.tell(diagnosis{Check: "log", Session: id, Status: statusOK, Text: many(r.Events, "event") + ", in order"})
	}
	open, err := t.open(ctx, store, id)
	if err != nil {
		d.blocks("log", id, err)
		return
	}
	d.calls(id, open, t.calls, st)
	if p := t.state.Posture; p != nil && p.PolicyHash != "" && t.state.Ended == nil {
		if _, err := store.Policy(p.PolicyHash); err != nil {
			d.tell(diagnosis{"policy", id, statusBlocked, schema.ResumePolicyUnavailable, "the policy that the session goes by is not in the store", schema.ResumePolicyUnavailable.Next(id)})
		}
	}
}

func (d *doctor) lease(id string, st lease.Status) {
	v := diagnosis{Check: "lease", Session: id, Status: statusOK, Text: string(st.State) + ": " + st.Observed()}
	switch {
	case st.Undecided:
		v.Status, v.Text, v.Next = statusWarning, v.Text+"; who it is shows in a while", "run: steno lease show "+id
	case st.State == lease.Ambiguous:
		v.Status, v.Kind, v.Next = statusBlocked, st.Kind, st.Next(id)
	case st.State == lease.Stale:
		v.Text += "; the next writer takes it over"
	}
	d.tell(v)
}

// calls says what of the calls, all of them or those that are not over, is open.
func (d *doctor) calls(id string, list []*replay.Call, all int, st lease.Status) {
	var waiting, unknown, open, pending []string
	for _, c := range list {
		switch {
		case c.Waiting != nil:
			waiting = append(waiting, c.ID)
		case c.Result != nil && c.Result.Open():
			open = append(open, c.ID)
		case c.State == replay.Unknown && st.State != lease.Active:
			unknown = append(unknown, c.ID)
		case c.Result == nil && st.State != lease.Active:
			pending = append(pending, c.ID)
		}
	}
	of := func(list []string) string {
		return short(fmt.Sprintf("%s of %d calls: %v", many(len(list), "call"), all, list), 120)
	}
	quiet := len(waiting)+len(unknown)+len(open)+len(pending) == 0
	if len(waiting) > 0 {
		d.tell(diagnosis{Check: "approvals", Session: id, Status: statusWarning, Text: "a person is asked about " + of(waiting), Next: "run: steno approvals ls --session " + id})
	}
	if len(unknown) > 0 {
		d.tell(diagnosis{Check: "calls", Session: id, Status: statusWarning, Kind: schema.OutcomeUnknown, Text: "nobody knows what became of " + of(unknown), Next: "whoever writes the session next settles them; look at them with: steno calls ls " + id + " --open"})
	}
	if len(open) > 0 {
		d.tell(diagnosis{Check: "outcomes", Session: id, Status: statusWarning, Kind: schema.Interrupted, Text: "the outcome is open of " + of(open), Next: "look what the tools did, then run: steno calls resolve " + id + " CALL --reason WHY with --succeeded, --failed or --retry"})
	}
	if len(pending) > 0 {
		d.tell(diagnosis{Check: "pending", Session: id, Status: statusWarning, Text: "recorded and not started are " + of(pending), Next: "whoever takes the session next and has their tools runs them; run: steno session resume " + id})
	}
	if quiet {
		d.tell(diagnosis{Check: "calls", Session: id, Status: statusOK, Text: many(all, "call") + ", none open"})
	}
}
