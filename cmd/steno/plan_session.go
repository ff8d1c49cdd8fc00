package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// planning is for dry runs of what changes a session. They read its log, whose
// state f gets, take no lease and write nothing.
func (a *app) planning(c *cobra.Command, session string, asOf uint64, f func(ctx context.Context, store *journal.Files, id string, st *replay.State) error) error {
	if a.nats != "" {
		return usage("--dry-run reads the files of a store, which --dir names; leave --nats out")
	}
	return a.onStore(func(ctx context.Context, store *journal.Files, _ []string) error {
		st := replay.New()
		r, err := readSession(ctx, store, session, asOf, journal.ScanOptions{State: st, Strict: true})
		if err == nil {
			err = r.damage()
		}
		if err == nil && !st.Begun() {
			err = schema.Errorf(schema.NotFound, "there is no session %s", session).With("session", session)
		}
		if err != nil {
			return err
		}
		return f(ctx, store, session, st)
	})(c, nil)
}

// because is who does it, and why.
func because(reason string) string {
	if reason == "" {
		return ", by " + byUser()
	}
	return ", by " + byUser() + ": " + reason
}

// notOver is the error of a change that no session takes that has ended.
func notOver(id string, st *replay.State) error {
	if st.Ended == nil {
		return nil
	}
	return schema.Errorf(schema.SessionEnded, "session %s has ended: %s", id, st.Ended.Outcome).With("session", id)
}

func (a *app) planPhase(c *cobra.Command, req executor.PhaseRequest, reason string) error {
	phases := []string{executor.PhaseInvestigating, executor.PhaseEditing, executor.PhaseVerifying}
	tasks := []string{"", executor.TaskEdit, executor.TaskTestOnly, executor.TaskInvestigate}
	if !slices.Contains(phases, req.Phase) || !slices.Contains(tasks, req.TaskKind) {
		return usage("there are the phases %v and the kinds of task %v", phases, tasks[1:])
	}
	return a.planning(c, req.Session, 0, func(_ context.Context, _ *journal.Files, id string, st *replay.State) error {
		if err := notOver(id, st); err != nil {
			return err
		}
		same := req.TaskKind == "" || req.TaskKind == st.TaskKind
		if !st.PhaseLost && st.Phase == req.Phase && same {
			return a.plan(id, "", "change nothing: the session is in the phase %s", st.Phase)
		}
		from, task := "no phase", ""
		if st.Phase != "" {
			from = "the phase " + st.Phase
		}
		if !same {
			task = ", and that its task is of the kind " + req.TaskKind
		}
		return a.plan(id, "", "record that the session goes from %s to %s%s%s", from, req.Phase, task, because(reason))
	})
}

func (a *app) planPosture(c *cobra.Command, req executor.PostureRequest) error {
	if !slices.Contains([]string{"auto", "ask", "read_only"}, req.Mode) {
		return usage("--mode is auto, ask or read_only; got %q", req.Mode)
	}
	return a.planning(c, req.Session, 0, func(_ context.Context, store *journal.Files, id string, st *replay.State) error {
		if err := notOver(id, st); err != nil {
			return err
		}
		is := replay.Posture{Mode: "none"}
		if st.Posture != nil {
			is = *st.Posture
		}
		if is.PolicyHash != "" {
			if _, err := store.Policy(is.PolicyHash); err != nil {
				return schema.Errorf(schema.ResumePolicyUnavailable, "the rules that session %s goes by, which would stay, cannot be had", id).With("session", id).With("policy_hash", is.PolicyHash).Cause(err)
			}
		}
		if !st.PostureLost && is.Mode == req.Mode {
			return a.plan(id, "", "change nothing: the mode is %s", is.Mode)
		}
		return a.plan(id, "", "record that the mode goes from %s to %s, and the rules stay%s", is.Mode, req.Mode, because(req.Reason))
	})
}

func (a *app) planEnd(c *cobra.Command, req executor.EndRequest) error {
	return a.planning(c, req.Session, 0, func(_ context.Context, _ *journal.Files, id string, st *replay.State) error {
		if e := st.Ended; e != nil && e.Outcome == req.Outcome && e.Reason == req.Reason {
			return a.plan(id, "", "change nothing: the session has ended so")
		} else if err := notOver(id, st); err != nil {
			return err
		}
		open := st.Open()
		if len(open) > 0 {
			return a.plan(id, "", "settle %s that an earlier writer left open, as steno session resume does, and end the session once none is open any more: %s", many(len(open), "call"), req.Outcome)
		}
		return a.plan(id, "", "record that the session has ended: %s", req.Outcome)
	})
}

