package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// A demo is one play: an agent, two executors, and one of them killed.
type demo struct {
	app    *app
	dir    string   // the store; the workspace lies in it too
	env    []string // of the executors and what they run
	self   string   // this program
	out    io.Writer
	broken error // why out takes no more lines

	store  *journal.Files
	client *executor.Client
	events *nats.Subscription
}

// The calls on which the play turns. The judge finds them in the log by these.
const (
	callTestsFail = "call-2"
	callTestsPass = "call-6"
	callNotice    = "call-8" // must not run twice
	callWait      = "call-9" // may
)

// Files of the workspace that the play turns on.
const (
	noticesFile = "outbox/notices.txt"
	receiptFile = "outbox/receipt.txt"
)

// demoTimeout bounds the whole, for a machine that is very slow.
const demoTimeout = 10 * time.Minute

// run plays the demo and judges its files.
func (d *demo) run(ctx context.Context) (demoFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	var err error
	if d.self, err = os.Executable(); err != nil {
		return demoFacts{}, err
	}
	if err := d.play(ctx); err != nil {
		return demoFacts{}, err
	}
	return d.review(ctx)
}

// play is the demo up to the end of the session.
func (d *demo) play(ctx context.Context) error {
	if err := d.unpack(); err != nil {
		return err
	}
	o, err := listening("127.0.0.1:0")
	if err != nil {
		return err
	}
	server, nc, err := startServer(o)
	if err != nil {
		return err
	}
	defer func() { nc.Close(); server.Shutdown(); server.WaitForShutdown() }()
	serving := natsContext{Description: "steno demo", URL: clientURL(server), User: o.Username, Password: o.Password}
	folder := filepath.Join(d.dir, "nats")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(folder) // its server is gone with us
	if err := savePrivate(d.app.contextFile(), serving); err != nil {
		return err
	}
	if d.store, err = d.app.store(true); err != nil {
		return err
	}
	defer d.store.Close()
	if d.client, err = executor.NewClient(nc, ""); err != nil {
		return err
	}
	if d.events, err = nc.SubscribeSync("steno.v1.event." + demoSession + ".>"); err != nil {
		return err
	}
	d.say("server", "%s, embedded, with a password of its own", serving.URL)

	first, err := d.start(ctx, 1)
	if err != nil {
		return err
	}
	defer first.stop()
	workspace := filepath.Join(d.dir, demoWorkspace)
	if _, err := d.client.Open(ctx, executor.OpenRequest{Session: demoSession, Workspace: workspace}); err != nil {
		return err
	}
	second, err := d.start(ctx, 2)
	if err != nil {
		return err
	}
	defer second.stop()
	d.say("executors", "1 is process %d, 2 is process %d; both work on one store", first.PID, second.PID)
	d.say("workspace", "%s: a Go module whose tests fail", workspace)
	d.say("session", "%s, which executor 1 holds", demoSession)

	if err := d.mend(ctx); err != nil {
		return err
	}
	if err := d.kill(ctx, first); err != nil {
		return err
	}
	if err := second.stop(); err != nil {
		return schema.Errorf(schema.Unavailable, "executor 2 did not end in good order: %v", err)
	}
	return nil
}

