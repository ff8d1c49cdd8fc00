package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// HostOptions say how tools are hosted. The zero value is sensible.
type HostOptions struct {
	Prefix   string       // of the executors; "steno" if empty
	Name     string       // of the service; "worker" if empty. Executors are called steno
	MaxCalls int          // that run side by side; more wait. 8 if zero
	Logger   *slog.Logger // slog.Default if nil
}

// A Worker runs tools for the executors of a server, which journal
// the calls.
type Worker struct {
	conn    *nats.Conn
	log     *slog.Logger
	service micro.Service
	cancels []*nats.Subscription
	slots   chan struct{}
	work    sync.WaitGroup
	ctx     context.Context // ends what runs
	cancel  context.CancelFunc

	mu      sync.Mutex                    // guards the rest
	runs    map[string]context.CancelFunc // attempts that are at work
	stopped bool
}

// HostTools makes a worker of this process: executors with [Config.Workers] find
// these tools on conn and call them, until [Worker.Stop]. Several processes may host
// the same tool, with the same definition; they share the calls.
//
// A tool is called with arguments that its executor has validated, once for each
// attempt. Its Run gets what executors tell: session, call, key, attempt, token,
// actor, context and deadline, and [Invocation.Progress] reaches whoever listens to the
// session. It has no workspace and no working state. Its answer must fit into a
// message of the server, 1 MiB as a rule. What it says of itself beyond its name,
// description, schemas and timeout counts for nothing: the operator of the
// executor says that, in tools.yaml.
//
// A result that nobody waits for any more, as the call has had its time, or the
// executor is dead, is brought to whoever has the session.
//
// InvalidConfig: a tool cannot be registered, or has what only an executor can
// use: Bind, Check, Available, Paths, Program, Escalates or Phases. Unavailable: the server takes
// no subscription.
func HostTools(conn *nats.Conn, o HostOptions, tools ...Tool) (*Worker, error) {
	p, err := prefix(o.Prefix)
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "worker"
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = 8
	}
	if o.Name == serviceName || !schema.ValidSession(o.Name) || o.MaxCalls < 0 || len(tools) == 0 {
		return nil, schema.Errorf(schema.InvalidConfig, "a worker has tools, a limit on calls that is not negative, and a name of A-Z a-z 0-9 _ - that is not steno")
	}
	reg, err := NewRegistry(tools...)
	if err != nil {
		return nil, err
	}
	h := &Worker{conn: conn, log: o.Logger, slots: make(chan struct{}, o.MaxCalls), runs: map[string]context.CancelFunc{}}
	if h.log == nil {
		h.log = slog.Default()
	}
	var defs []string
	for _, t := range tools {
		if t.Bind != nil || t.Check != nil || t.Available != nil || t.Paths != nil || t.Program != nil || t.Escalates || t.Phases != nil {
			return nil, badTool(t, "a worker cannot have Bind, Check, Available, Paths, Program, Escalates or Phases")
		}
		b, err := json.Marshal(definition{t.Name, t.Description, t.Input, t.Output, t.Timeout.Milliseconds(),
			&workerHints{t.ReadOnly, t.destructive(), t.idempotent(), t.openWorld()}}, json.Deterministic(true))
		if err != nil || len(b) > maxDefinition {
			return nil, badTool(t, fmt.Sprintf("its definition must be JSON of at most %d bytes", maxDefinition)).Cause(err)
		}
		defs = append(defs, string(b))
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	failed := func(err error) (*Worker, error) {
		h.cancel()
		return nil, errors.Join(unavailable("the tools cannot be hosted", err), h.leave())
	}
	if h.service, err = micro.AddService(conn, micro.Config{Name: o.Name, Version: Version, Description: "hosts tools"}); err != nil {
		return failed(err)
	}
	for i, t := range tools {
		subject := p + ".tool." + t.Name
		sub, err := conn.Subscribe(subject+".cancel", h.stopRun)
		if err != nil {
			return failed(err)
		}
		h.cancels = append(h.cancels, sub)
		t, _ := reg.lookup(t.Name)
		if err := h.service.AddEndpoint(t.tool.Name, h.handler(t.tool), micro.WithEndpointSubject(subject),
			micro.WithEndpointMetadata(map[string]string{MetadataTool: defs[i]})); err != nil {
			return failed(err)
		}
	}
	if err := conn.FlushTimeout(5 * time.Second); err != nil {
		return failed(err)
	}
	return h, nil
}

// leave takes no more calls.
func (h *Worker) leave() error {
	var errs []error
	if h.service != nil {
		errs = append(errs, h.service.Stop())
	}
	for _, sub := range h.cancels {
		errs = append(errs, sub.Unsubscribe())
	}
	return errors.Join(errs...)
}

