package executor

import (
	"context"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A CallInfo is a call in short. State is the kind of its error where it has one;
// waiting says that a person is asked.
type CallInfo struct {
	CallID   string `json:"call_id"`
	Tool     string `json:"tool"`
	State    string `json:"state"`
	Open     bool   `json:"open"` // no result, or one that may be settled
	Attempt  uint64 `json:"attempt"`
	By       string `json:"by,omitzero"` // who let its last attempt through, or why there is none
	Seq      uint64 `json:"seq"`
	Duration uint64 `json:"duration_us,omitzero"`
}

func callInfo(c *replay.Call) CallInfo {
	r := CallInfo{CallID: c.ID, Tool: c.Name, State: string(c.State), Open: c.Result == nil || c.Result.Open(), Seq: c.Seq}
	if n := len(c.Attempts); n > 0 {
		r.Attempt = c.Attempts[n-1].Attempt
	}
	for _, d := range c.Decisions {
		// What is denied behind a start is another attempt; the one that there was
		// has been let through before.
		if n := len(c.Attempts); n == 0 || d.Seq < c.Attempts[n-1].Seq {
			r.By = d.By
		}
	}
	switch {
	case c.Waiting != nil:
		r.State = "waiting"
	case c.Result != nil:
		r.Duration = c.Result.Duration
		if c.Result.Kind != "" {
			r.State = string(c.Result.Kind)
		}
	}
	return r
}

// CallsRequest asks for the calls of a session behind an event, in the order of
// the log.
type CallsRequest struct {
	Session string `json:"session"`
	Open    bool   `json:"open,omitzero"`  // only those without a result, or with one that may be settled
	After   uint64 `json:"after,omitzero"` // the seq of the last one that is known
	Limit   int    `json:"limit,omitzero"` // 100 if zero; 1,000 at most
}

// CallsAnswer is one page of calls.
type CallsAnswer struct {
	OK     bool              `json:"ok"`
	Calls  []CallInfo        `json:"calls"`
	More   bool              `json:"more"`
	Damage *schema.ErrorBody `json:"damage,omitzero"` // what keeps the log from being read whole
}

// CallRequest asks for all that is recorded of a call.
type CallRequest struct {
	Session string `json:"session"`
	CallID  string `json:"call_id"`
}

// CallAnswer is what is recorded of a call: how it was decided and tried, each of
// its results, and its lines.
type CallAnswer struct {
	OK      bool              `json:"ok"`
	Session string            `json:"session"`
	Open    bool              `json:"open"`
	Call    *replay.Call      `json:"call"`
	Events  []jsontext.Value  `json:"events"`
	LeftOut []uint64          `json:"left_out,omitzero"` // seqs of events that an answer has no room for
	Next    string            `json:"next,omitzero"`     // what can be done about it
	Damage  *schema.ErrorBody `json:"damage,omitzero"`
}

// Calls lists calls from the log of a session, all of them where Limit is 0. It
// needs no lease.
func Calls(ctx context.Context, store journal.Store, req CallsRequest) (CallsAnswer, error) {
	st, damage, err := callsOf(ctx, store, req.Session, nil)
	if err != nil {
		return CallsAnswer{}, err
	}
	a := callsIn(st, req)
	a.Damage = damage
	return a, nil
}

// callsIn lists the calls of a state.
func callsIn(st *replay.State, req CallsRequest) CallsAnswer {
	a := CallsAnswer{OK: true, Calls: []CallInfo{}}
	for _, c := range st.Calls {
		info := callInfo(c)
		if c.Seq <= req.After || req.Open && !info.Open {
			continue
		}
		if a.More = req.Limit > 0 && len(a.Calls) == req.Limit; a.More {
			break
		}
		a.Calls = append(a.Calls, info)
	}
	return a
}

// LookAtCall gives what the log of a session has of a call. It needs no lease.
// NotFound: there is no such call.
func LookAtCall(ctx context.Context, store journal.Store, session, id string) (CallAnswer, error) {
	a := CallAnswer{OK: true, Session: session, Events: []jsontext.Value{}}
	st, damage, err := callsOf(ctx, store, session, func(it journal.Item) { a.see(it, id) })
	if err != nil {
		return a, err
	}
	a.Damage = damage
	err = a.tell(st, id)
	return a, err
}

// see takes the line of an event that is about a call.
func (a *CallAnswer) see(it journal.Item, id string) {
	if calledIn(it.Event) == id {
		a.Events = append(a.Events, jsontext.Value(it.Line).Clone())
	}
}

// tell says what a state has of a call.
func (a *CallAnswer) tell(st *replay.State, id string) error {
	if a.Call = st.Call(id); a.Call == nil {
		e := schema.Errorf(schema.NotFound, "session %s has no call %s", a.Session, id).With("session", a.Session).With("call_id", id).
			With("next", "look which there are; run: steno calls ls "+a.Session)
		if a.Damage != nil {
			e.Message += "; its log is damaged: " + a.Damage.Message
		}
		return e
	}
	a.Open, a.Next = callInfo(a.Call).Open, nextOf(a.Session, a.Call)
	return nil
}

// fit leaves out the lines that an answer has no room for.
func (a *CallAnswer) fit() error {
	all, room := a.Events, maxCallEvents
	a.Events = []jsontext.Value{}
	for _, line := range all {
		if room -= len(line); room >= 0 {
			a.Events = append(a.Events, line)
			continue
		}
		var e struct {
			Seq uint64 `json:"seq"`
		}
		if err := schema.Unmarshal(line, &e); err != nil {
			return err
		}
		a.LeftOut = append(a.LeftOut, e.Seq)
	}
	return nil
}

// calledIn is the call that an event is about, "" for none.
func calledIn(e *schema.Event) string {
	var d struct {
		CallID string `json:"call_id"`
	}
	if schema.Unmarshal(e.Data, &d) != nil {
		return ""
	}
	return d.CallID
}

var plainID = regexp.MustCompile(`^[\w.:@%+=,/-]+$`)

// inShell are the ids of a session and a call as they are pasted into a shell, where
// ids come from elsewhere. SESSION and CALL stand for what has no such form.
func inShell(session, id string) string {
	if !schema.ValidSession(session) {
		session = "SESSION"
	}
	switch {
	case schema.CheckCallID(id) != nil || id[0] == '-': // which would be a flag
		id = "CALL"
	case !plainID.MatchString(id):
		id = "'" + strings.ReplaceAll(id, "'", `'\''`) + "'"
	}
	return session + " " + id
}

// nextResolve is the next step about a call of which nobody knows what it did.
func nextResolve(session, id string) string {
	return "look whether the tool took effect, then run: steno calls resolve " + inShell(session, id) + " --reason WHY with --succeeded, --failed or --retry"
}

// nextUnknown is the next step about a call whose tool nobody has here.
func nextUnknown(session, id string) string {
	return "it stays as it is until whoever holds the session has its tool: give --tools FILE, or start one with it (serve --tools FILE), then send the call again; or close it; run: steno calls cancel " +
		inShell(session, id)
}

// nextOf is what can be done about a call; "" where nothing is open.
func nextOf(session string, c *replay.Call) string {
	switch {
	case c.Waiting != nil:
		return "it waits for a person; run: steno approvals allow " + inShell(session, c.ID) + ", or deny"
	case c.Result == nil && c.State == replay.Unknown:
		return "it runs, or its executor is dead: the next call of the session settles it then; run: steno lease show " + session
	case c.Result == nil:
		return "it waits for its turn; run: steno calls wait " + inShell(session, c.ID)
	case c.Result.Open() && c.Result.Attempt == 0 && len(c.Attempts) == 0 && c.State != replay.Unknown:
		return "it did not start, so nothing took effect; have the agent send it again under a new call id, and close this one: steno calls resolve " +
			inShell(session, c.ID) + " --failed --reason WHY"
	case c.Result.Open():
		return nextResolve(session, c.ID)
	}
	return ""
}

// callsOf folds a session, and shows every event to see, unless that is nil.
// damage is what it met on the way; the calls that can be read are there all
// the same.
func callsOf(ctx context.Context, store journal.Store, id string, see func(journal.Item)) (st *replay.State, damage *schema.ErrorBody, err error) {
	st = replay.New()
	scan := journal.NewScan(store, id, journal.ScanOptions{State: st})
	for it, err := range scan.Items(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if it.Event != nil && see != nil {
			see(it)
		}
	}
	if scan.FirstError != nil {
		body := schema.Body(scan.FirstError.Err(id))
		damage = &body
	}
	return st, damage, nil
}

const maxCallsPage = 1000

// maxCallEvents bounds the events of a call in one answer: what NATS carries has
// room for the rest.
const maxCallEvents = 640 << 10

var (
	callsVerb   = verb{"list", (*Executor).runCalls, false, ofLooks}
	callGetVerb = verb{"get", (*Executor).runCallGet, false, ofLooks}
)

const (
	callsSchema = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `,"open":{"type":"boolean"},` +
		`"after":{"type":"integer","minimum":0},"limit":{"type":"integer","minimum":1,"maximum":1000}}}`
	callsAnswerSchema = `{"type":"object","required":["ok","calls","more"],"properties":{"ok":{"const":true},"calls":{"type":"array","items":{"type":"object",` +
		`"required":["call_id","tool","state","open","attempt","seq"]}},"more":{"type":"boolean"},"damage":{"type":"object"}}}`
	callAnswerSchema = `{"type":"object","required":["ok","session","open","call","events"],"properties":{"ok":{"const":true},"session":{"type":"string"},"open":{"type":"boolean"},` +
		`"call":{"type":"object"},"events":{"type":"array","items":{"type":"object"}},"left_out":{"type":"array","items":{"type":"integer"}},"next":{"type":"string"},"damage":{"type":"object"}}}`
)

var callsEndpoints = []endpoint{
	{"calls-list", "calls.list", callsSchema, callsAnswerSchema, callsVerb, false},
	{"calls-get", "calls.get", waitSchema, callAnswerSchema, callGetVerb, false},
}

// check looks at a request for a page.
func (r *CallsRequest) check() error {
	if r.Limit < 0 || r.Limit > maxCallsPage {
		return schema.Errorf(schema.InvalidArgs, "limit must be 1 to %d", maxCallsPage).With("session", r.Session)
	}
	if r.Limit == 0 {
		r.Limit = 100
	}
	return schema.CheckSession(r.Session)
}

func (x *Executor) runCalls(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req CallsRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	if err := req.check(); err != nil {
		return reply{}, err
	}
	a, err := Calls(ctx, x.cfg.Store, req)
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}

func (x *Executor) runCallGet(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req CallRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	if err := schema.CheckSession(req.Session); err != nil {
		return reply{}, err
	}
	if err := schema.CheckCallID(req.CallID); err != nil {
		return reply{}, err
	}
	a, err := LookAtCall(ctx, x.cfg.Store, req.Session, req.CallID)
	if err != nil {
		return reply{}, err
	}
	if err := a.fit(); err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}
