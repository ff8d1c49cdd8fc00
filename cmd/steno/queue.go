package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

// onQueue asks whoever serves on --nats, or on this store: the queue lies with
// their server.
func (a *app) onQueue(ctx context.Context, ask func(context.Context, *executor.Client) error) error {
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	if nc == nil {
		return schema.Errorf(schema.Unavailable, "nobody serves on this store, and the queue lies with the server").
			With("next", "start it: steno serve; or name the server with --nats")
	}
	defer nc.Close()
	if err := a.someoneServes(ctx, nc); err != nil {
		return err
	}
	client, err := executor.NewClient(nc, "")
	if err != nil {
		return err
	}
	return ask(ctx, client)
}

// A queued is what is said of a call that was put into the queue.
type queued struct {
	OK      bool   `json:"ok"`
	Queued  bool   `json:"queued"`
	Session string `json:"session"`
	CallID  string `json:"call_id"`
	Next    string `json:"next"`
}

// enqueue puts a call into the queue.
func (a *app) enqueue(ctx context.Context, session string, req executor.Request, timeout time.Duration) error {
	if err := errors.Join(sound(req.Args), a.notElsewhere()); err != nil {
		return err
	}
	return a.onQueue(ctx, func(ctx context.Context, client *executor.Client) error {
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		if err := client.Enqueue(ctx, session, req); err != nil {
			return err
		}
		v := queued{true, true, session, req.CallID, a.here("run: steno calls wait " + session + " " + shellWord(req.CallID))}
		if a.format == "table" {
			return a.table([]string{"CALL", "WHAT", "NEXT"}, [][]string{{v.CallID, "queued", v.Next}})
		}
		return a.json(v)
	})
}

// deadFlags are those by which messages are chosen that the queue has given up.
func deadFlags(c *cobra.Command, req *executor.DeadRequest) {
	c.Flags().StringVar(&req.Kind, "kind", "", "only those with this kind of error")
}

func (a *app) callsDeadCommand() *cobra.Command {
	var req executor.DeadRequest
	var limit int
	c := &cobra.Command{
		Use: "dead [SESSION]", Short: "list what the queue has given up: what can never work, and what is parked",
		Long: "dead lists the messages in the stream STENO_DEAD. A dead one can never work, and its log says so too; a parked one could not be\n" +
			"done for long, as its session could not be written, and can be sent back by: steno calls requeue. Its line says where it cannot.",
		Example: "  steno calls dead\n  steno calls dead demo --parked\n  steno calls dead --kind session_writer_ambiguous -o jsonl",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("SESSION")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				req.Session = args[0]
			}
			if limit < 0 {
				return usage("--limit is 1 at least, or 0 for all")
			}
			l := listing{a: a, head: deadHead}
			err := a.onQueue(c.Context(), func(ctx context.Context, client *executor.Client) error {
				for left := limit; ; {
					if req.Limit = deadPage; limit > 0 {
						req.Limit = min(left, deadPage)
					}
					p, err := client.Dead(ctx, req)
					if err != nil {
						return err
					}
					for _, d := range p.Letters {
						req.After = d.Seq
						if err := l.add(d, func() []string { return deadCells(d, "") }); err != nil {
							return err
						}
					}
					if left -= len(p.Letters); !p.More || limit > 0 && left <= 0 {
						return nil
					}
				}
			})
			if err != nil {
				return err
			}
			return l.end()
		},
	}
	deadFlags(c, &req)
	c.Flags().BoolVar(&req.Parked, "parked", false, "only those that might work later")
	c.Flags().IntVar(&limit, "limit", 1000, "how many at most; 0 for all")
	return c
}

// deadPage is how many are asked for at a time.
const deadPage = 200

var deadHead = []string{"SEQ", "AT (UTC)", "SESSION", "CALL", "STATE", "KIND", "TRIES", "WHAT"}

func deadCells(d executor.DeadLetter, what string) []string {
	state := "dead"
	if d.Parked {
		state = "parked"
	}
	if what == "" {
		what = short(d.Message, 100)
		if d.Cannot != "" {
			what += "; cannot be queued again: " + d.Cannot
		}
	}
	return []string{fmt.Sprint(d.Seq), d.At.UTC().Format("2006-01-02 15:04:05"), d.Session, d.CallID, state, string(d.Kind), fmt.Sprint(d.Deliveries), what}
}

func (a *app) callsRequeueCommand() *cobra.Command {
	var req executor.RequeueRequest
	var all bool
	var dryRun *bool
	c := &cobra.Command{
		Use: "requeue [SESSION [CALL]]", Short: "send back into the queue what it has given up",
		Long: "requeue sends the parked calls of a session back into the queue, or one call, or with --all those of every session; with --kind\n" +
			"those of that kind, dead ones too. Who did it, and why, is noted in the log of the session. A call runs once, however often it is\n" +
			"sent. What is not whole any more, since its end or a secret is missing, is left, and so is a call whose session cannot be written.\n\n" +
			"Exit 1 if any is left.",
		Example: "  steno calls requeue demo\n  steno calls requeue demo call-8 --reason 'the disk has room again'\n  steno calls requeue --all --kind session_writer_ambiguous --dry-run",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 2 {
				return exactly("SESSION", "CALL")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("name a session, or say --all").With("next", "see what is there; run: steno calls dead")
			}
			if len(args) > 0 {
				req.Session = args[0]
			}
			if len(args) > 1 {
				req.CallID = args[1]
			}
			req.By, req.DryRun, req.Limit = byUser(), *dryRun, deadPage
			req.Parked = req.Kind == "" && req.CallID == ""
			l := listing{a: a, head: deadHead}
			seen, left := 0, 0
			err := a.onQueue(c.Context(), func(ctx context.Context, client *executor.Client) error {
				for {
					p, err := client.Requeue(ctx, req)
					if err != nil {
						return err
					}
					for _, d := range p.Letters {
						req.After = d.Seq
						seen++
						what := "queued again"
						switch {
						case d.Cannot != "":
							what = "left: " + d.Cannot
							left++
						case req.DryRun:
							what = "would be queued again"
						}
						if err := l.add(d, func() []string { return deadCells(d, what) }); err != nil {
							return err
						}
					}
					if !p.More || len(p.Letters) == 0 {
						return nil
					}
				}
			})
			switch {
			case err != nil:
				return err
			case seen == 0:
				return schema.Errorf(schema.NotFound, "the queue has given up no such call").With("next", "see what is there; run: steno calls dead")
			}
			if err := l.end(); err != nil {
				return err
			}
			if left > 0 {
				return exitCode(1)
			}
			return nil
		},
	}
	deadFlags(c, &req.DeadRequest)
	c.Flags().BoolVar(&all, "all", false, "of every session")
	c.Flags().StringVar(&req.Reason, "reason", "", "why; it goes into the log")
	dryRun = c.Flags().Bool("dry-run", false, "only say what would be queued again")
	return c
}