// Stop takes no more calls and returns when those that run have ended and their
// answers are brought; when ctx ends they are told to stop. It is called once, and
// does not close the connection.
func (h *Worker) Stop(ctx context.Context) error {
	err := h.service.Stop()
	if h.conn.IsConnected() {
		err = errors.Join(err, h.conn.FlushTimeout(heardWait)) // what the server has sent is here
	}
	h.mu.Lock()
	h.stopped = true
	h.mu.Unlock()
	done := make(chan struct{})
	go func() { h.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		h.cancel()
		<-done
	}
	h.cancel()
	for _, sub := range h.cancels {
		if e := sub.Unsubscribe(); !errors.Is(e, nats.ErrConnectionClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func attemptKey(h nats.Header) string {
	return h.Get(HeaderSession) + " " + h.Get(HeaderCall) + " " + h.Get(HeaderAttempt)
}

// stopRun ends an attempt that nobody waits for any more, if it runs here.
func (h *Worker) stopRun(m *nats.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if stop := h.runs[attemptKey(m.Header)]; stop != nil {
		stop()
	}
}

func (h *Worker) handler(t Tool) micro.HandlerFunc {
	return func(r micro.Request) {
		header := nats.Header(r.Headers())
		call, err := readInvocation(header, r.Data())
		if err != nil || r.Reply() == "" {
			_ = r.Error("400", "this is no call of an executor", nil)
			return
		}
		limit := DefaultTimeout
		if ms, err := strconv.ParseInt(header.Get(HeaderTimeout), 10, 64); err == nil && ms > 0 {
			limit = min(time.Duration(min(ms, commandMax.Milliseconds()))*time.Millisecond, commandMax) + commandRoom
		}
		key := attemptKey(header)
		ctx, cancel := context.WithTimeout(h.ctx, limit)
		h.mu.Lock()
		stopped := h.stopped
		if !stopped {
			h.runs[key] = cancel
			h.work.Add(1)
		}
		h.mu.Unlock()
		if stopped {
			cancel()
			_ = h.conn.PublishMsg(refusal(r.Reply(), "the worker is stopping"))
			return
		}
		call.tell = func(text string) {
			_ = h.conn.PublishMsg(&nats.Msg{Subject: r.Reply(), Data: []byte(text), Header: nats.Header{HeaderProgress: {"1"}}}) // nobody waits for it
		}
		call.log = h.log
		go func() { // micro runs one handler at a time
			defer h.work.Done()
			var msg *nats.Msg
			select {
			case h.slots <- struct{}{}:
				if ctx.Err() == nil {
					msg = h.outcome(ctx, t, call)
				}
				<-h.slots
			case <-ctx.Done():
			}
			if msg == nil {
				msg = refusal(r.Reply(), "the attempt was over before the worker had room for it")
			}
			h.mu.Lock()
			delete(h.runs, key)
			h.mu.Unlock()
			cancel()
			h.bring(msg, r.Reply(), header.Get(HeaderResultTo), call)
		}()
	}
}

// refusal is the answer to an attempt that is not made.
func refusal(to, why string) *nats.Msg {
	e := schema.Errorf(schema.Unavailable, "%s; nothing ran", why).With("ran", false)
	msg := &nats.Msg{Subject: to, Data: schema.Envelope(e), Header: nats.Header{}}
	failure(msg, e)
	return msg
}

// readInvocation reads what an executor tells of an attempt.
func readInvocation(h nats.Header, args []byte) (*Invocation, error) {
	call := &Invocation{Session: h.Get(HeaderSession), CallID: h.Get(HeaderCall), Args: args, DryRun: h.Get(HeaderDryRun) == "true"}
	if err := errors.Join(schema.CheckSession(call.Session), schema.CheckCallID(call.CallID)); err != nil {
		return nil, err
	}
	var errs []error
	text := func(key string, to *string) {
		if *to = h.Get(key); strings.HasPrefix(*to, `"`) {
			errs = append(errs, json.Unmarshal([]byte(*to), to))
		}
	}
	number := func(key string) uint64 {
		n, err := strconv.ParseUint(h.Get(key), 10, 63)
		errs = append(errs, err)
		return n
	}
	text(HeaderKey, &call.Key)
	text(HeaderActor, &call.Actor.ID)
	text(HeaderActorVia, &call.Actor.Via)
	call.Attempt, call.Epoch, call.Seq = int(number(HeaderAttempt)), number(HeaderEpoch), number(HeaderSeq)
	if c := h.Get(HeaderContext); c != "" {
		call.Context = jsontext.Value(c)
		if !call.Context.IsValid() {
			errs = append(errs, errors.New("the context is no JSON"))
		}
	}
	return call, errors.Join(errs...)
}

// outcome runs a tool, and makes the answer of what becomes of it.
func (h *Worker) outcome(ctx context.Context, t Tool, call *Invocation) (msg *nats.Msg) {
	unexpected := func(class, cause string) *nats.Msg {
		return &nats.Msg{Header: nats.Header{micro.ErrorCodeHeader: {"500"}, micro.ErrorHeader: {oneLine(class + ": " + cause)}}}
	}
	defer func() {
		if p := recover(); p != nil {
			h.log.Error("a tool panicked", "session", call.Session, "call", call.CallID, "tool", t.Name, "panic", p, "stack", string(debug.Stack()))
			msg = unexpected("panic", fmt.Sprint(p))
		}
	}()
	res, err := t.Run(ctx, call)
	var declared *schema.Error
	switch {
	case err == nil:
	case errors.As(err, &declared):
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		declared = schema.AsError(err)
	default:
		h.log.Error("a tool failed unexpectedly", "session", call.Session, "call", call.CallID, "tool", t.Name, "err", err)
		return unexpected(fmt.Sprintf("%T", err), err.Error())
	}
	var data []byte
	if declared == nil {
		if data, err = hostAnswer(res); err != nil {
			declared = schema.Errorf(schema.ToolFailed, "the tool ran, and its answer is no JSON").Cause(err)
		} else if most := h.conn.MaxPayload() - 4<<10; int64(len(data)) > most {
			declared = schema.Errorf(schema.PayloadTooLarge, "the tool ran, and its answer has %d bytes; %d are the most", len(data), most)
		}
	}
	if declared == nil {
		return &nats.Msg{Data: data, Header: nats.Header{}}
	}
	msg = &nats.Msg{Data: schema.Envelope(declared), Header: nats.Header{}}
	failure(msg, declared)
	return msg
}

// hostAnswer is a result as executors read it.
func hostAnswer(r Result) ([]byte, error) {
	a := workerAnswer{OK: &r.OK, Output: r.Output, ExitCode: r.ExitCode, Summary: r.Summary, Content: r.Content, Structured: r.Structured, Artifacts: r.Artifacts,
		FilesRead: r.FilesRead, FilesChanged: r.FilesChanged, Terminate: r.Terminate}
	return json.Marshal(a, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

// oneLine is text as it may stand in a header.
func oneLine(s string) string {
	s, _ = schema.Truncate(strings.ToValidUTF8(s, "\uFFFD"), 1<<10)
	return strings.Join(strings.Fields(s), " ")
}

// Tries to bring an answer to somebody.
const (
	heardWait  = 2 * time.Second
	bringFirst = 100 * time.Millisecond
	bringMost  = 30 * time.Second
	bringTries = 30
)

// bring answers, and where nobody hears it brings the result to whoever has the
// session now.
func (h *Worker) bring(msg *nats.Msg, reply, late string, call *Invocation) {
	msg.Subject = reply
	if _, err := h.conn.RequestMsg(msg, heardWait); err == nil {
		return
	}
	if h.conn.IsClosed() || late == "" || !genuineAnswer(msg) {
		return
	}
	pause := bringFirst
	for range bringTries {
		m, err := h.conn.Request(late, lateBody(msg), heardWait)
		if err == nil {
			if kind := schema.Kind(m.Header.Get(HeaderErrorKind)); kind == "" {
				h.log.Info("a late result was delivered", "session", call.Session, "call", call.CallID)
				return
			} else if !kind.Info().Retry {
				h.log.Warn("a late result was refused", "session", call.Session, "call", call.CallID, "kind", kind)
				return
			}
		}
		select {
		case <-time.After(pause):
		case <-h.ctx.Done():
			return
		}
		pause = min(2*pause, bringMost)
	}
	h.log.Warn("a late result was not delivered", "session", call.Session, "call", call.CallID)
}

// genuineAnswer reports whether an answer says what became of the call.
func genuineAnswer(msg *nats.Msg) bool {
	k := schema.Kind(msg.Header.Get(HeaderErrorKind))
	return k != schema.Timeout && k != schema.Cancelled
}

// lateBody is an answer without headers.
func lateBody(msg *nats.Msg) []byte {
	if len(msg.Data) > 0 {
		return msg.Data
	}
	return schema.Envelope(schema.Errorf(schema.ToolFailed, "the worker failed unexpectedly").With("class", "worker"))
}
