package executor

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/replay"
	"steno/schema"
)

// Headers of a request to a worker, beside [HeaderSession] and [HeaderCall]. A
// value that is not plain ASCII, or begins with a quotation mark, is a JSON string.
const (
	HeaderKey      = "Steno-Key"        // idempotency key, the same in every attempt
	HeaderAttempt  = "Steno-Attempt"    // from 1
	HeaderEpoch    = "Steno-Epoch"      // with HeaderSeq the fencing token, which grows
	HeaderSeq      = "Steno-Seq"        // number of the tool_started event
	HeaderTimeout  = "Steno-Timeout-Ms" // how long the attempt may take from now on
	HeaderActor    = "Steno-Actor"      // on whose behalf, if somebody has said it
	HeaderActorVia = "Steno-Actor-Via"  // by which door
	HeaderContext  = "Steno-Context"    // what the application says about the call: JSON
	HeaderDryRun   = "Steno-Dry-Run"    // true: change nothing, say what would be done
	HeaderResultTo = "Steno-Result-To"  // a subject that takes the answer when nobody listens for it any more
	// HeaderProgress marks an answer that is none yet: what it holds is told live.
	HeaderProgress = "Steno-Progress"
)

// Waits for workers.
const (
	workerPatience = 2 * time.Second  // for a worker to come back where there is none: nothing has run
	workerStops    = time.Second      // for the answer of one that was told to stop
	workerGrace    = 10 * time.Second // for the answer to a call of a tool whose workers are gone
	lateWait       = 15 * time.Minute
	maxLateWaits   = 256 // answers that are waited for after their calls have ended
	workerAnswers  = 64  // messages of one worker that may wait to be looked at
)

func (x *Executor) toolSubject(name string) string { return x.cfg.Prefix + ".tool." + name }

// run calls a worker.
func (w *workers) run(ctx context.Context, h *hosted, call *Invocation) (Result, error) {
	conn := w.x.cfg.Conn
	if others := w.conflict(h); others != "" {
		go w.look()
		return Result{}, schema.Errorf(schema.Unavailable, "workers disagree about what the tool is, so none was called").With("workers", others).With("ran", false).
			With("next", "stop those that have another definition, or host it under another name; see steno tool show "+h.tool.Name)
	}
	msg := &nats.Msg{Subject: w.x.toolSubject(h.tool.Name), Data: call.Args, Header: w.headers(ctx, h.tool.Name, call)}
	if n := int64(msg.Size()); n > conn.MaxPayload() {
		return Result{}, schema.Errorf(schema.PayloadTooLarge, "the call has %d bytes for a worker; the server takes %d", n, conn.MaxPayload()).With("ran", false)
	}
	in, err := w.x.answers.newInbox(workerAnswers)
	if err != nil {
		return Result{}, err
	}
	msg.Reply = in.subject
	lingers := false
	defer func() {
		if !lingers {
			in.close()
		}
	}()
	m, err := w.send(ctx, h, msg, in, call)
	switch {
	case err == nil:
		return w.answer(m, call)
	case errors.Is(err, nats.ErrNoResponders):
		go w.look()
		return Result{}, schema.Errorf(schema.Unavailable, "no worker hosts the tool now; nothing ran").With("ran", false).
			With("next", "start a worker of it, then make the call again under a new call id")
	case errors.Is(err, errGone):
		err = schema.Errorf(schema.OutcomeUnknown, "the workers of the tool are gone; whether it took effect is not known")
	case ctx.Err() == nil:
		return Result{}, err // it could not be sent
	default:
		err = ctxError(ctx)
		w.tellStop(h, call, schema.KindOf(err))
		last, cancel := context.WithTimeout(w.x.stopping, workerStops)
		defer cancel()
		if m, late := w.listen(last, in, call, nil); late == nil {
			res, said := w.answer(m, call)
			if out := (verdict{err: said}); out.genuine() {
				return res, said
			}
			return Result{}, err // it has stopped because it was told to
		}
	}
	lingers = w.linger(h, in, call)
	return Result{}, err
}

// errGone says that a tool has no workers any more.
var errGone = errors.New("its workers are gone")

// look looks for workers soon, on behalf of nobody.
func (w *workers) look() {
	if !w.x.begin(nil) {
		return
	}
	defer w.x.work.Done()
	if w.asking.TryLock() { // else somebody looks just now
		defer w.asking.Unlock()
		w.round(w.x.stopping)
	}
}

