package executor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/journal"
	"steno/schema"
)

// recordingEndpoints are what a recording answers; all else is a miss.
var recordingEndpoints = []endpoint{
	{firstEndpoint, "call.*", callSchema, resultSchema, verb{}, false},
	{"calls-list", "calls.list", callsSchema, callsAnswerSchema, verb{}, false},
	{"calls-get", "calls.get", waitSchema, callAnswerSchema, verb{}, false},
	{"calls-wait", "calls.wait", waitSchema, resultSchema, verb{}, false},
	{"calls-cancel", "calls.cancel", cancelSchema, resultSchema, verb{}, false},
	{"calls-resolve", "calls.resolve", resolveSchema, resultSchema, verb{}, false},
	{"session-open", "session.open", openSchema, openAnswerSchema, verb{}, false},
	{"session-get", "session.get", sessionSchema, getSchema, verb{}, false},
	{"session-list", "session.list", listSchema, listAnswerSchema, verb{}, false},
	{"session-tools", "session.tools", toolsSchema, toolsAnswerSchema, verb{}, false},
	{"session-resume", "session.resume", resumeSchema, resumeAnswerSchema, verb{}, false},
	{"session-phase", "session.phase", phaseSchema, phaseAnswerSchema, verb{}, false},
	{"session-posture", "session.posture", postureSchema, postureAnswerSchema, verb{}, false},
	{"session-append", "session.append", appendSchema, appendAnswerSchema, verb{}, false},
	{"session-end", "session.end", endSchema, endAnswerSchema, verb{}, false},
}

// Serve answers at the subjects of executors, until stop. Nothing else may serve
// behind the prefix: a call could reach it. Calls of the queue are taken too, as
// its stream would, and their results are there for calls.wait.
func (r *Recording) Serve(conn *nats.Conn, subjectPrefix string) (stop func() error, err error) {
	p, err := prefix(subjectPrefix)
	if err != nil {
		return nil, err
	}
	svc, err := micro.AddService(conn, micro.Config{Name: "steno", Version: Version, Description: "answers from the record of a session",
		Metadata: map[string]string{"store": r.store.ID(), "recording": r.session, "prefix": p}})
	if err != nil {
		return nil, unavailable("the service cannot be registered", err)
	}
	failed := func(err error) (func() error, error) {
		return nil, errors.Join(unavailable("an endpoint cannot be registered", err), svc.Stop())
	}
	ctx, cancel := context.WithCancel(context.Background()) // of readings of the record
	for _, e := range recordingEndpoints {
		handler := micro.HandlerFunc(func(m micro.Request) { r.respond(ctx, conn, p, m.Subject(), m.Reply(), m.Data()) })
		err := svc.AddEndpoint(e.name, handler, micro.WithEndpointSubject(p+".v1."+e.subject),
			micro.WithEndpointMetadata(map[string]string{"request": e.request, "answer": e.answer, "errors": errorSchema}))
		if err != nil {
			cancel()
			return failed(err)
		}
	}
	// All else is a miss, and no silence.
	sub, err := conn.Subscribe(p+".v1.>", func(m *nats.Msg) {
		if !served(strings.TrimPrefix(m.Subject, p+".v1.")) {
			r.respond(ctx, conn, p, m.Subject, m.Reply, m.Data)
		}
	})
	if err != nil {
		cancel()
		return failed(err)
	}
	return func() error { cancel(); return errors.Join(sub.Unsubscribe(), svc.Stop()) }, nil
}

// served reports whether an endpoint answers a subject.
func served(subject string) bool {
	if session, ok := strings.CutPrefix(subject, "call."); ok {
		return !strings.Contains(session, ".")
	}
	return slices.ContainsFunc(recordingEndpoints, func(e endpoint) bool { return e.subject == subject })
}

