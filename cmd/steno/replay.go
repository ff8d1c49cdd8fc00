package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/executor/mcp"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

type replayView struct {
	Session  string           `json:"session"`
	Trusted  bool             `json:"trusted,omitzero"` // sums were not checked
	Digest   *string          `json:"digest"`           // null where a strict replay met damage, as head and state are
	Head     *schema.Head     `json:"head"`
	State    *replay.State    `json:"state"`
	Findings []schema.Finding `json:"findings"` // at most 1000; verify gives them all
	Lease    struct {
		State  lease.State    `json:"state"`
		Kind   schema.Kind    `json:"kind,omitzero"`
		Epoch  uint64         `json:"epoch"`
		Holder *schema.Holder `json:"holder,omitzero"`
	} `json:"lease"`
}

func (a *app) replayCommand() *cobra.Command {
	var lenient, trusted bool
	var serve, listen string
	var asOf uint64
	c := &cobra.Command{
		Use: "replay SESSION", Short: "rebuild a session from its log; reads files only",
		Long: "replay folds the log of a session into its state and prints the state's digest, which is the same on every\n" +
			"machine. It ends at the first damaged line, with exit 4; --lenient goes on and names every hole. Of blobs it\n" +
			"reads those of patches, and of the others looks whether they are there and how long they are: the digest has them\n" +
			"by the hash in their line, and one whose bytes were changed is found by steno verify.\n\n" +
			"--serve nats answers a program that runs again from the record, on a server of its own, whose address and password\n" +
			"it prints as a NATS context. Calls get recorded results by their id, or by order where their ids are new. Whatever the\n" +
			"record does not have is replay_divergence, with both sides, and makes exit 9 when SIGTERM ends it; no tool is ever called.\n" +
			"A program that asks for its session is told how far it has come in the record. What a model is told of the tools no log\n" +
			"says: session.tools has those that the record has calls of, as this command or --tools knows them.\n\n" +
			"--serve mcp does the same as an MCP server on standard input and output, for a host of MCP tools. Its tools are those that the\n" +
			"server of steno mcp had; of other sessions the log has their names only. A call gets its result by steno/call_id of its\n" +
			"_meta, or by order. It ends with its host.",
		Example: "  steno replay demo\n  steno replay demo -o json\n  steno replay demo --as-of 12\n  steno replay demo --serve nats\n  steno replay demo --serve mcp",
		Args:    exactly("SESSION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkAsOf(c, asOf); err != nil {
				return err
			}
			store, err := a.store(false)
			if err != nil {
				return err
			}
			defer store.Close()
			id, err := a.session(c.Context(), store, args[0])
			if err != nil {
				return err
			}
			if serve != "" {
				return a.serveRecording(c.Context(), store, id, asOf, serve, listen)
			}
			return a.replay(c.Context(), store, id, asOf, lenient, trusted)
		},
	}
	c.Flags().BoolVar(&trusted, "trusted", false, trustedHelp)
	asOfFlag(c, &asOf)
	c.Flags().StringVar(&serve, "serve", "", "nats or mcp: answer a program that runs again from the record, and never call a tool")
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "with --serve nats: HOST:PORT to listen on")
	a.redactFlag(c)
	a.toolsFlag(c)
	c.Flags().BoolVar(&lenient, "lenient", false, "go on behind damage")
	return c
}

func (a *app) replay(ctx context.Context, store journal.Store, id string, asOf uint64, lenient, trusted bool) error {
	st := replay.New()
	r, err := readSession(ctx, store, id, asOf, journal.ScanOptions{State: st, Strict: !lenient, Trusted: trusted})
	if err != nil {
		return err
	}
	damage := r.damage()
	ls, err := store.Lease(ctx, id)
	if err != nil {
		return err
	}
	v := replayView{Session: id, Trusted: trusted, Findings: r.findings}
	if damage == nil || lenient { // the digest of a part would pass for that of the whole
		digest := st.Digest()
		v.Digest, v.Head, v.State = &digest, r.Head, st
	}
	v.Lease.State, v.Lease.Kind, v.Lease.Epoch, v.Lease.Holder = ls.State, ls.Kind, ls.Epoch, ls.Holder
	if a.format == "json" || a.format == "jsonl" {
		err = a.json(v)
	} else if v.State != nil {
		err = a.printReplay(v)
	}
	if err == nil {
		err = damage
	}
	return err
}

