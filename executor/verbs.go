package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// door reads the JSON of a request and counts the characters that it has to
// replace. level is how deep the request would stand in a line: what is
// recorded of it may nest as deep as a line may.
func door(payload []byte, into any, level int) (replaced int, err error) {
	if len(payload) > maxPayload {
		return 0, schema.Errorf(schema.PayloadTooLarge, "the request has %d bytes; the limit is %d", len(payload), maxPayload)
	}
	if len(payload) == 0 {
		payload = []byte("{}")
	}
	text, replaced, err := schema.Compact(nil, payload, level)
	if err != nil {
		return 0, err
	}
	if text[0] != '{' {
		return 0, schema.Errorf(schema.InvalidArgs, "the request is not an object")
	}
	return replaced, strict(text, into)
}

// strict reads a request. A key that is not known is refused: a misspelt
// dry_run must not run the tool.
func strict(text []byte, into any) error {
	err := json.Unmarshal(text, into, json.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true))
	if err == nil {
		return nil
	}
	e := schema.Errorf(schema.InvalidArgs, "the request does not have the form of its schema").Cause(err)
	if s, ok := errors.AsType[*json.SemanticError](err); ok {
		e.With("pointer", shorten(string(s.JSONPointer), maxShown))
		if errors.Is(err, json.ErrUnknownName) {
			e.Message = "the request has a key that is not known"
		}
	}
	return e
}

// maxPayload bounds a request that is no call. Each line that it becomes has its
// own limit.
const maxPayload = 1 << 20

// Levels of requests: labels, a key of data, are a key of their request; the
// data of an event lies in an object of a list of its request, and that of a late
// result is a key of it, as in its line.
const (
	levelLate  = 0
	levelData  = 1
	levelBatch = -2
)

// sessionOf is the session that a request names in its body.
func sessionOf(payload []byte) (string, error) {
	var v struct {
		Session string `json:"session"`
	}
	text, _, err := schema.Compact(nil, payload, levelBatch)
	if err != nil || len(payload) > maxPayload {
		_, err = door(payload, &v, levelBatch) // says why
		return "", err
	}
	return v.Session, schema.Unmarshal(text, &v) // the verb looks at the rest
}

var (
	openVerb = verb{"open", (*Executor).runOpen, false, ofWrites}
	getVerb  = verb{"get", (*Executor).runGet, false, ofLooks}
	listVerb = verb{"list", (*Executor).runList, false, ofLooks}
	endVerb  = verb{"end", (*Executor).runEnd, true, ofWrites}
)

var sessionEndpoints = []endpoint{
	{"session-open", "session.open", openSchema, openAnswerSchema, openVerb, false},
	{"session-get", "session.get", sessionSchema, getSchema, getVerb, false},
	{"session-tools", "session.tools", toolsSchema, toolsAnswerSchema, toolsVerb, false},
	{"session-list", "session.list", listSchema, listAnswerSchema, listVerb, false},
	{"session-phase", "session.phase", phaseSchema, phaseAnswerSchema, phaseVerb, false},
	{"session-posture", "session.posture", postureSchema, postureAnswerSchema, postureVerb, false},
	{"session-fork", "session.fork", forkSchema, forkAnswerSchema, forkVerb, false},
	{"session-end", "session.end", endSchema, endAnswerSchema, endVerb, false},
	{"to-get", "get.*", sessionSchema, getSchema, getVerb, true},
	{"to-phase", "phase.*", phaseSchema, phaseAnswerSchema, phaseVerb, true},
	{"to-posture", "posture.*", postureSchema, postureAnswerSchema, postureVerb, true},
	{"to-tools", "tools.*", toolsSchema, toolsAnswerSchema, toolsVerb, true},
	{"to-end", "end.*", endSchema, endAnswerSchema, endVerb, true},
}

// runOpen makes a session, or tells of one that is there.
func (x *Executor) runOpen(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req OpenRequest
	var err error
	if req.replaced, err = door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	a, head, err := x.open(ctx, req)
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, a.Session, head)
}

