package executor

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A Recording answers a program that runs again as its session was answered,
// from the log alone: no tool is called and nothing is recorded. It is for one
// run, and may be used from many goroutines.
//
// A call gets the recorded result of the call with its id. A call whose id is
// not recorded is taken for the next one, by order, that has not been asked for;
// calls that were open at the same time may come in any order. What the record
// does not have, or has with another tool or other arguments, is
// ReplayDivergence, with both sides: asked, and recorded, which is what would
// have come.
type Recording struct {
	session string
	store   journal.Store
	redact  *redact.Redactor
	state   *replay.State
	tools   []Tool            // that it has calls of, by name
	calls   []*recordedCall   // in the order of their seq
	events  []recordedEvent   // that an agent appended
	changes []*recordedChange // of the phase and the posture

	mu       sync.Mutex               // guards what follows, and what of calls and changes is asked
	named    map[string]*recordedCall // by ids that are not recorded
	noted    map[string]int           // events that have come again, by their ids
	appended int                      // behind the last of them
	given    int                      // events up to here a resume has told of
	ended    bool                     // the end has come again
	diverged int
}

type recordedCall struct {
	*replay.Call
	args   jsontext.Value // as recorded
	result jsontext.Value // nil if there is none
	asked  bool
}

type recordedEvent struct {
	id, typ string
	seq     uint64
	sum     schema.Sum
	data    []byte
}

// is reports whether the event is one that is appended again.
func (x *recordedEvent) is(e journal.Entry) bool {
	data, _, err := schema.TakeOut(e.Data) // as it would be recorded
	return err == nil && x.typ == e.Type && bytes.Equal(x.data, data)
}

// OpenRecording reads a session up to event asOf, all of it if that is 0. redactor
// must have the rules with which it was recorded, as far as they changed its
// arguments. A log does not say what a model was told of tools: of those that it
// has calls of, session.tools tells what tools says, and of others their names. The
// results are kept in memory. Damage is an error.
func OpenRecording(ctx context.Context, store journal.Store, session string, asOf uint64, redactor *redact.Redactor, tools ...Tool) (*Recording, error) {
	r := &Recording{session: session, store: store, redact: redactor, state: replay.New(), named: map[string]*recordedCall{}, noted: map[string]int{}}
	args, results := map[string]jsontext.Value{}, map[string]jsontext.Value{}
	scan := journal.NewScan(store, session, journal.ScanOptions{Strict: true, State: r.state})
	for it, err := range scan.Items(ctx) {
		if err != nil {
			return nil, err
		}
		e := it.Event
		if e == nil {
			continue
		}
		var d struct {
			CallID string         `json:"call_id"`
			Args   jsontext.Value `json:"args"`
		}
		switch {
		case e.Type == schema.TypeToolCall || e.Type == schema.TypeToolResult:
			if err := schema.Unmarshal(e.Data, &d); err != nil {
				return nil, err
			}
			if e.Type == schema.TypeToolCall {
				args[d.CallID] = bytes.Clone(d.Args)
			} else {
				results[d.CallID] = bytes.Clone(e.Data)
			}
		case e.Type == schema.TypePhaseChanged || e.Type == schema.TypePostureChanged:
			r.changes = append(r.changes, changeOf(e))
		case schema.Appendable(e.Type) == nil:
			r.events = append(r.events, recordedEvent{e.ID.String(), e.Type, e.Seq, e.Sum, bytes.Clone(e.Data)})
		}
		if e.Seq == asOf {
			break
		}
	}
	if r.state.Head.Seq == 0 || r.state.Head.Seq < asOf {
		return nil, schema.Errorf(schema.NotFound, "session %s has no event %d: it ends with %d", session, asOf, r.state.Head.Seq).With("session", session)
	}
	for _, c := range r.state.Calls {
		r.calls = append(r.calls, &recordedCall{Call: c, args: args[c.ID], result: results[c.ID]})
	}
	r.tools = recordedTools(r.calls, tools)
	return r, nil
}

