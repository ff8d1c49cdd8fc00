package executor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// detach records the result of a call whose tool does not stop. The tool keeps
// its slot until it returns; what it then says is a late result.
func (s *session) detach(f *flight, a replay.Attempt, began time.Time, over resolution) {
	if !f.claimed.CompareAndSwap(false, true) {
		return
	}
	err := schema.Errorf(schema.Timeout, "the deadline passed, and the tool does not stop")
	out := verdict{over: over, duration: time.Since(began)}
	if c := f.cancelled.Load(); c != nil {
		err = schema.Errorf(schema.Cancelled, "cancelled, and the tool does not stop")
		out.over.by, out.over.reason = c.by, c.reason
	}
	out.err = err.With("session", s.id).With("detached", true)
	s.x.log.Warn("a tool does not stop; it keeps its slot", "session", s.id, "call", f.call.CallID, "tool", f.call.Name)
	f.answer, f.err = s.finish(f.call, a.Attempt, out, false)
	s.land(f)
}

// late records what a tool has said after its call had a result: in the place
// of that, if it leaves the outcome open, otherwise as a note.
func (s *session) late(req *Request, a replay.Attempt, took time.Duration, res Result, err error) {
	out := s.verdict(res, err)
	out.duration = took
	if !out.genuine() {
		return // the record says that already
	}
	out.escalates = s.escalates(req.Name, req.DryRun, out.err == nil && res.OK)
	for {
		ended := s.ended()
		c := s.copied(req.CallID)
		if c == nil {
			return // it could not be recorded either
		}
		if out.over = (resolution{reason: "late"}); c.Result != nil {
			out.over.supersedes = c.Result.Seq
		}
		if c.Result != nil && !c.Result.Open() {
			err = s.noteLate(req, a.Attempt, out)
			break
		}
		_, err = s.finish(req, a.Attempt, out, false)
		if !errors.Is(err, schema.ResultConflict) && (ended || !errors.Is(err, schema.SessionEnded)) {
			break // else somebody has resolved it in this instant, or ended the session, which takes the result alone
		}
	}
	if errors.Is(err, schema.SessionWriterLost) {
		s.deliver(req, a, out)
	} else if err != nil {
		s.x.log.Warn("a late result was not recorded", "session", s.id, "call", req.CallID, "kind", schema.KindOf(err), "err", err)
	}
}

// maxNoted bounds a result that is only noted.
const maxNoted = 64 << 10

// noteLate keeps a further result of a call that has a genuine one.
func (s *session) noteLate(req *Request, attempt uint64, out verdict) error {
	s.x.inspect(&out)
	return s.note(req.CallID, out.inline(req, attempt))
}

func (s *session) note(callID string, result jsontext.Value) error {
	_, err := s.append(lateNote(callID, result))
	return err
}

func lateNote(callID string, result jsontext.Value) journal.Entry {
	var o schema.Object
	o.Text("call_id", callID).Text("text", "a late result of a call that has a genuine one")
	if len(result) <= maxNoted {
		o.Raw("result", result)
	}
	return journal.Entry{Type: schema.TypeNote, Data: o.Bytes()}
}

// maxNotes bounds the late results that are known to be noted.
const maxNotes = 1 << 10

// noteOnce keeps a late result that may be sent again, where its answer was lost.
// The caller holds phases for writing.
func (s *session) noteOnce(callID string, result jsontext.Value) (journal.Record, error) {
	sum := sha256.Sum256(append([]byte(callID+" "), result...))
	if seq, is := s.noted[sum]; is {
		return s.journal.Event(s.ctx, seq)
	}
	r, err := s.append(lateNote(callID, result))
	if err != nil {
		return journal.Record{}, err
	}
	if s.noted == nil || len(s.noted) == maxNotes {
		s.noted = map[[sha256.Size]byte]uint64{}
	}
	s.noted[sum] = r[0].Seq
	return r[0], nil
}

// genuine reports whether a tool has said what became of the call.
func (out *verdict) genuine() bool {
	if out.err == nil {
		return true
	}
	k := schema.KindOf(out.err)
	return k != schema.Timeout && k != schema.Cancelled
}

// maxLate bounds the output of a result that has no blobs: only the writer of a
// session makes those.
const maxLate = 8 << 10

// maxLatePart bounds the content and the structured answer of one.
const maxLatePart = 16 << 10