func (x *Executor) open(ctx context.Context, req OpenRequest) (OpenAnswer, schema.Head, error) {
	fail := func(err error) (OpenAnswer, schema.Head, error) { return OpenAnswer{}, schema.Head{}, err }
	if req.Session == "" {
		// No id is handed out for what cannot be kept.
		if err := x.cfg.Store.Writable(ctx); err != nil {
			x.lookAgain()
			return fail(err)
		}
		req.Session = journal.NewID().String()
	}
	if err := schema.CheckSession(req.Session); err != nil {
		return fail(err)
	}
	if err := checkStage(req.Session, req.Phase, req.TaskKind); err != nil {
		return fail(err)
	}
	if w := req.Workspace; w != "" {
		if !filepath.IsAbs(w) || len(w) > 4096 {
			return fail(schema.Errorf(schema.InvalidArgs, "workspace must be an absolute path").With("session", req.Session))
		}
		if fi, err := os.Stat(w); err != nil || !fi.IsDir() {
			return fail(schema.Errorf(schema.ResourceMissing, "the workspace is no folder that can be opened").With("session", req.Session).
				With("next", "check the path of the workspace"))
		}
		if ws, err := x.openSpace(w); errors.Is(err, schema.ProtectedPath) {
			return fail(schema.AsError(err).With("session", req.Session).With("next", "use a workspace outside the store"))
		} else if err == nil {
			ws.Close()
		}
	}
	started := req.data()
	if err := schema.CheckData(schema.TypeSessionStarted, started); err != nil {
		return fail(err)
	}
	if len(started) > maxData {
		return fail(schema.Errorf(schema.PayloadTooLarge, "what is said of the session has %d bytes; the limit is %d", len(started), maxData).
			With("session", req.Session))
	}
	for try := 0; ; try++ {
		a, err := x.there(ctx, req.Session)
		if err == nil && !(a.Started.IsZero() && says(started)) {
			head, err := schema.ParseHead(a.Head)
			return OpenAnswer{OK: true, Session: a.Session, Workspace: a.Workspace, Head: a.Head}, head, err
		}
		if err != nil && !errors.Is(err, schema.NotFound) {
			return fail(err)
		}
		s, err := x.hold(ctx, req.Session, &req)
		if err == nil {
			if err := s.supply(started); err != nil {
				s.leave()
				return fail(err)
			}
			a := s.summary()
			created := s.journal.How() == schema.HowNew
			s.leave()
			head, err := schema.ParseHead(a.Head)
			return OpenAnswer{OK: true, Session: a.Session, Created: created, Workspace: a.Workspace, Head: a.Head}, head, err
		}
		// Another process is making the same session; it is there in a moment.
		if !errors.Is(err, schema.SessionWriterActive) || try == routeTries {
			return fail(err)
		}
		select {
		case <-time.After(routeRetry):
		case <-ctx.Done():
			return fail(x.ended(ctx, req.Session))
		}
	}
}

// there tells of a session that is there for sure. One whose holder died is
// NotFound: what it has left may not be durable before somebody takes it.
func (x *Executor) there(ctx context.Context, id string) (GetAnswer, error) {
	if st, err := x.cfg.Store.Lease(ctx, id); err == nil && st.State == lease.Stale {
		return GetAnswer{}, notFound(id)
	}
	return x.summary(ctx, id)
}

func notFound(id string) error {
	return schema.Errorf(schema.NotFound, "there is no session %s", id).With("session", id)
}

// summary tells of a session: from the live state where this process holds it,
// as its holder says where another does, and from the log, which needs no
// lease, where none can be asked. Only the log may show what is not yet known
// to be durable. A session of which there is nothing but seals is not there yet.
func (x *Executor) summary(ctx context.Context, id string) (GetAnswer, error) {
	if s, err := x.held(ctx, id); err == nil {
		defer s.leave()
		return s.summary(), nil
	}
	if a, ok := x.askHolder(ctx, id); ok {
		return a, nil
	}
	st := replay.New()
	scan := journal.NewScan(x.cfg.Store, id, journal.ScanOptions{State: st})
	for _, err := range scan.Items(ctx) {
		if err != nil {
			return GetAnswer{}, err
		}
	}
	if scan.FirstError != nil {
		return GetAnswer{}, scan.FirstError.Err(id)
	}
	if !st.Begun() {
		return GetAnswer{}, notFound(id)
	}
	return summaryOf(id, st), nil
}

