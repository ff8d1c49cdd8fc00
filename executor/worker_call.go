package executor

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

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