// inline is the data of a result as it is where it must be short.
func (out verdict) inline(req *Request, attempt uint64) jsontext.Value {
	out.over = resolution{}
	r := &out.result
	whole := max(r.Bytes, len(r.Output))
	var cut int
	if r.Output, cut = schema.Truncate(r.Output, maxLate); cut > 0 {
		r.Bytes = whole
	}
	for _, v := range []*jsontext.Value{&r.Content, &r.Structured} {
		if len(*v) > maxLatePart {
			out.left += len(*v)
			*v = nil
		}
	}
	return jsontext.Value(out.record(new(desk), req, attempt).Data)
}

// A lateResult is what a tool has said for a writer that has lost its session.
// Epoch and Seq are the fencing token of the attempt.
type lateResult struct {
	Session string         `json:"session"`
	CallID  string         `json:"call_id"`
	Attempt uint64         `json:"attempt"`
	Epoch   uint64         `json:"epoch"`
	Seq     uint64         `json:"seq"`
	Data    jsontext.Value `json:"data"` // of a tool_result
}

// deliver brings a result to whoever has the session now, or takes the session
// if nobody has.
func (s *session) deliver(req *Request, a replay.Attempt, out verdict) {
	if !out.genuine() {
		return // which says no more than that the call was cut short
	}
	s.x.inspect(&out)
	b, err := encode(lateResult{s.id, req.CallID, a.Attempt, a.Epoch, a.Seq, out.inline(req, a.Attempt)})
	if err == nil {
		err = s.x.passResult(s.id, b)
	}
	if err != nil {
		s.x.log.Warn("a result was not delivered; the session is lost", "session", s.id, "call", req.CallID, "kind", schema.KindOf(err), "err", err)
		return
	}
	s.x.log.Info("a result was delivered to the next holder", "session", s.id, "call", req.CallID)
}

var resultVerb = verb{"result", (*Executor).runResult, true, ofWrites}

var lateEndpoints = []endpoint{{"to-result", "result.*", lateSchema, endAnswerSchema, resultVerb, true}}

const lateSchema = `{"type":"object","required":["session","call_id","attempt","epoch","seq","data"],"properties":{"session":` + sessionID +
	`,"call_id":{"type":"string"},"attempt":{"type":"integer"},"epoch":{"type":"integer"},"seq":{"type":"integer"},"data":{"type":"object"}}}`

// runResult records a result that comes from a writer which has lost the
// session: in the place of an open one, or as a note.
func (x *Executor) runResult(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var late lateResult
	replaced, err := door(payload, &late, levelLate)
	if err == nil {
		err = asks(session, late.Session, late.CallID, "nobody", "", replaced)
	}
	if err == nil {
		err = late.check()
	}
	if err != nil {
		return reply{}, err
	}
	late.Data = x.cleaned(late.Data)
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	select {
	case <-s.settled: // which gives the call the result that is open
	case <-ctx.Done():
		return reply{}, x.ended(ctx, s.id)
	}
	for {
		r, err := s.take(&late)
		if errors.Is(err, schema.ResultConflict) {
			continue // somebody has settled it in this instant
		}
		if err != nil {
			return reply{}, err
		}
		return answer(EndAnswer{OK: true, Seq: r.Seq, Head: r.Head().String()}, x, session, r.Head())
	}
}

// check refuses what is no genuine result of that attempt.
func (l *lateResult) check() error {
	bad := func(why string) error {
		return schema.Errorf(schema.InvalidArgs, "this is no late result: %s", why).With("session", l.Session).With("call_id", l.CallID)
	}
	if len(l.Data) > maxData {
		return bad("it is too long")
	}
	if err := schema.CheckData(schema.TypeToolResult, l.Data); err != nil {
		return err
	}
	var d map[string]jsontext.Value
	var r struct {
		CallID  string           `json:"call_id"`
		Attempt uint64           `json:"attempt"`
		Error   schema.ErrorBody `json:"error"`
	}
	if err := errors.Join(schema.Unmarshal(l.Data, &d), schema.Unmarshal(l.Data, &r)); err != nil {
		return bad("its data cannot be read")
	}
	for _, key := range []string{"supersedes", "synthetic", "by", "reason", "blobs", "origin"} {
		if d[key] != nil {
			return bad("it has a key " + key)
		}
	}
	switch {
	case r.CallID != l.CallID || r.Attempt != l.Attempt:
		return bad("its data is of another attempt")
	case (&replay.CallResult{Kind: r.Error.Kind, Attempt: l.Attempt}).Open():
		return bad("it leaves the outcome open")
	}
	return nil
}