// mend is what the agent does before the kill.
func (d *demo) mend(ctx context.Context) error {
	d.line("")
	if err := d.message(ctx, schema.TypeUserMessage, "Fl(3) is drawn with two flashes. Mend that, and tell the harbour office."); err != nil {
		return err
	}
	steps := []step{
		{id: "call-1", tool: "list", args: `{}`},
		{id: callTestsFail, tool: "bash", args: `{"command":"go test ./..."}`, show: "--- FAIL: TestDraw/Fl(3)", lines: 4},
		{id: "call-3", tool: "search", args: `{"pattern":"\\.Group"}`, show: "draw.go", lines: 1},
		{id: "call-4", tool: "read", args: `{"path":"draw.go","offset":34,"limit":9}`},
		{says: "The loop begins at 1 and leaves the first mark out."},
		{id: "call-5", tool: "edit", args: `{"path":"draw.go","old":"for i := 1; i < l.Group; i++","new":"for i := 0; i < l.Group; i++"}`},
		{id: callTestsPass, tool: "bash", args: `{"command":"go test ./..."}`, show: "ok", lines: 1},
		{id: "call-7", tool: "bash", args: `{"command":"go run ./cmd/tonight"}`, show: "Gull Rock", lines: 2},
		{says: "The drawings are right now. I send the notice and wait for the receipt."},
	}
	for _, s := range steps {
		if s.says != "" {
			if err := d.message(ctx, schema.TypeAssistantMessage, s.says); err != nil {
				return err
			}
			continue
		}
		if err := d.call(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// kill begins two calls, kills the executor that runs them, and goes on.
func (d *demo) kill(ctx context.Context, holder *demoProcess) error {
	notice := step{id: callNotice, tool: "bash", args: `{"argv":["sh","send-notice.sh"]}`}
	wait := step{id: callWait, tool: "wait_for_file", args: `{"path":"` + receiptFile + `"}`}
	noticed, err := d.begin(ctx, notice)
	if err != nil {
		return err
	}
	waited, err := d.begin(ctx, wait)
	if err != nil {
		return err
	}
	// It has done what must not be done twice, and goes on running.
	if err := d.appears(ctx, noticesFile); err != nil {
		return err
	}
	status, err := d.store.Lease(ctx, demoSession)
	if err != nil {
		return err
	}
	if status.State != lease.Active || status.Holder.ID != holder.Holder {
		return schema.Errorf(schema.Internal, "the session is not held by executor 1: it is %s", status.State)
	}
	if len(noticed)+len(waited) > 0 {
		return schema.Errorf(schema.Internal, "a call has ended that was to be running when its executor is killed")
	}
	if err := holder.kill(); err != nil {
		return err
	}
	d.line("")
	d.say("SIGKILL", "executor 1, process %d, with both calls running", holder.PID)

	// Whoever is asked next takes the session over, and first settles what was
	// left open.
	look := step{id: "call-10", tool: "read", args: `{"path":"` + noticesFile + `"}`}
	looked := make(chan answered, 1)
	serving, refused := context.WithCancelCause(ctx)
	defer refused(nil)
	go func() {
		a := d.ask(ctx, look)
		if a.err != nil {
			refused(a.err)
		}
		looked <- a
	}()
	if err := d.takenOver(serving); err != nil {
		return err
	}
	d.line("")
	if err := d.tell(look, <-looked); err != nil {
		return err
	}
	if err := d.message(ctx, schema.TypeAssistantMessage, "The notice is out, so I do not send it again."); err != nil {
		return err
	}
	// The agent hears of both calls under the ids it gave them.
	if a := <-noticed; a.err != nil || a.result.kind() != schema.Interrupted {
		return schema.Errorf(schema.Internal, "%s was to be answered as interrupted", callNotice).Cause(a.err)
	}
	// The harbour office answers: whole, or not at all.
	receipt := filepath.Join(d.dir, demoWorkspace, receiptFile)
	if err := os.WriteFile(receipt+".new", []byte("received: one notice\n"), 0o644); err != nil {
		return err
	}
	if err := os.Rename(receipt+".new", receipt); err != nil {
		return err
	}
	d.say("the office", "puts %s into the workspace", receiptFile)
	if err := d.tell(wait, <-waited); err != nil {
		return err
	}
	if err := d.call(ctx, step{id: "call-11", tool: "bash", args: `{"command":"go test ./..."}`}); err != nil {
		return err
	}
	if err := d.message(ctx, schema.TypeAssistantMessage, "Mended. The office has one notice, and has answered."); err != nil {
		return err
	}
	_, err = d.client.End(ctx, executor.EndRequest{Session: demoSession, Outcome: "completed"})
	return err
}

// takenOver waits for the events of the take-over and tells them.
func (d *demo) takenOver(ctx context.Context) error {
	var seal struct {
		How      string          `json:"how"`
		Evidence schema.Evidence `json:"evidence"`
	}
	err := d.await(ctx, func(e *schema.Event) bool {
		return e.Type == schema.TypeWriterOpened && json.Unmarshal(e.Data, &seal) == nil && seal.How == schema.HowTakeover
	})
	if err != nil {
		return err
	}
	d.say(seal.How, "executor 2 has the session; of executor 1 it saw: %s", seal.Evidence.Observed)
	var ended result
	if err := d.await(ctx, func(e *schema.Event) bool {
		return e.Type == schema.TypeToolResult && concerns(e, callNotice) && json.Unmarshal(e.Data, &ended) == nil
	}); err != nil {
		return err
	}
	d.say(callNotice, "%s; bash may not run twice, so nothing is run", ended.kind())
	var started struct {
		Attempt int `json:"attempt"`
	}
	if err := d.await(ctx, func(e *schema.Event) bool {
		return e.Type == schema.TypeToolStarted && concerns(e, callWait) && json.Unmarshal(e.Data, &started) == nil
	}); err != nil {
		return err
	}
	d.say(callWait, "attempt %d on executor 2; wait_for_file is declared repeatable", started.Attempt)
	return nil
}

// concerns reports whether an event concerns a call.
func concerns(e *schema.Event, call string) bool {
	var v struct {
		CallID string `json:"call_id"`
	}
	return json.Unmarshal(e.Data, &v) == nil && v.CallID == call
}

// await reads events until one is what is waited for.
func (d *demo) await(ctx context.Context, wanted func(*schema.Event) bool) error {
	for {
		m, err := d.events.NextMsgWithContext(ctx)
		if why := context.Cause(ctx); err != nil && why != nil {
			err = why
		}
		if err != nil {
			return err
		}
		var e schema.Event
		if err := e.Decode(m.Data); err != nil {
			return err
		}
		if wanted(&e) {
			return nil
		}
	}
}

// appears waits until a file is there in the workspace, with something in it.
func (d *demo) appears(ctx context.Context, name string) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if fi, err := os.Stat(filepath.Join(d.dir, demoWorkspace, name)); err == nil && fi.Size() > 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