// respond answers a request, not by the methods of micro: those write what the
// service reads for its statistics.
func (r *Recording) respond(ctx context.Context, conn *nats.Conn, p, subject, to string, payload []byte) {
	if to == "" || to[0] == '$' || strings.HasPrefix(to, p+".v1.") {
		return
	}
	msg := &nats.Msg{Subject: to, Header: nats.Header{}}
	verb := strings.TrimPrefix(subject, p+".v1.")
	data, err := r.handle(ctx, verb, payload)
	if msg.Data = data; err != nil {
		msg.Data, _ = r.redact.JSON(schema.Envelope(err), "", nil)
		if strings.HasPrefix(verb, "queue.") { // as a stream refuses
			why := schema.AsError(err)
			msg.Data, _ = encode(map[string]any{"error": map[string]any{"code": why.Kind.Info().Status, "description": string(why.Kind) + ": " + why.Message}})
		}
		failure(msg, schema.AsError(err))
	}
	msg.Header.Set(HeaderSession, r.session)
	msg.Header.Set(HeaderHead, r.state.Head.String())
	_ = conn.PublishMsg(msg) // the request is repeated, or nobody waits
}

func (r *Recording) handle(ctx context.Context, verb string, payload []byte) ([]byte, error) {
	by, to, _ := strings.Cut(verb, ".")
	switch {
	case (by == "call" || by == "queue") && !strings.Contains(to, "."):
		if to != r.session {
			return nil, notFound(to)
		}
		a, err := r.answer(payload)
		if err == nil && by == "queue" {
			return encode(map[string]any{"stream": StreamQueue, "seq": 1})
		}
		return a.Data, err
	case !served(verb):
		r.mu.Lock()
		defer r.mu.Unlock()
		return nil, r.diverge("a recording does not answer "+verb, verb, nil)
	case verb == "session.list":
		return r.list(payload)
	}
	session, err := sessionOf(payload)
	if err == nil && session != r.session {
		err = notFound(session)
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told(ctx, verb, payload)
}

// told answers what is about the session. The caller holds mu.
func (r *Recording) told(ctx context.Context, verb string, payload []byte) ([]byte, error) {
	switch verb {
	case "session.open":
		var req OpenRequest
		if _, err := door(payload, &req, levelData); err != nil {
			return nil, err
		}
		sum := summaryOf(r.session, r.state)
		return encode(OpenAnswer{OK: true, Session: r.session, Workspace: sum.Workspace, Head: sum.Head})
	case "session.get":
		st, err := r.now(ctx, nil)
		if err != nil {
			return nil, err
		}
		return encode(summaryOf(r.session, st))
	case "session.tools":
		var req ToolsRequest
		if _, err := door(payload, &req, levelData); err != nil {
			return nil, err
		}
		return r.listTools(ctx, req)
	case "session.resume":
		var req ResumeRequest
		if _, err := door(payload, &req, levelData); err != nil {
			return nil, err
		}
		return r.resume(ctx, req)
	case "session.phase", "session.posture":
		return r.changed(ctx, verb, payload)
	case "session.append":
		return r.append(payload)
	case "session.end":
		return r.end(payload)
	case "calls.list", "calls.get":
		return r.look(ctx, verb, payload)
	}
	return r.settled(verb, payload)
}

// list is the one session that there is.
func (r *Recording) list(payload []byte) ([]byte, error) {
	var req ListRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	a := ListAnswer{OK: true, Sessions: []SessionInfo{}}
	switch {
	case r.session <= req.After:
	case req.IDs:
		a.IDs = []string{r.session}
	default:
		a.Sessions = append(a.Sessions, SessionInfo{Session: r.session, Lease: "active", Epoch: r.state.Head.Epoch})
	}
	return encode(a)
}

// look lists the calls that the run has come to, or shows one of them. The caller
// holds mu.
func (r *Recording) look(ctx context.Context, verb string, payload []byte) ([]byte, error) {
	if verb == "calls.list" {
		var req CallsRequest
		if _, err := door(payload, &req, levelData); err != nil {
			return nil, err
		}
		if err := req.check(); err != nil {
			return nil, err
		}
		st, err := r.now(ctx, nil)
		if err != nil {
			return nil, err
		}
		return encode(callsIn(st, req))
	}
	var req CallRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	if err := schema.CheckCallID(req.CallID); err != nil {
		return nil, err
	}
	id := req.CallID
	if c := r.named[id]; c != nil {
		id = c.ID
	}
	a := CallAnswer{OK: true, Session: r.session, Events: []jsontext.Value{}}
	st, err := r.now(ctx, func(it journal.Item) { a.see(it, id) })
	if err == nil {
		err = a.tell(st, id)
	}
	if err == nil {
		err = a.fit()
	}
	if err != nil {
		return nil, err
	}
	return encode(a)
}

// settled gives the recorded result of a call that is waited for, cancelled or
// resolved. The caller holds mu.
func (r *Recording) settled(verb string, payload []byte) ([]byte, error) {
	var id string
	var err error
	switch verb {
	case "calls.cancel":
		var req CancelRequest
		_, err = door(payload, &req, levelData)
		id = req.CallID
	case "calls.resolve":
		var req ResolveRequest
		_, err = door(payload, &req, levelData)
		id = req.CallID
	default:
		var req CallRequest
		_, err = door(payload, &req, levelData)
		id = req.CallID
	}
	if err != nil {
		return nil, err
	}
	for _, c := range r.calls {
		if (c.ID == id || c == r.named[id]) && c.result != nil {
			return c.give(id)
		}
	}
	return nil, r.diverge("the record has no result of it", id, nil).With("call_id", id)
}

// changed answers a change of the phase or the posture. The caller holds mu.
func (r *Recording) changed(ctx context.Context, verb string, payload []byte) ([]byte, error) {
	st, err := r.now(ctx, nil)
	if err != nil {
		return nil, err
	}
	if verb == "session.phase" {
		var req PhaseRequest
		if _, err := door(payload, &req, levelData); err != nil {
			return nil, err
		}
		c, err := r.change(st, schema.TypePhaseChanged, req.Phase, req.TaskKind, st.Phase)
		if err != nil {
			return nil, err
		}
		a := PhaseAnswer{OK: true, Phase: st.Phase, TaskKind: st.TaskKind, Head: st.Head.String()}
		if c != nil {
			if a.Phase, a.Changed, a.Head = c.to, true, c.head.String(); c.task != "" {
				a.TaskKind = c.task
			}
		}
		return encode(a)
	}
	var req PostureRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	a := PostureAnswer{OK: true, Head: st.Head.String()}
	if st.Posture != nil {
		a.Mode, a.PolicyHash = st.Posture.Mode, st.Posture.PolicyHash
	}
	c, err := r.change(st, schema.TypePostureChanged, req.Mode, "", a.Mode)
	if err != nil {
		return nil, err
	}
	if c != nil {
		a.Mode, a.PolicyHash, a.Changed, a.Head = c.to, c.hash, true, c.head.String()
	}
	return encode(a)
}

// append says of events that are the recorded ones where they stand. The caller
// holds mu.
func (r *Recording) append(payload []byte) ([]byte, error) {
	var req AppendRequest
	if _, err := door(payload, &req, levelBatch); err != nil {
		return nil, err
	}
	entries, err := req.entries(false)
	if err != nil {
		return nil, err
	}
	a := AppendAnswer{OK: true, Head: r.state.Head.String()}
	next := r.appended
	for _, e := range entries {
		id := e.ID.String()
		i := slices.IndexFunc(r.events, func(x recordedEvent) bool { return x.id == id })
		if n, ok := r.noted[id]; i < 0 && ok { // it is asked for again
			i = n
		} else if i < 0 {
			if i = next; next < r.given && !r.events[i].is(e) { // nobody need say what a resume has told
				i = r.given
			}
			next = min(i+1, len(r.events))
		} else {
			next = max(next, i+1)
		}
		asked := e.Type + " " + shorten(string(e.Data), 1<<10)
		if i == len(r.events) {
			return nil, r.diverge("the record has no more events", asked, nil)
		}
		x := &r.events[i]
		if !x.is(e) {
			return nil, r.diverge("the record has another event here", asked, nil).With("recorded", x.typ+" "+shorten(string(x.data), 1<<10)).With("seq", x.seq)
		}
		r.noted[id] = i
		a.Events = append(a.Events, Appended{x.id, x.seq, x.typ, x.sum})
	}
	r.appended = next
	return encode(a)
}

func (r *Recording) end(payload []byte) ([]byte, error) {
	var req EndRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return nil, err
	}
	if is := r.state.Ended; is == nil || is.Outcome != req.Outcome || is.Reason != req.Reason {
		recorded := "no end"
		if is != nil {
			recorded = is.Outcome + " " + is.Reason
		}
		return nil, r.diverge("the session ended otherwise", req.Outcome+" "+req.Reason, nil).With("recorded", recorded)
	}
	r.ended = true
	return encode(EndAnswer{OK: true, Seq: r.state.Ended.Seq, Head: r.state.Head.String()})
}
