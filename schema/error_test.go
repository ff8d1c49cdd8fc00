package schema_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"steno/schema"
)

// parsed reads an envelope with another decoder than the one that wrote it.
func parsed(t testing.TB, b []byte) (kind, message string, details map[string]any) {
	t.Helper()
	var v struct {
		OK    *bool
		Error struct {
			Kind, Message string
			Details       map[string]any
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if v.OK == nil || *v.OK || v.Error.Details == nil {
		t.Errorf("not an error envelope: %s", b)
	}
	return v.Error.Kind, v.Error.Message, v.Error.Details
}

func TestT14EnvelopeHasOneShape(t *testing.T) {
	err := schema.Errorf(schema.CallConflict, "call %s has other arguments", "c1").With("session", "s1").With("call", "c1").With("seq", 7)
	const want = `{"ok":false,"error":{"kind":"call_conflict","message":"call c1 has other arguments",` +
		`"details":{"call":"c1","next":"use a new call id for other arguments","seq":7,"session":"s1"}}}`
	for range 20 { // the order of a map must not show
		if got := string(schema.Envelope(err)); got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
	}
	if _, ok := err.Details["next"]; ok {
		t.Error("Envelope wrote into the details of the error")
	}
}

func TestEnvelopeKeepsANextOfItsOwn(t *testing.T) {
	_, _, d := parsed(t, schema.Envelope(schema.Errorf(schema.NotFound, "x").With("next", "do this")))
	if d["next"] != "do this" {
		t.Errorf("next is %v", d["next"])
	}
	_, _, d = parsed(t, schema.Envelope(schema.Errorf(schema.CorruptLogLine, "x").With("session", "a; reboot")))
	if d["next"] != "run: steno repair SESSION" {
		t.Errorf("next is %v", d["next"])
	}
}

// Whatever could not be done for want of a descriptor, the limit is what to look
// at.
func TestTheNextStepWithoutDescriptors(t *testing.T) {
	for _, cause := range []error{syscall.EMFILE, &fs.PathError{Op: "open", Path: "x", Err: syscall.ENFILE}} {
		_, _, d := parsed(t, schema.Envelope(schema.Errorf(schema.LogWriteFailed, "x").Cause(cause)))
		if d["next"] != schema.NextFiles || !strings.Contains(schema.NextFiles, "ulimit -n") {
			t.Errorf("after %v next is %v", cause, d["next"])
		}
	}
	_, _, d := parsed(t, schema.Envelope(schema.Errorf(schema.LogWriteFailed, "x").Cause(syscall.EIO)))
	if d["next"] != schema.LogWriteFailed.Next("") {
		t.Errorf("next is %v", d["next"])
	}
}

func TestErrorsKeepTheirKindThroughJSON(t *testing.T) {
	for _, k := range schema.Kinds() {
		in := schema.Errorf(k.Kind, "message with \"quotes\", \n and <html>").With("n", "v")
		err := schema.ParseEnvelope(schema.Envelope(fmt.Errorf("on the way: %w", in)))
		if !errors.Is(err, k.Kind) || schema.KindOf(err) != k.Kind {
			t.Errorf("%s came back as %v", k.Kind, err)
			continue
		}
		e := schema.AsError(err)
		if e.Message != in.Message || e.Details["n"] != "v" || e.Details["next"] != k.Kind.Next("") {
			t.Errorf("%s came back with %q, %v", k.Kind, e.Message, e.Details)
		}
	}
}

func TestContextErrorsSurviveJSON(t *testing.T) {
	for _, c := range []struct {
		err, other error
		kind       schema.Kind
	}{
		{context.DeadlineExceeded, context.Canceled, schema.Timeout},
		{context.Canceled, context.DeadlineExceeded, schema.Cancelled},
	} {
		wrapped := fmt.Errorf("tool: %w", c.err)
		if schema.KindOf(wrapped) != c.kind {
			t.Errorf("the kind of %v is %s", wrapped, schema.KindOf(wrapped))
		}
		for what, err := range map[string]error{
			"as an error":    schema.AsError(wrapped),
			"through JSON":   schema.ParseEnvelope(schema.Envelope(wrapped)),
			"from the start": schema.Errorf(c.kind, "x"),
		} {
			if !errors.Is(err, c.err) || !errors.Is(err, c.kind) {
				t.Errorf("%s: %v is not %v", what, err, c.err)
			}
			if errors.Is(err, c.other) || errors.Is(err, schema.Internal) {
				t.Errorf("%s: %v is %v too", what, err, c.other)
			}
		}
		if !errors.Is(schema.AsError(wrapped), wrapped) {
			t.Error("the cause is lost")
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want schema.Kind
	}{
		{nil, ""},
		{errors.New("x"), schema.Internal},
		{schema.NotFound, schema.NotFound},
		{fmt.Errorf("x: %w", schema.NotFound), schema.NotFound},
		{fmt.Errorf("x: %w", schema.Errorf(schema.SyncFailed, "y")), schema.SyncFailed},
		{schema.Errorf(schema.SyncFailed, "y").Cause(context.Canceled), schema.SyncFailed},
		{errors.Join(errors.New("x"), schema.Errorf(schema.NoMatch, "y")), schema.NoMatch},
		{schema.SumMismatch, schema.Internal}, // a reason is no kind
	} {
		if got := schema.KindOf(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
		if c.err == nil {
			if schema.AsError(nil) != nil {
				t.Error("AsError of nil is not nil")
			}
			continue
		}
		e := schema.AsError(c.err)
		if e.Kind != c.want {
			t.Errorf("%v: AsError gives %s", c.err, e.Kind)
		}
		if kind, _, _ := parsed(t, schema.Envelope(c.err)); kind != string(c.want) {
			t.Errorf("%v: the envelope has %s", c.err, kind)
		}
	}
}

// A cause is for the operator's log. Paths and secrets stand in it.
func TestCausesNeverLeak(t *testing.T) {
	const secret = "hunter2"
	cause := &fs.PathError{Op: "open", Path: "/root/" + secret, Err: errors.New(secret)}
	for what, err := range map[string]error{
		"no kind":           cause,
		"wrapped":           fmt.Errorf("%s: %w", secret, cause),
		"around an error":   fmt.Errorf("%s: %w", secret, schema.Errorf(schema.LogReadFailed, "the store could not be read")),
		"around a kind":     fmt.Errorf("%s: %w", secret, schema.LogReadFailed),
		"around a deadline": fmt.Errorf("%s: %w", secret, context.DeadlineExceeded),
		"a cause":           schema.Errorf(schema.LogReadFailed, "the store could not be read").Cause(cause),
		"joined":            errors.Join(cause, schema.Errorf(schema.LogReadFailed, "x").Cause(cause)),
		"as a detail":       schema.Errorf(schema.LogReadFailed, "x").With("err", errors.New(secret)),
		"a path as detail":  schema.Errorf(schema.LogReadFailed, "x").With("err", &fs.PathError{Op: "open", Path: secret, Err: syscall.ENOENT}),
		"a bare reason":     fmt.Errorf("%s: %w", secret, schema.SumMismatch),
	} {
		if b := schema.Envelope(err); strings.Contains(string(b), secret) {
			t.Errorf("%s: %s", what, b)
		}
	}
	e := schema.Errorf(schema.LogReadFailed, "x").Cause(cause)
	if !errors.Is(e, error(cause)) || strings.Contains(e.Error(), secret) {
		t.Errorf("%v does not keep its cause to itself", e)
	}
	if !errors.Is(schema.AsError(cause), error(cause)) {
		t.Error("the operator's log has lost the cause")
	}
}

func TestErrorfTakesACauseByWrapping(t *testing.T) {
	cause := errors.New("cause")
	e := schema.Errorf(schema.NotFound, "no %s: %w", "file", cause)
	if e.Message != "no file: cause" || !errors.Is(e, cause) || e.Error() != "not_found: no file: cause" {
		t.Errorf("got %q, %q, %v", e.Message, e.Error(), e.Err)
	}
	if e := schema.Errorf(schema.NotFound, "plain"); e.Unwrap() != nil {
		t.Errorf("the cause is %v", e.Unwrap())
	}
	if e := (&schema.Error{Kind: schema.NotFound}); e.Error() != "not_found" {
		t.Errorf("got %q", e.Error())
	}
}

func TestUnknownKindsBecomeToolFailed(t *testing.T) {
	for _, c := range []struct{ in, kind string }{
		{`{"ok":false,"error":{"kind":"quota","message":"m","details":{"n":1}}}`, "quota"},
		{`{"ok":false,"error":{"kind":"TIMEOUT","message":"m"}}`, "TIMEOUT"},
		{`{"ok":false,"error":{"kind":"x","message":"m","details":{"kind":"y"}}}`, "x"},
		{`{"ok":false,"error":{"kind":"x\ud800","message":"m","details":null}}`, "x\uFFFD"},
	} {
		err := schema.ParseEnvelope([]byte(c.in))
		if !errors.Is(err, schema.ToolFailed) {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if e := schema.AsError(err); e.Details["kind"] != c.kind || e.Message != "m" {
			t.Errorf("%s: %q, %v", c.in, e.Message, e.Details)
		}
	}
}

func TestErrOfABodyLeavesTheBodyAlone(t *testing.T) {
	b := schema.ErrorBody{Kind: "quota", Message: "m", Details: map[string]any{"n": 1}}
	_ = b.Err()
	_ = schema.AsError(b.Err()).With("more", 2)
	if len(b.Details) != 1 {
		t.Errorf("the details became %v", b.Details)
	}
}

func TestWhatIsNoErrorEnvelopeGivesNoError(t *testing.T) {
	for _, in := range []string{"", "null", "[]", "{", `{}`, `{"ok":true}`, `{"ok":false}`, `{"ok":false,"error":{}}`, `{"ok":false,"error":null}`,
		`{"ok":true,"error":{"kind":"timeout"}}`, `{"ok":false,"error":"timeout"}`, `{"ok":false,"error":{"kind":7}}`,
		`{"ok":false,"ERROR":{"kind":"timeout"}}`, `{"ok":false,"output":"","exit_code":1}`} {
		if err := schema.ParseEnvelope([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// An error must not pass for an answer because a message was cut inside a
// character on its way.
func TestBrokenTextDoesNotHideAnError(t *testing.T) {
	err := schema.ParseEnvelope([]byte("{\"ok\":false,\"error\":{\"kind\":\"timeout\",\"message\":\"caf\xc3\",\"details\":{\"a\":\"\\ud800\"}}}"))
	if !errors.Is(err, schema.Timeout) || schema.AsError(err).Message != "caf\uFFFD" {
		t.Errorf("got %v", err)
	}
	b := schema.Envelope(schema.Errorf(schema.Timeout, "caf\xc3").With("a", "\xff").With("\xfe", 1))
	if !utf8.Valid(b) {
		t.Errorf("the envelope is not UTF-8: %q", b)
	}
	if _, m, d := parsed(t, b); m != "caf\uFFFD" || d["a"] != "\uFFFD" {
		t.Errorf("got %s", b)
	}
}

func TestErrorAsADetailShowsItsKind(t *testing.T) {
	_, _, d := parsed(t, schema.Envelope(schema.Errorf(schema.SyncFailed, "m").
		With("kind", schema.Timeout).With("reason", schema.SumMismatch).With("first", schema.Errorf(schema.NoMatch, "x")).With("then", errors.New("x"))))
	for k, want := range map[string]string{"kind": "timeout", "reason": "sum_mismatch", "first": "no_match", "then": "internal"} {
		if d[k] != want {
			t.Errorf("details.%s is %v, want %s", k, d[k], want)
		}
	}
}

func TestDetailWithoutAJSONFormIsDroppedAlone(t *testing.T) {
	for what, v := range map[string]any{"a function": func() {}, "a channel": make(chan int), "not a number": math.NaN()} {
		kind, m, d := parsed(t, schema.Envelope(schema.Errorf(schema.SyncFailed, "m").With("bad", v).With("segment", 3)))
		if kind != "sync_failed" || m != "m" || d["segment"] != 3.0 || d["bad"] != "(no JSON form)" || d["next"] == nil {
			t.Errorf("%s: %s, %s, %v", what, kind, m, d)
		}
	}
}