// askHolder asks the process that holds a session. One that is silent is not
// waited for: whoever looks at a session may want to know why.
func (x *Executor) askHolder(ctx context.Context, id string) (a GetAnswer, ok bool) {
	st, err := x.cfg.Store.Lease(ctx, id)
	if err != nil || st.State != lease.Active || st.Holder == nil || st.Holder.ID == x.cfg.Holder.ID {
		return a, false
	}
	var o schema.Object
	ctx, cancel := context.WithTimeout(ctx, holderQuiet)
	defer cancel()
	out, reached, err := x.pass(ctx, viaOf(ctx), "get", st.Holder.ID, id, o.Text("session", id).Bytes(), 0)
	return a, reached && err == nil && json.Unmarshal(out.data, &a) == nil
}

func (s *session) summary() (a GetAnswer) {
	s.view(func(st *replay.State) { a = summaryOf(s.id, st) })
	return a
}

// maxOpenIDs bounds the open calls that a summary names.
const maxOpenIDs = 100

func summaryOf(id string, st *replay.State) GetAnswer {
	a := GetAnswer{OK: true, Session: id, Head: st.Head.String(), TaskKind: st.TaskKind, Phase: st.Phase,
		Epochs: len(st.Epochs), Messages: len(st.Messages), Calls: map[string]int{}, Open: []string{}}
	if is := st.Started; is != nil {
		a.Started, a.Workspace, a.Labels = is.Time, is.Workspace, is.Labels
	}
	if st.Ended != nil {
		a.Outcome = st.Ended.Outcome
	}
	for state, n := range st.Count() {
		a.Calls[string(state)] = n
	}
	for _, c := range st.Calls {
		if c.Result == nil && len(a.Open) < maxOpenIDs {
			a.Open = append(a.Open, c.ID)
		}
	}
	return a
}

// runGet sums up a session.
func (x *Executor) runGet(ctx context.Context, _ string, payload []byte, here bool) (reply, error) {
	id, err := sessionOf(payload)
	if err != nil {
		return reply{}, err
	}
	if err := schema.CheckSession(id); err != nil {
		return reply{}, err
	}
	var a GetAnswer
	if here {
		s, err := x.held(ctx, id)
		if err != nil {
			return reply{}, err
		}
		a = s.summary()
		s.leave()
	} else if a, err = x.summary(ctx, id); err != nil {
		return reply{}, err
	}
	head, err := schema.ParseHead(a.Head)
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, id, head)
}

// runList lists sessions and their leases; it reads no log.
func (x *Executor) runList(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req ListRequest
	_, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	a := ListAnswer{OK: true, Sessions: []SessionInfo{}}
	a.More, err = x.page(ctx, req.After, req.Limit, func(id string) bool {
		if req.IDs {
			a.IDs = append(a.IDs, id)
			return true
		}
		info := SessionInfo{Session: id}
		// A session that cannot be looked at does not hide the others.
		if st, err := x.cfg.Store.Lease(ctx, id); errors.Is(err, schema.NotFound) {
			return false // it was removed
		} else if err != nil {
			info.Kind = schema.KindOf(err)
		} else {
			info.Lease, info.Kind, info.Epoch = string(st.State), st.Kind, st.Epoch
		}
		a.Sessions = append(a.Sessions, info)
		return true
	})
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}

// page gives up to limit sessions behind one, and says whether there are more.
// give says whether a session is one of them.
func (x *Executor) page(ctx context.Context, after string, limit int, give func(id string) bool) (more bool, err error) {
	if limit == 0 {
		limit = 100
	}
	if limit < 0 || limit > 1000 {
		return false, schema.Errorf(schema.InvalidArgs, "limit must be 1 to 1000")
	}
	for id, err := range x.cfg.Store.Sessions(ctx) {
		switch {
		case err != nil:
			return false, err
		case id <= after:
			continue
		case limit == 0:
			return true, nil
		}
		if give(id) {
			limit--
		}
	}
	return false, nil
}

// runEnd ends a session.
func (x *Executor) runEnd(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req EndRequest
	var err error
	if req.replaced, err = door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	if req.Session != session {
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	}
	if err := schema.CheckData(schema.TypeSessionEnded, req.data()); err != nil {
		return reply{}, schema.AsError(err).With("session", session)
	}
	s, done, err := x.writing(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer done()
	r, err := s.end(ctx, req)
	if err != nil {
		return reply{}, err
	}
	return answer(EndAnswer{OK: true, Seq: r.Seq, Head: r.Head().String()}, x, session, r.Head())
}