func (a *app) printReplay(v replayView) error {
	rows := [][]string{{"session", v.Session}, {"digest", *v.Digest}}
	if v.Head != nil {
		rows = append(rows, []string{"head", v.Head.String()})
	}
	counts := map[replay.CallState]int{}
	for _, c := range v.State.Calls {
		counts[c.State]++
	}
	calls := []string{}
	for _, s := range []replay.CallState{replay.OK, replay.Failed, replay.Interrupted, replay.Unknown, replay.Pending} {
		if n := counts[s]; n > 0 {
			calls = append(calls, fmt.Sprintf("%d %s", n, s))
		}
	}
	rows = append(rows, []string{"epochs", fmt.Sprint(len(v.State.Epochs))}, []string{"messages", fmt.Sprint(len(v.State.Messages))},
		[]string{"calls", strings.Join(calls, ", ")})
	if e := v.State.Ended; e != nil {
		rows = append(rows, []string{"outcome", e.Outcome})
	}
	state := string(v.Lease.State)
	if v.Lease.Kind != "" {
		state += " (" + string(v.Lease.Kind) + ")"
	}
	rows = append(rows, []string{"lease", state})
	if v.Trusted {
		rows = append(rows, []string{"trusted", unchecked})
	}
	for _, f := range v.Findings {
		rows = append(rows, []string{f.Severity, fmt.Sprintf("%06d.jsonl line %d: %s %s", f.Segment, f.Line, f.Kind, f.Reason)})
	}
	return a.table(nil, rows)
}

// serveRecording answers from a session's record until a signal comes.
func (a *app) serveRecording(ctx context.Context, store *journal.Files, id string, asOf uint64, how, listen string) (err error) {
	switch {
	case how != "nats" && how != "mcp":
		return usage("--serve is nats or mcp; got %q", how)
	case a.nats != "":
		return usage("--serve has a server of its own, where no executor can get a call; leave --nats out")
	}
	redact, err := a.redactor(store)
	if err != nil {
		return err
	}
	file, err := a.toolsFile()
	if err != nil {
		return err
	}
	r, err := executor.OpenRecording(ctx, store, id, asOf, redact, file.Tools...)
	if err != nil {
		return err
	}
	if how == "mcp" {
		if err := mcp.ServeRecording(ctx, store, id, asOf, r, mcp.Host{In: a.in, Out: a.out}); err != nil {
			return schema.Errorf(schema.StdinError, "what the host says cannot be read").Cause(err)
		}
		return diverged(r, id)
	}
	o, err := listening(listen)
	if err != nil {
		return err
	}
	server, nc, err := startServer(o)
	if err != nil {
		return err
	}
	defer func() { nc.Close(); server.Shutdown(); server.WaitForShutdown() }()
	stop, err := r.Serve(nc, "")
	if err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return schema.Errorf(schema.Unavailable, "the embedded NATS server does not answer").Cause(err)
	}
	if err := a.json(natsContext{Description: "steno replay " + id, URL: clientURL(server), User: o.Username, Password: o.Password}); err != nil {
		return err
	}
	fmt.Fprintf(a.err, "answers from the record of %s; a signal ends it\n", id)
	<-ctx.Done()
	if err := stop(); err != nil {
		return err
	}
	return diverged(r, id)
}

// diverged is what to say when a recording has been asked for what it does not have.
func diverged(r *executor.Recording, id string) error {
	if n := r.Diverged(); n > 0 {
		return schema.Errorf(schema.ReplayDivergence, "what was asked for was not in the record, %s", many(n, "time")).With("session", id).
			With("next", "look at the errors that the program got: they show both sides")
	}
	return nil
}
