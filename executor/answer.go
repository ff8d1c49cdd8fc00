package executor

import (
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// A reply is what a verb answers with.
type reply struct {
	data   []byte
	header nats.Header
}

// answer is the reply that says v; session is empty if it is about none.
func answer(v any, x *Executor, session string, head schema.Head) (reply, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return reply{}, err
	}
	if session == "" {
		return reply{data: b}, nil
	}
	return reply{b, x.headers(session, head, "")}, nil
}

// respond answers with a reply or the error envelope. It does not use the
// micro request's own methods: those write what the service reads for its
// statistics as soon as the handler has returned.
func (x *Executor) respond(to string, out reply, err error) {
	// An answer that goes to one of our own subjects, or to one of the server's,
	// would be taken for a request by whoever serves it, and for ours.
	if to == "" || to[0] == '$' || strings.HasPrefix(to, x.cfg.Prefix+".") {
		return
	}
	x.post(outgoing{msg: x.message(to, out, err)})
}

// message is an answer.
func (x *Executor) message(to string, out reply, err error) *nats.Msg {
	msg := &nats.Msg{Subject: to, Data: out.data, Header: out.header}
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	if err != nil {
		e := schema.AsError(err)
		msg.Data, _ = x.redact.JSON(schema.Envelope(err), "", nil) // a refusal may quote what it refuses
		failure(msg, e)
		if e.Kind == schema.Internal {
			x.log.Error("internal error", "err", err)
		}
	}
	if msg.Header.Get(HeaderExecutor) == "" {
		msg.Header.Set(HeaderExecutor, x.cfg.Holder.ID)
	}
	return msg
}

// failure says in the headers of an answer that it is an error.
func failure(msg *nats.Msg, e *schema.Error) {
	msg.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(e.Kind.Info().Status))
	msg.Header.Set(micro.ErrorHeader, string(e.Kind))
	msg.Header.Set(HeaderErrorKind, string(e.Kind))
	if id, _ := e.Details["session"].(string); schema.ValidSession(id) {
		msg.Header.Set(HeaderSession, id)
	}
	if id, _ := e.Details["call_id"].(string); schema.CheckCallID(id) == nil {
		msg.Header.Set(HeaderCall, id)
	}
}

// send sends an answer.
func (x *Executor) send(msg *nats.Msg) {
	err := x.cfg.Conn.PublishMsg(msg)
	if errors.Is(err, nats.ErrMaxPayload) && msg.Header.Get(HeaderErrorKind) == "" {
		large := schema.Errorf(schema.PayloadTooLarge, "the answer has %d bytes; the server takes %d", len(msg.Data), x.cfg.Conn.MaxPayload()).
			With("next", "read it from the log; run: steno session show")
		err = x.cfg.Conn.PublishMsg(x.message(msg.Subject, reply{}, large))
	}
	if err != nil {
		x.log.Warn("an answer could not be sent; a repeated request gets it from the record", "err", err)
	}
}

// headers of an answer; call is empty if it is about none.
func (x *Executor) headers(session string, head schema.Head, call string) nats.Header {
	v := [...]string{session, head.String(), x.cfg.Holder.ID, call} // one allocation for all
	h := make(nats.Header, len(v))
	h[HeaderSession], h[HeaderHead], h[HeaderExecutor] = v[0:1:1], v[1:2:2], v[2:3:3]
	if call != "" {
		h[HeaderCall] = v[3:4:4]
	}
	return h
}