// send sends the request until somebody is there to take it, and waits for the
// answer.
func (w *workers) send(ctx context.Context, h *hosted, msg *nats.Msg, in *inbox, call *Invocation) (*nats.Msg, error) {
	end := time.Now().Add(workerPatience)
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := w.x.cfg.Conn.PublishMsg(msg); err != nil {
			return nil, unavailable("the call cannot be sent to a worker", err)
		}
		m, err := w.listen(ctx, in, call, h.gone)
		if !errors.Is(err, nats.ErrNoResponders) && !notTaken(m) || time.Now().Add(pause).After(end) {
			return m, err
		}
		select { // it may be about to start again, and nothing has run
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nats.ErrNoResponders
		}
	}
}

// notTaken reports whether a worker says that it takes no calls any more.
func notTaken(m *nats.Msg) bool {
	if m == nil || m.Header.Get(HeaderErrorKind) != string(schema.Unavailable) {
		return false
	}
	e, ok := errors.AsType[*schema.Error](schema.ParseEnvelope(m.Data))
	return ok && e.Kind == schema.Unavailable && e.Details["ran"] == false
}

// takes reports whether there is room for a message: what only tells of progress
// leaves some for the answer itself.
func (in *inbox) takes(m *nats.Msg) bool {
	return len(in.answers) < cap(in.answers)/2 || m.Header.Get(HeaderProgress) == ""
}

// listen waits for the answer, and tells what comes before it.
func (w *workers) listen(ctx context.Context, in *inbox, call *Invocation, gone <-chan struct{}) (*nats.Msg, error) {
	var grace <-chan time.Time
	for {
		select {
		case m := <-in.answers:
			switch {
			case len(m.Data) == 0 && m.Header.Get("Status") == "503":
				return nil, nats.ErrNoResponders
			case m.Header.Get(HeaderProgress) != "":
				call.Progress(strings.TrimRight(string(m.Data), "\n") + "\n")
			default:
				w.x.respond(m.Reply, reply{}, nil) // who asks whether it was heard
				return m, nil
			}
		case <-gone: // one that stops in good order may still answer
			grace, gone = time.After(w.grace), nil
		case <-grace:
			return nil, errGone
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// headers are what a worker is told of an attempt.
func (w *workers) headers(ctx context.Context, tool string, call *Invocation) nats.Header {
	h := nats.Header{}
	set := func(key, value string) { h[key] = []string{plainHeader(value)} }
	set(HeaderSession, call.Session)
	set(HeaderCall, call.CallID)
	set(HeaderKey, call.Key)
	set(HeaderAttempt, strconv.Itoa(call.Attempt))
	set(HeaderEpoch, strconv.FormatUint(call.Epoch, 10))
	set(HeaderSeq, strconv.FormatUint(call.Seq, 10))
	if end, ok := ctx.Deadline(); ok {
		set(HeaderTimeout, strconv.FormatInt(max(1, time.Until(end).Milliseconds()), 10))
	}
	if call.Actor.ID != "" {
		set(HeaderActor, call.Actor.ID)
		set(HeaderActorVia, call.Actor.Via)
	}
	if len(call.Context) > 0 {
		h[HeaderContext] = []string{asciiJSON(call.Context)}
	}
	if call.DryRun {
		set(HeaderDryRun, "true")
	}
	set(HeaderResultTo, w.x.cfg.Prefix+".v1."+resultSubject+"."+w.ticket(tool, call))
	return h
}

// plainHeader is a value as every client can read it.
func plainHeader(s string) string {
	plain := s != "" && s[0] != '"' && s == strings.TrimSpace(s)
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] < 0x7f
	}
	if plain {
		return s
	}
	quoted, _ := jsontext.AppendQuote(nil, s) // an error only says that text was replaced
	return asciiJSON(quoted)
}

// asciiJSON is JSON without characters beyond ASCII, which headers garble.
func asciiJSON(v jsontext.Value) string {
	var b strings.Builder
	for _, r := range string(v) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r < 0x10000:
			b.WriteString(`\u` + hex4(r))
		default: // in two halves
			r -= 0x10000
			b.WriteString(`\u` + hex4(0xd800+r>>10) + `\u` + hex4(0xdc00+r&0x3ff))
		}
	}
	return b.String()
}

func hex4(r rune) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", 4-len(s)) + s
}

