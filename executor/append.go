package executor

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// AppendRequest records events that an agent owns: messages, reasoning,
// state_changed, usage, turn_failed, history_compaction, history_rewind, note
// and x.* types. All are recorded or none. An event whose id is recorded
// already is answered from the record.
type AppendRequest struct {
	Session string        `json:"session"`
	Events  []AppendEvent `json:"events"`
}

// An AppendEvent is one event to record. The id is a ULID, the caller's or
// steno's.
type AppendEvent struct {
	ID   string         `json:"id,omitzero"`
	Type string         `json:"type"`
	Data jsontext.Value `json:"data"`
}

// AppendAnswer says where the events stand.
type AppendAnswer struct {
	OK     bool       `json:"ok"`
	Events []Appended `json:"events"`
	Head   string     `json:"head"`
}

// Appended is one recorded event.
type Appended struct {
	ID   string     `json:"id"`
	Seq  uint64     `json:"seq"`
	Type string     `json:"type"`
	Sum  schema.Sum `json:"sum"`
}

// maxBatch bounds the events of one append.
const maxBatch = 1000

// entries checks what may be appended and gives each event its own count of
// replaced characters. Dead letters may only come from an executor.
func (r *AppendRequest) entries(dead bool) ([]journal.Entry, error) {
	if len(r.Events) == 0 || len(r.Events) > maxBatch {
		return nil, schema.Errorf(schema.InvalidArgs, "an append has 1 to %d events; this has %d", maxBatch, len(r.Events)).With("session", r.Session)
	}
	out := make([]journal.Entry, len(r.Events))
	for i, e := range r.Events {
		at := func(err error) error { return schema.AsError(err).With("session", r.Session).With("event", i) }
		if err := schema.Appendable(e.Type); err != nil && !(dead && e.Type == schema.TypeDeadLetter) {
			return nil, at(err)
		}
		var id ulid.ULID
		if e.ID != "" {
			var err error
			if id, err = schema.ParseID(e.ID); err != nil {
				return nil, at(err)
			}
		}
		data, replaced, err := schema.Compact(nil, e.Data, 1)
		if err != nil {
			return nil, at(err)
		}
		if err := schema.CheckData(e.Type, data); err != nil {
			return nil, at(err)
		}
		if replaced > 0 {
			if data, err = withReplaced(data, replaced); err != nil {
				return nil, at(err)
			}
		}
		out[i] = journal.Entry{ID: id, Type: e.Type, Data: data}
	}
	return out, nil
}

// withReplaced adds the count of replaced characters to data. An event that
// has no place for it is refused: no log holds text that was changed without
// saying so.
func withReplaced(data []byte, n int) ([]byte, error) {
	refuse := func(why string) error {
		return schema.Errorf(schema.InvalidArgs, "%d characters are not valid Unicode, and cannot be replaced: %s", n, why)
	}
	var keys map[string]jsontext.Value
	if data[0] != '{' || schema.Unmarshal(data, &keys) != nil {
		return nil, refuse("data is no object that could say how many")
	}
	if _, taken := keys["replaced"]; taken {
		return nil, refuse("data has a key replaced, which would say how many")
	}
	var o schema.Object
	count := o.Uint("replaced", uint64(n)).Bytes()
	return append(append(data[:len(data)-1:len(data)-1], ','), count[1:]...), nil // it has text, so it is not empty
}

// withIDs gives an id to each event of an append that has none, so that it is
// the same event when it is written again, here or by another holder. A request
// that cannot be read stays as it is, for the door to refuse.
func withIDs(payload []byte) []byte {
	var req AppendRequest
	if len(payload) > maxPayload || json.Unmarshal(payload, &req, jsontext.AllowInvalidUTF8(true)) != nil {
		return payload
	}
	given := false
	for i := range req.Events {
		e := &req.Events[i]
		if len(e.Data) == 0 {
			return payload
		}
		if e.ID == "" {
			e.ID, given = journal.NewID().String(), true
		}
	}
	if !given {
		return payload
	}
	b, err := encode(req)
	if err != nil || len(b) > maxPayload {
		return payload
	}
	return b
}

