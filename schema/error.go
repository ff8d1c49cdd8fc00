package schema

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// An Error is a failure with a kind. It is the only error type of steno, and
// its JSON form is the only one:
//
//	{"ok":false,"error":{"kind":"…","message":"…","details":{…}}}
//
// Message and Details are safe to show to anybody; Err is the cause for the
// operator's log and for errors.Is and errors.As, and is never encoded.
// details.next is the next thing to do. Functions return error, never *Error.
type Error struct {
	Kind    Kind
	Message string         // one sentence
	Details map[string]any // flat and small
	Err     error          // the cause; never encoded
}

// Errorf makes an error of kind k. As with fmt.Errorf, a %w operand becomes
// the cause. Its text is part of the message, so a cause that may hold a path
// or a secret belongs into Err by hand.
func Errorf(k Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k, Message: err.Error(), Err: errors.Unwrap(err)}
}

// With adds a detail and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// Cause sets the cause and returns e.
func (e *Error) Cause(err error) *Error { e.Err = err; return e }

func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Kind)
	}
	return string(e.Kind) + ": " + e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches a Kind. Timeout also matches context.DeadlineExceeded and
// Cancelled context.Canceled, so those still match after a trip through JSON.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Kind == Timeout
	case context.Canceled:
		return e.Kind == Cancelled
	}
	k, ok := target.(Kind)
	return ok && e.Kind == k
}

// KindOf is the kind of err: "" for nil, Timeout and Cancelled for the context
// errors, Internal for an error that has none.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if k, ok := errors.AsType[Kind](err); ok {
		return k
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Cancelled
	}
	return Internal
}

// AsError gives err as an *Error. An error without a kind becomes Internal (or
// Timeout, Cancelled), shows its class only and keeps err as the cause.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	k := KindOf(err)
	m := map[Kind]string{Internal: "internal error", Timeout: "the deadline passed", Cancelled: "cancelled"}[k]
	return &Error{Kind: k, Message: m, Err: err}
}

// ErrorBody is what stands under "error" in the envelope, in a tool_result and
// in turn_failed.
type ErrorBody struct {
	Kind    Kind           `json:"kind"`
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

// NextFiles is the next step of any kind where this process, or the machine, may
// have no more files open.
const NextFiles = "raise the limit on open files, with ulimit -n or LimitNOFILE=, and try again"

// Body is err as it is shown: with details, and in them the next thing to do.
// An error among the details shows its kind only.
func Body(err error) ErrorBody {
	e := AsError(err)
	d := make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		switch err := v.(type) {
		case Kind, Reason:
		case error: // somebody's cause: it may name a path or a secret
			v = string(KindOf(err))
		}
		d[k] = v
	}
	if _, ok := d["next"]; !ok {
		s, _ := d["session"].(string)
		if d["next"] = e.Kind.Next(s); errors.Is(e.Err, syscall.EMFILE) || errors.Is(e.Err, syscall.ENFILE) {
			d["next"] = NextFiles
		}
	}
	return ErrorBody{e.Kind, e.Message, d}
}

type envelope struct {
	OK    bool      `json:"ok"`
	Error ErrorBody `json:"error"`
}

// Envelope is the JSON form of err, without a newline.
func Envelope(err error) []byte {
	body := Body(err)
	b, e := marshal(envelope{false, body})
	if e != nil { // a detail that has no JSON form is a bug of the caller's, not a reason to lose the error
		for k, v := range body.Details {
			if _, e := marshal(v); e != nil {
				body.Details[k] = "(no JSON form)"
			}
		}
		b, _ = marshal(envelope{false, body})
	}
	return b
}

func marshal(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

// ParseEnvelope gives the error that b is the envelope of, or nil if it is
// none. A kind that is not in the list is kept in details.kind under
// ToolFailed. Broken UTF-8 becomes U+FFFD: an error must not pass for an
// answer because its message was cut inside a character.
func ParseEnvelope(b []byte) error {
	var v envelope
	if json.Unmarshal(b, &v, jsontext.AllowInvalidUTF8(true)) != nil || v.OK || v.Error.Kind == "" {
		return nil
	}
	return v.Error.Err()
}

// Err is the error that b shows.
func (b ErrorBody) Err() error {
	e := &Error{Kind: b.Kind, Message: b.Message, Details: maps.Clone(b.Details)}
	if !e.Kind.Known() {
		e.With("kind", string(e.Kind)).Kind = ToolFailed
	}
	return e
}