// tellStop tells the workers of a tool that nobody waits for an attempt any more.
func (w *workers) tellStop(h *hosted, call *Invocation, why schema.Kind) {
	msg := &nats.Msg{Subject: w.x.toolSubject(h.tool.Name) + ".cancel", Data: []byte(`{"reason":"` + string(why) + `"}`), Header: nats.Header{}}
	for key, value := range map[string]string{HeaderSession: call.Session, HeaderCall: call.CallID, HeaderAttempt: strconv.Itoa(call.Attempt)} {
		msg.Header[key] = []string{value}
	}
	if err := w.x.cfg.Conn.PublishMsg(msg); err != nil {
		w.x.log.Warn("a worker could not be told to stop", "session", call.Session, "call", call.CallID, "err", err)
	}
}

// linger waits for the answer to an attempt that has ended without: a late
// result, which goes to whoever holds the session then. False: too many are
// waited for.
func (w *workers) linger(h *hosted, in *inbox, call *Invocation) bool {
	select {
	case w.late <- struct{}{}:
	default:
		return false
	}
	if !w.x.begin(nil) {
		<-w.late
		return false
	}
	began := time.Now()
	go func() {
		defer w.x.work.Done()
		defer func() { <-w.late }()
		defer in.close()
		ctx, cancel := context.WithTimeout(w.x.stopping, lateWait)
		defer cancel()
		silent := *call
		silent.says = nil // nobody is told any more
		m, err := w.listen(ctx, in, &silent, nil)
		if err != nil {
			return
		}
		res, err := w.answer(m, call)
		if err == nil {
			err = w.sound(h.tool.Name, &res, call.DryRun)
		}
		req := &Request{CallID: call.CallID, Name: h.tool.Name, DryRun: call.DryRun}
		a := replay.Attempt{Attempt: uint64(call.Attempt), Seq: call.Seq, Epoch: call.Epoch}
		s := call.of
		if now, lost := w.x.held(ctx, s.id); lost == nil {
			defer now.leave()
			if now == s { // with all that it has said
				s.late(req, a, time.Since(began), res, err)
				return
			}
		}
		out := s.verdict(res, err)
		out.duration = time.Since(began)
		s.deliver(req, a, out)
	}()
	return true
}

// workerAnswer is what a worker answers.
type workerAnswer struct {
	OK           *bool             `json:"ok"`
	Output       string            `json:"output"`
	ExitCode     *int              `json:"exit_code,omitzero"`
	Summary      string            `json:"summary,omitzero"`
	Content      jsontext.Value    `json:"content,omitzero"`
	Structured   jsontext.Value    `json:"structured,omitzero"`
	Artifacts    jsontext.Value    `json:"artifacts,omitzero"`
	FilesRead    []string          `json:"files_read,omitempty"`
	FilesChanged []string          `json:"files_changed,omitempty"`
	Terminate    bool              `json:"terminate,omitzero"`
	Error        *schema.ErrorBody `json:"error,omitzero"`
}

// answer reads what a worker has answered.
func (w *workers) answer(m *nats.Msg, call *Invocation) (Result, error) {
	res, why, err := readAnswer(m)
	if why != "" {
		// As of any tool that fails unexpectedly the model sees the class only.
		w.x.log.Error("a worker failed unexpectedly", "session", call.Session, "call", call.CallID, "subject", m.Subject, "err", why)
	}
	return res, err
}

var errNoResult = errors.New("the answer of a worker is no result")

// readAnswer reads the answer of a worker: a result, or an error that it
// declares. cause is for operators.
func readAnswer(m *nats.Msg) (res Result, cause string, err error) {
	code := m.Header.Get(micro.ErrorCodeHeader)
	if code != "" {
		if err := schema.ParseEnvelope(m.Data); err != nil {
			return Result{}, "", err
		}
		return Result{}, m.Header.Get(micro.ErrorHeader), schema.Errorf(schema.ToolFailed, "the worker failed unexpectedly").With("class", "worker").With("code", shorten(code, 64))
	}
	bad := func(why string) (Result, string, error) {
		return Result{}, "", schema.Errorf(schema.ToolFailed, "the worker answered, and its answer is no result: %s", why).
			With("next", "look whether the tool took effect; the worker answers with one JSON object that has ok and output").Cause(errNoResult)
	}
	sound, replaced, err := schema.Compact(nil, m.Data, 1)
	switch {
	case err != nil:
		return bad(schema.AsError(err).Message)
	case sound[0] != '{':
		return bad("it is no object")
	}
	var a workerAnswer
	if err := json.Unmarshal(sound, &a, jsontext.AllowInvalidUTF8(true)); err != nil {
		where := ""
		if e, ok := errors.AsType[*json.SemanticError](err); ok {
			where = " at " + shorten(string(e.JSONPointer), maxShown)
		}
		return bad("it does not have the form of one" + where)
	}
	switch {
	case a.Error != nil && a.Error.Kind != "":
		return Result{}, "", a.Error.Err()
	case a.Error != nil:
		return bad("its error has no kind")
	case a.OK == nil:
		return bad("it has no ok")
	}
	for _, v := range []*jsontext.Value{&a.Content, &a.Structured, &a.Artifacts} {
		if v.Kind() == 'n' {
			*v = nil
		}
	}
	return Result{OK: *a.OK, Output: a.Output, ExitCode: a.ExitCode, Summary: a.Summary, Content: a.Content, Structured: a.Structured, Artifacts: a.Artifacts,
		FilesRead: a.FilesRead, FilesChanged: a.FilesChanged, Terminate: a.Terminate, replaced: replaced}, "", nil
}