var (
	appendVerb = verb{"append", (*Executor).runAppend, true, ofWrites}
	deadVerb   = verb{"append", (*Executor).runDead, true, ofWrites}
)

var appendEndpoints = []endpoint{
	{"session-append", "session.append", appendSchema, appendAnswerSchema, appendVerb, false},
	{"to-append", "append.*", appendSchema, appendAnswerSchema, appendVerb, true},
}

// runAppend records events of an agent. Other executors may pass dead letters
// on to the holder.
func (x *Executor) runAppend(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	return x.append(ctx, session, payload, here, here)
}

// runDead records a dead letter of the queue.
func (x *Executor) runDead(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	return x.append(ctx, session, payload, here, true)
}

func (x *Executor) append(ctx context.Context, session string, payload []byte, here, dead bool) (reply, error) {
	var req AppendRequest
	if _, err := door(payload, &req, levelBatch); err != nil {
		return reply{}, err
	}
	// Once more as it came: each event has a count of its own.
	if err := json.Unmarshal(payload, &req, jsontext.AllowInvalidUTF8(true)); err != nil {
		return reply{}, schema.Errorf(schema.InvalidArgs, "the request cannot be read").Cause(err)
	}
	if req.Session != session {
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	}
	entries, err := req.entries(dead)
	if err != nil {
		return reply{}, err
	}
	s, done, err := x.writing(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer done()
	if err := s.checkHistory(entries); err != nil {
		return reply{}, err
	}
	records, err := s.append(entries...)
	if err != nil {
		return reply{}, err
	}
	head := s.journal.Head()
	a := AppendAnswer{OK: true, Head: head.String()}
	for _, r := range records {
		a.Events = append(a.Events, Appended{r.ID.String(), r.Seq, r.Type, r.Sum})
	}
	return answer(a, x, session, head)
}

// checkHistory refuses compactions and rewinds that would split a call from its
// result, or that are about events which are not there yet.
func (s *session) checkHistory(entries []journal.Entry) (err error) {
	for i := range entries {
		e := &entries[i]
		if e.Type != schema.TypeHistoryCompaction && e.Type != schema.TypeHistoryRewind {
			continue
		}
		refuse := func(pointer, format string, args ...any) *schema.Error {
			return schema.Errorf(schema.InvalidArgs, format, args...).With("session", s.id).With("event", i).With("pointer", pointer)
		}
		pointer := "/data/to_seq"
		from, to, ok := replay.HistoryRange(e.Type, e.Data)
		if e.Type == schema.TypeHistoryCompaction {
			pointer = "/data/range"
			if !ok || from < 1 || to < from {
				return refuse(pointer, "a range has from_seq and to_seq, numbers of events, the first from 1 and not above the second")
			}
		}
		split := uint64(0)
		s.view(func(st *replay.State) {
			if to > st.Head.Seq {
				err = refuse(pointer, "there is no event %d: the log ends with %d", to, st.Head.Seq)
			} else {
				split = st.Splits(to)
			}
		})
		if split > 0 {
			r, e := s.journal.Event(s.ctx, split)
			if e != nil {
				return e
			}
			var call struct {
				ID string `json:"call_id"`
			}
			if e := schema.Unmarshal(r.Data, &call); e != nil {
				return e
			}
			err = refuse(pointer, "event %d lies between call %s, at %d, and its result", to, call.ID, split).With("call_id", call.ID).
				With("next", "end before the call, or behind its result")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writing is find for a request that appends. done ends its use of the session.
func (x *Executor) writing(ctx context.Context, id string, here bool) (s *session, done func(), err error) {
	if s, err = x.find(ctx, id, here); err != nil {
		return nil, nil, err
	}
	free, err := s.write()
	if err != nil {
		s.leave()
		return nil, nil, err
	}
	return s, func() { free(); s.leave() }, nil
}

// write takes one of the session's slots for requests that append.
func (s *session) write() (done func(), err error) {
	select {
	case s.appends <- struct{}{}:
		return func() { <-s.appends }, nil
	default:
		return nil, schema.Errorf(schema.Backpressure, "%d requests append to session %s or wait to", maxAppends, s.id).With("session", s.id)
	}
}