// cleaned is the data of a late result without what is secret here: who sends it
// may go by other rules, or know other values. What is the log's own stays as it
// is, and so does all of it where nothing is found.
func (x *Executor) cleaned(data jsontext.Value) jsontext.Value {
	d := jsontext.NewDecoder(bytes.NewReader(data))
	_, err := d.ReadToken()
	var o schema.Object
	var marks []redact.Mark
	var before jsontext.Value // those of who sends it
	for err == nil && d.PeekKind() == '"' {
		var name jsontext.Token
		var value jsontext.Value
		if name, err = d.ReadToken(); err != nil {
			break
		}
		key := name.String()
		if value, err = d.ReadValue(); err != nil {
			break
		}
		switch key {
		case "redacted":
			before = value.Clone()
			continue
		case "call_id", "attempt":
		default:
			value, marks = x.redact.JSON(value, "/"+key, marks)
		}
		o.Raw(key, value)
	}
	if err != nil || len(marks) == 0 { // it was read before, so it can be
		return data
	}
	all := redact.AppendMarks(nil, marks)
	if len(before) > 2 {
		all = append(append(before[:len(before)-1:len(before)-1], ','), all[1:]...)
	}
	return o.Raw("redacted", all).Bytes()
}

// take records a late result.
func (s *session) take(l *lateResult) (journal.Record, error) {
	s.phases.Lock() // nothing starts meanwhile
	defer s.phases.Unlock()
	c, err := s.oneCall(l.CallID)
	if err != nil {
		return journal.Record{}, err
	}
	if !slices.ContainsFunc(c.Attempts, func(a replay.Attempt) bool { return a.Attempt == l.Attempt && a.Epoch == l.Epoch && a.Seq == l.Seq }) {
		return journal.Record{}, schema.Errorf(schema.InvalidArgs, "call %s has no attempt with this token", l.CallID).With("session", s.id).With("call_id", l.CallID)
	}
	newest := c.Attempts[len(c.Attempts)-1]
	if c.Result == nil && newest.Attempt != l.Attempt || c.Result != nil && !c.Result.Open() {
		if c.Result != nil && s.same(c, l) {
			return s.journal.Event(s.ctx, c.Result.Seq)
		}
		// Where it has none another attempt is at work, whose result counts.
		return s.noteOnce(l.CallID, l.Data)
	}
	// Where it has none its tool is being asked what became of it, which nobody
	// needs to guess any more.
	data := []byte(l.Data)
	if c.Result != nil {
		data = l.over(c.Result.Seq)
	}
	entries := []journal.Entry{{Type: schema.TypeToolResult, Data: data}}
	var is struct {
		OK bool `json:"ok"`
	}
	if schema.Unmarshal(l.Data, &is) == nil && s.escalates(c.Name, c.DryRun, is.OK) {
		if m := s.escalation(c.ID); m != nil {
			entries = append(entries, m.entry())
		}
	}
	r, err := s.append(entries...)
	if len(entries) > 1 && errors.Is(err, schema.SessionEnded) { // in this instant; a result may come behind that
		r, err = s.append(entries[0])
	}
	if err != nil {
		return journal.Record{}, err
	}
	return r[0], nil
}

// over is the data of the result that supersedes the one at seq.
func (l *lateResult) over(seq uint64) []byte {
	var o schema.Object
	more := o.Uint("supersedes", seq).Text("reason", "late").Bytes()
	return append(append(l.Data[:len(l.Data)-1:len(l.Data)-1], ','), more[1:]...) // it has keys, so it is not empty
}

// same reports whether the result that is recorded is this one: it may have been
// on the disk when the session was lost, or who delivers it had no answer. Of
// what is large the late one has less, and says so.
func (s *session) same(c *replay.Call, l *lateResult) bool {
	r, err := s.journal.Event(s.ctx, c.Result.Seq)
	if err != nil || c.Result.Attempt != l.Attempt {
		return false
	}
	var was, is map[string]jsontext.Value
	if schema.Unmarshal(r.Data, &was) != nil || schema.Unmarshal(l.Data, &is) != nil || was["by"] != nil { // who has decided it
		return false
	}
	if len(c.Superseded) > 0 && string(was["reason"]) != `"late"` {
		return false
	}
	short := is["truncated"] != nil
	for _, key := range []string{"ok", "error", "exit_code", "summary", "files_read", "files_changed", "artifacts", "terminate", "output", "content", "structured"} {
		if short && len(is[key]) < len(was[key]) && (key == "output" || key == "content" || key == "structured") {
			continue
		}
		if !bytes.Equal(was[key], is[key]) {
			return false
		}
	}
	return true
}