// sound says whether a result that comes late is what its tool declares, if the
// tool is still known.
func (w *workers) sound(tool string, res *Result, dryRun bool) error {
	e, err := w.x.cfg.Tools.lookup(tool)
	if err != nil {
		return nil
	}
	return e.sound(res, dryRun)
}

// A ticket is what a worker shows to have a result recorded that nobody waits
// for: the attempt, and a keyed hash of it that only executors of the store can
// make.
type ticket struct {
	Session string `json:"s"`
	CallID  string `json:"c"`
	Attempt uint64 `json:"a"`
	Epoch   uint64 `json:"e"`
	Seq     uint64 `json:"q"`
	Tool    string `json:"t"`
	DryRun  bool   `json:"d,omitzero"`
}

func (w *workers) ticket(tool string, call *Invocation) string {
	text := asJSON(ticket{call.Session, call.CallID, uint64(call.Attempt), call.Epoch, call.Seq, tool, call.DryRun})
	return base64.RawURLEncoding.EncodeToString(append(w.mac(text), text...))
}

const macSize = 16

func (w *workers) mac(text []byte) []byte {
	h := hmac.New(sha256.New, w.secret)
	h.Write([]byte("the result of an attempt\n"))
	h.Write(text)
	return h.Sum(nil)[:macSize]
}

// resultSubject is where tickets are shown.
const resultSubject = "calls.result"

var (
	workerVerb      = verb{resultSubject, (*Executor).runWorkerResult, false, ofWrites}
	workerEndpoints = []endpoint{{"calls-result", workerVerb.name + ".*", workerSchema, endAnswerSchema, workerVerb, false}}
)

const workerSchema = `{"type":"object","required":["ok"],"properties":{"ok":{"type":"boolean"},"output":{"type":"string"},"error":{"type":"object"}}}`

// runWorkerResult takes the answer of a worker whose executor does not listen for
// it any more: the subject has the ticket of the attempt.
func (x *Executor) runWorkerResult(ctx context.Context, shown string, payload []byte, _ bool) (reply, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(shown)
	var t ticket
	if err != nil || len(b) <= macSize || x.workers == nil || !hmac.Equal(b[:macSize], x.workers.mac(b[macSize:])) || schema.Unmarshal(b[macSize:], &t) != nil {
		return reply{}, schema.Errorf(schema.NotAuthenticated, "this is no ticket for a late result of this store").
			With("next", "send the answer to the subject that stands in "+HeaderResultTo+" of the request")
	}
	res, _, err := readAnswer(&nats.Msg{Data: payload})
	if errors.Is(err, errNoResult) {
		return reply{}, schema.Errorf(schema.InvalidArgs, "%s", schema.AsError(err).Message).With("session", t.Session).With("call_id", t.CallID)
	}
	if err == nil {
		err = x.workers.sound(t.Tool, &res, t.DryRun)
	}
	out := verdict{result: res}
	if err != nil {
		out.err = schema.AsError(err).With("session", t.Session)
	}
	if !out.genuine() {
		return reply{}, schema.Errorf(schema.InvalidArgs, "this is no late result: it leaves the outcome open").With("session", t.Session).With("call_id", t.CallID)
	}
	x.inspect(&out)
	data := out.inline(&Request{CallID: t.CallID}, t.Attempt)
	body, err := encode(lateResult{t.Session, t.CallID, t.Attempt, t.Epoch, t.Seq, bytes.Clone(data)})
	if err != nil {
		return reply{}, err
	}
	return x.route(ctx, resultVerb, t.Session, body, 0, false)
}
