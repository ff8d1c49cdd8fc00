package executor

import (
	"bytes"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A Request is a call of a tool.
type Request struct {
	// CallID identifies the call in its session: 1 to 256 bytes of printable
	// ASCII without space. The same id with the same arguments is the same
	// call.
	CallID string         `json:"call_id"`
	Name   string         `json:"name"`
	Args   jsontext.Value `json:"args,omitzero"` // an object; {} if left out
	// Key is handed to the tool as its idempotency key; the call id if empty.
	// steno itself tells calls apart by their id only.
	Key     string         `json:"key,omitzero"`
	DryRun  bool           `json:"dry_run,omitzero"`
	Context jsontext.Value `json:"context,omitzero"` // the application's, handed to the tool beside the arguments
	Turn    jsontext.Value `json:"turn,omitzero"`
	Actor   Actor          `json:"actor,omitzero"` // on whose behalf, as the application says

	sum      string  // args_sha256, of what is recorded
	replaced int     // U+FFFD that the door put in
	hid      *hiding // nil if nothing in it is secret
	lost     error   // why recorded arguments cannot be had

	tier  uint64 // of the tool, once it is known
	phase string // in which it was asked for
}

// An Answer is a recorded result.
type Answer struct {
	CallID string
	// Data is the data of the tool_result as it stands in the log, the same
	// bytes for everybody who ever asks. Where output, content or structured
	// are large, a reference stands there: schema.Previews shows their beginning
	// and their end, journal.Whole gives all of it, from the store.
	Data jsontext.Value
	// Head is the head of the log when the answer was given.
	Head schema.Head
}

// maxName bounds the name of a tool that is asked for and need not exist.
const maxName = 256

// maxData bounds what comes from outside into one event, such as args, context
// and turn of a call together, so that its line stays below schema.MaxLine.
// Large args count with what stands in their place.
const maxData = schema.MaxLine - 8<<10

// MaxRequest is the most bytes of a call. A server may take less: nats-server
// takes 1 MiB unless it is told otherwise.
const MaxRequest = 8 << 20

// parseRequest is the door for calls. What it refuses is not recorded.
func parseRequest(payload []byte) (*Request, error) {
	if len(payload) > MaxRequest {
		return nil, schema.Errorf(schema.PayloadTooLarge, "the request has %d bytes; the limit is %d", len(payload), MaxRequest)
	}
	// In the request args lie as deep as they will lie in the event's data.
	text, replaced, err := schema.Compact(make([]byte, 0, len(payload)), payload, 1)
	if err != nil {
		return nil, err
	}
	r := new(Request)
	if !r.read(text) {
		*r = Request{}
		if err := strict(text, r); err != nil {
			return nil, err
		}
	}
	r.replaced = replaced
	return r, r.check()
}

// read reads a request that came from Compact as strict does, and keeps
// the values as they lie in text. It leaves what is unusual to strict: a null,
// a key or a value that is refused.
func (r *Request) read(text []byte) (plain bool) {
	f := spare.Get().(*schema.Fields)
	defer func() {
		f.Read(nil) // it keeps no request
		spare.Put(f)
	}()
	plain = f.Read(text)
	for i := range f.Len() {
		key, value := f.At(i)
		plain = plain && r.set(string(key), value)
	}
	return plain
}

var spare = sync.Pool{New: func() any { return new(schema.Fields) }}

func (r *Request) set(key string, value jsontext.Value) bool {
	var text *string
	switch key {
	case "args":
		r.Args = value
		return true
	case "context":
		r.Context = value
		return true
	case "turn":
		r.Turn = value
		return true
	case "actor":
		return r.Actor.read(value)
	case "dry_run":
		r.DryRun = value[0] == 't'
		return value[0] == 't' || value[0] == 'f'
	case "call_id":
		text = &r.CallID
	case "name":
		text = &r.Name
	case "key":
		text = &r.Key
	default:
		return false
	}
	if value[0] != '"' {
		return false
	}
	if bytes.IndexByte(value, '\\') < 0 {
		*text = string(value[1 : len(value)-1])
		return true
	}
	b, err := jsontext.AppendUnquote(nil, value)
	*text = string(b)
	return err == nil
}

// check completes a request whose JSON has come through the door.
func (r *Request) check() error {
	if err := schema.CheckCallID(r.CallID); err != nil {
		return err
	}
	if r.Name == "" || len(r.Name) > maxName {
		return schema.Errorf(schema.InvalidArgs, "name must have 1 to %d bytes", maxName).With("call_id", r.CallID)
	}
	if len(r.Key) > maxName {
		return schema.Errorf(schema.InvalidArgs, "key must have at most %d bytes", maxName).With("call_id", r.CallID)
	}
	if err := r.Actor.check(); err != nil {
		return schema.AsError(err).With("call_id", r.CallID)
	}
	if len(r.Args) == 0 {
		r.Args = jsontext.Value("{}")
	}
	if args := len(r.Args); args > MaxRequest {
		return schema.Errorf(schema.PayloadTooLarge, "args have %d bytes; the limit is %d", args, MaxRequest).With("call_id", r.CallID)
	}
	if err := r.bounded(r.Args, r.Context, r.Turn, nil); err != nil {
		return err
	}
	var err error
	r.sum, err = schema.ArgsSHA256(r.Args)
	return err
}

// bounded says whether what is recorded of a request has room in a line.
func (r *Request) bounded(args, context, turn, marks []byte) error {
	n := len(args)
	if n > schema.MaxInline { // they become a blob
		n = schema.MaxRef
	}
	if n += len(context) + len(turn) + len(marks); n > maxData {
		return schema.Errorf(schema.PayloadTooLarge, "args, context and turn have %d bytes; the limit is %d", n, maxData).With("call_id", r.CallID)
	}
	return nil
}

// A hiding is what is recorded of a request in place of what is secret in it.
// The tool gets the request as it came.
type hiding struct {
	args, context, turn jsontext.Value
	key                 string
	marks               []byte
	digest              string // replay.Hidden of the marks
	raw                 string // args_sha256 as it would be of the arguments themselves
}

// hide finds what must not be recorded of a request. Nothing may be compared
// with the request, and nobody else may see it, before that is done.
func (r *Request) hide(by *redact.Redactor) error {
	for _, t := range []*string{&r.Name, &r.Key} {
		text, replaced := schema.ValidUTF8(*t)
		*t, r.replaced = text, r.replaced+replaced
	}
	for _, f := range [...]struct{ key, text string }{{"call_id", r.CallID}, {"name", r.Name}} {
		if _, m := by.Text(f.text, "", nil); len(m) > 0 {
			return schema.Errorf(schema.InvalidArgs, "%s holds a secret, says the rule %s; nothing is recorded", f.key, m[0].Rule).
				With("next", "send the call with another "+f.key)
		}
	}
	r.Actor.ID, _ = by.Text(r.Actor.ID, "", nil) // as all words about people, without a mark
	var h hiding
	var m []redact.Mark
	h.args, m = by.JSON(r.Args, "/args", nil)
	h.context, m = by.JSON(r.Context, "/context", m)
	h.turn, m = by.JSON(r.Turn, "/turn", m)
	if h.key, m = by.Text(r.Key, "/key", m); len(m) == 0 {
		return nil
	}
	h.marks = redact.AppendMarks(nil, m)
	h.digest, h.raw = replay.Hidden(h.marks), r.sum
	sum, err := schema.ArgsSHA256(h.args)
	if err != nil {
		return err
	}
	r.sum, r.hid = sum, new(h)
	return r.bounded(h.args, h.context, h.turn, h.marks)
}

// hidden tells the values that are hidden in the arguments from others.
func (r *Request) hidden() string {
	if r.hid == nil {
		return ""
	}
	return r.hid.digest
}

// conflict says how a request under a used id differs from the call that has
// it, "" if it is the same. A call that was recorded before a rule hid something
// in its arguments is the same too.
func (r *Request) conflict(name, sum, hidden string, dryRun bool) string {
	switch {
	case r.Name != name:
		return "another tool"
	case hidden == "" && r.hid != nil && r.hid.raw == sum:
	case r.sum != sum:
		return "other arguments"
	case r.hidden() != hidden:
		return "other values where its arguments are redacted, or under another secret of the store"
	}
	if r.DryRun != dryRun {
		return "another dry_run"
	}
	return ""
}

// conflict refuses a request under the id of another call. Whoever gets it may
// never have seen that call: some providers begin their ids anew in each turn.
func conflict(session, callID, why string) *schema.Error {
	return schema.Errorf(schema.CallConflict, "call %s is recorded with %s", callID, why).With("session", session).With("call_id", callID).With("differs", why).
		With("next", "use a new call id for other arguments; ids that a provider begins anew in each turn need the turn before them")
}

// A desk is memory for the data of the events of one append, which the next may
// have.
type desk struct {
	buf  []byte
	last []byte // the last data that was made; there is room behind it
}

var desks = sync.Pool{New: func() any {
	b := make([]byte, 0, 2<<10) // most calls have less
	return &desk{b, b}
}}

func (d *desk) object() schema.Object { return schema.ObjectIn(d.last) }

func (d *desk) done(o *schema.Object) []byte {
	d.last = o.Bytes()
	if cap(d.last) > cap(d.buf) {
		d.buf = d.last[:0]
	}
	return slices.Clip(d.last)
}

// back gives a desk back that nobody reads from any more.
func (d *desk) back() {
	if cap(d.buf) <= 64<<10 {
		d.last = d.buf
		desks.Put(d)
	}
}

// entry is the tool_call event of a request.
func (r *Request) entry(d *desk) journal.Entry {
	o := d.object()
	h := hiding{args: r.Args, context: r.Context, turn: r.Turn, key: r.Key}
	if r.hid != nil {
		h = *r.hid
	}
	o.Grow(len(r.CallID) + len(r.Name) + len(h.args) + len(h.context) + len(h.turn) + len(h.key) + len(h.marks) + len(r.Actor.ID) + 256)
	o.Text("call_id", r.CallID).Text("name", r.Name).Raw("args", h.args).Text("args_sha256", r.sum)
	if len(h.context) > 0 {
		o.Raw("context", h.context)
	}
	if len(h.turn) > 0 {
		o.Raw("turn", h.turn)
	}
	if r.tier > 0 {
		o.Uint("tier", r.tier)
	}
	if r.phase != "" {
		o.Text("phase", r.phase)
	}
	if r.DryRun {
		o.Bool("dry_run", true)
	}
	if h.key != "" {
		o.Text("key", h.key)
	}
	r.Actor.record(&o)
	if h.marks != nil {
		o.Raw("redacted", h.marks)
	}
	if r.replaced > 0 {
		o.Uint("replaced", uint64(r.replaced))
	}
	return journal.Entry{Type: schema.TypeToolCall, Data: d.done(&o)}
}

// OpenRequest asks for a session. It is idempotent by id: a session that is
// there stays as it is. Without a phase it admits every tool, until
// [Client.Phase] gives it one.
type OpenRequest struct {
	Session   string         `json:"session,omitzero"` // a new ULID if empty
	Workspace string         `json:"workspace,omitzero"`
	Labels    jsontext.Value `json:"labels,omitzero"` // an object
	TaskKind  string         `json:"task_kind,omitzero"`
	Phase     string         `json:"phase,omitzero"`

	replaced int // U+FFFD that the door put in
}

// started is what session_started says of it.
func (r *OpenRequest) started() (o schema.Object) {
	if len(r.Labels) > 0 {
		o.Raw("labels", r.Labels)
	}
	for _, f := range [...]struct{ key, value string }{{"workspace", r.Workspace}, {"task_kind", r.TaskKind}, {"phase", r.Phase}} {
		if f.value != "" {
			o.Text(f.key, f.value)
		}
	}
	if r.replaced > 0 {
		o.Uint("replaced", uint64(r.replaced))
	}
	return o
}

func (r *OpenRequest) data() []byte {
	o := r.started()
	return o.Bytes()
}

// OpenAnswer describes a session that is open.
type OpenAnswer struct {
	OK        bool   `json:"ok"`
	Session   string `json:"session"`
	Created   bool   `json:"created"`
	Workspace string `json:"workspace,omitzero"`
	Head      string `json:"head"`
}

// GetAnswer sums up a session.
type GetAnswer struct {
	OK        bool           `json:"ok"`
	Session   string         `json:"session"`
	Head      string         `json:"head"`
	Started   time.Time      `json:"started,omitzero"` // absent if session_started is lost
	Workspace string         `json:"workspace,omitzero"`
	Labels    jsontext.Value `json:"labels,omitzero"`
	Outcome   string         `json:"outcome,omitzero"` // once it has ended
	TaskKind  string         `json:"task_kind,omitzero"`
	Phase     string         `json:"phase,omitzero"`
	Epochs    int            `json:"epochs"`
	Messages  int            `json:"messages"`
	Calls     map[string]int `json:"calls"` // how many in each state
	Open      []string       `json:"open"`  // call ids without a result, at most 100
}

// ListRequest asks for sessions in the order of their ids.
type ListRequest struct {
	After string `json:"after,omitzero"` // begin behind this id
	Limit int    `json:"limit,omitzero"` // 100 if zero, at most 1000
	// IDs asks for the ids alone, in IDs of the answer: nothing of a session is
	// looked at.
	IDs bool `json:"ids,omitzero"`
}

// ListAnswer is one page of sessions.
type ListAnswer struct {
	OK       bool          `json:"ok"`
	Sessions []SessionInfo `json:"sessions"`
	IDs      []string      `json:"ids,omitzero"`
	More     bool          `json:"more"`
}

// SessionInfo is a session and its lease, read without its log.
type SessionInfo struct {
	Session string      `json:"session"`
	Lease   string      `json:"lease"`
	Kind    schema.Kind `json:"kind,omitzero"`
	Epoch   uint64      `json:"epoch"`
}

// EndRequest ends a session. Outcome is completed, failed, partial or
// cancelled.
type EndRequest struct {
	Session string `json:"session"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitzero"`

	replaced int // U+FFFD that the door put in
}

func (r *EndRequest) data() []byte {
	var o schema.Object
	o.Text("outcome", r.Outcome)
	if r.Reason != "" {
		o.Text("reason", r.Reason)
	}
	if r.replaced > 0 {
		o.Uint("replaced", uint64(r.replaced))
	}
	return o.Bytes()
}

// EndAnswer says that the end is recorded.
type EndAnswer struct {
	OK   bool   `json:"ok"`
	Seq  uint64 `json:"seq"`
	Head string `json:"head"`
}

func splitDots(s string) iter.Seq[string] { return strings.SplitSeq(s, ".") }