// Tools are the names of the tools that were called, sorted.
func (r *Recording) Tools() []string {
	names := map[string]bool{}
	for _, c := range r.calls {
		names[c.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Diverged is how often something was asked for that the record does not have.
func (r *Recording) Diverged() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.diverged
}

// Answer gives the recorded result of a call. ReplayDivergence: the record does
// not have it. InvalidArgs and others: no door would take it.
func (r *Recording) Answer(req Request) (Answer, error) {
	b, err := req.encode()
	if err != nil {
		return Answer{}, err
	}
	return r.answer(b)
}

func (r *Recording) answer(payload []byte) (Answer, error) {
	req, err := parseRequest(payload)
	if err == nil {
		err = req.hide(r.redact)
	}
	if err != nil {
		return Answer{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, why := r.find(req)
	if why == "" && c.result == nil {
		why = "the record has the call and no result"
	}
	if why != "" {
		args, _ := r.redact.JSON(req.Args, "/args", nil)
		return Answer{}, r.diverge(why, side(req.CallID, req.Name, args), c).With("call_id", req.CallID)
	}
	if req.CallID != c.ID { // the caller knows the call by another id, and may ask again
		r.named[req.CallID] = c
	}
	data, err := c.give(req.CallID)
	return Answer{req.CallID, data, r.state.Head}, err
}

// give is the recorded result under the id that is asked for, whose call the run
// has come to. The caller holds mu.
func (c *recordedCall) give(id string) (jsontext.Value, error) {
	if c.asked = true; id == c.ID {
		return c.result, nil
	}
	return withCallID(c.result, id)
}

// find gives the call that is asked for, or why it is none. The caller holds mu.
func (r *Recording) find(req *Request) (c *recordedCall, why string) {
	for _, c := range r.calls {
		if c.ID == req.CallID || c == r.named[req.CallID] {
			if differs := req.conflict(c.Name, c.ArgsSHA256, c.Redacted, c.DryRun); differs != "" {
				return c, "the record has it with " + differs
			}
			return c, ""
		}
	}
	var first *recordedCall
	ends := ^uint64(0) // of the first one that was over before the others began
	for _, c := range r.calls {
		if c.asked || c.Seq > ends {
			continue
		}
		if first == nil {
			first = c
		}
		if req.conflict(c.Name, c.ArgsSHA256, c.Redacted, c.DryRun) == "" {
			return c, ""
		}
		if c.Result != nil {
			ends = min(ends, c.firstResult())
		}
	}
	if first == nil {
		return nil, "the record has no more calls"
	}
	return first, "the record has another call here: " + req.conflict(first.Name, first.ArgsSHA256, first.Redacted, first.DryRun)
}

func (c *recordedCall) firstResult() uint64 {
	if len(c.Superseded) > 0 {
		return c.Superseded[0]
	}
	return c.Result.Seq
}

// diverge is the error that shows both sides. The caller holds mu.
func (r *Recording) diverge(why, asked string, c *recordedCall) *schema.Error {
	r.diverged++
	e := schema.Errorf(schema.ReplayDivergence, "%s", why).With("session", r.session).With("asked", asked)
	if c != nil {
		e.With("recorded", side(c.ID, c.Name, c.args)).With("seq", c.Seq)
	}
	return e
}

func side(id, name string, args jsontext.Value) string {
	return id + " " + name + " " + shorten(string(schema.Previews(args)), 1<<10)
}

// withCallID is the data of a result under another call id.
func withCallID(data []byte, id string) ([]byte, error) {
	var f schema.Fields
	if !f.Read(data) {
		return nil, schema.Errorf(schema.Internal, "a result cannot be read")
	}
	var o schema.Object
	for i := range f.Len() {
		if key, v := f.At(i); string(key) == "call_id" {
			o.Text("call_id", id)
		} else {
			o.Raw(string(key), v)
		}
	}
	return o.Bytes(), nil
}