func (a *app) planFork(c *cobra.Command, req executor.ForkRequest) error {
	return a.planning(c, req.Session, req.At, func(ctx context.Context, store *journal.Files, id string, st *replay.State) error {
		if st.PostureLost || st.PhaseLost {
			return schema.Errorf(schema.ResumePolicyUnavailable, "what session %s goes by may be lost with damaged lines of its log", id).With("session", id)
		}
		r := &reading{ctx: ctx, store: store, id: id, durable: true}
		fork, err := replay.ReadFork(id, req.At, r.events())
		if err != nil {
			return err
		}
		n := 0
		for _, err := range fork.Copies() {
			if err != nil {
				return err
			}
			n++
		}
		name := "a new session"
		if req.To != "" {
			name = "session " + req.To
			if err := schema.CheckSession(req.To); err != nil {
				return err
			}
			switch _, err := store.Segments(ctx, req.To); {
			case err == nil:
				kin := replay.ReadKin(req.To, undamaged(ctx, store, req.To))
				if kin.Parent == id && (req.At == 0 || req.At == kin.Seq) {
					return a.plan(id, "", "change nothing: %s is that fork", name)
				}
				return schema.Errorf(schema.AlreadyExists, "there is a session %s already", req.To).With("session", req.To).With("next", "give another --session")
			case !errors.Is(err, schema.NotFound):
				return err
			}
		}
		left := ""
		if open := len(st.Open()); open > 0 {
			left = "; " + many(open, "call") + " without a result would be left out"
		}
		return a.plan(id, "", "make %s that goes on from event %d, with %s of this one%s", name, fork.At, many(n, "event"), left)
	})
}

// A planned step is what would become of a call.
type planned struct {
	CallID string `json:"call_id"`
	Would  string `json:"would"`
}

func (a *app) planResume(c *cobra.Command, session string) error {
	reg, servers, err := a.registry(c.Context())
	if err != nil {
		return err
	}
	defer servers.Close()
	tools := reg.Tools()
	return a.planning(c, session, 0, func(ctx context.Context, store *journal.Files, id string, st *replay.State) error {
		at, err := a.observe(ctx, store, id)
		if err != nil {
			return err
		}
		v := struct {
			OK      bool      `json:"ok"`
			DryRun  bool      `json:"dry_run"`
			Session string    `json:"session"`
			Would   string    `json:"would"`
			Calls   []planned `json:"calls"`
		}{true, true, id, "", []planned{}}
		switch at.State {
		case lease.Active:
			v.Would = "ask its holder, which settles what is open, and record nothing else: " + at.Observed()
		case lease.Ambiguous:
			return at.Err(id)
		default:
			v.Would = fmt.Sprintf("take it in epoch %d or above: %s", at.Epoch+1, at.Observed())
			if st.Ended != nil {
				v.Would += "; it has ended, so nothing else is recorded"
				break
			}
			for _, call := range st.Open() {
				v.Calls = append(v.Calls, planned{call.ID, settlement(call, tools)})
			}
		}
		if a.format == "json" || a.format == "jsonl" {
			return a.json(v)
		}
		if _, err := fmt.Fprintf(a.out, "would %s\n", inert(v.Would)); err != nil {
			return err
		}
		for _, p := range v.Calls {
			if _, err := fmt.Fprintf(a.out, "would %s: %s\n", inert(p.CallID), inert(p.Would)); err != nil {
				return err
			}
		}
		return nil
	})
}

// settlement is what becomes of a call that an earlier writer has left open.
// Where a policy or a phase has something against it, that is recorded instead.
func settlement(c *replay.Call, tools []executor.Tool) string {
	n := len(c.Attempts)
	i := slices.IndexFunc(tools, func(t executor.Tool) bool { return t.Name == c.Name })
	switch {
	case c.Waiting != nil:
		return "leave it waiting for a person"
	case i < 0:
		return "leave it as it is: this command has no tool " + c.Name + ", which --tools FILE may name"
	case n == 0 && c.Redacted != "":
		return "record that it is interrupted, unless a request with what is redacted in the log comes in time"
	case n == 0:
		return "run " + c.Name + ", which has not started"
	case c.DryRun, tools[i].Repeatable, tools[i].ReadOnly:
		return fmt.Sprintf("run %s again, as attempt %d", c.Name, c.Attempts[n-1].Attempt+1)
	case tools[i].Check != nil:
		return "ask " + c.Name + " what became of attempt " + fmt.Sprint(c.Attempts[n-1].Attempt) + ", and record that"
	}
	return "record that it is interrupted: nobody knows what became of it"
}
