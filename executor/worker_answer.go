package executor

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// workerAnswer is what a worker answers.
type workerAnswer struct {
	OK           *bool             `json:"ok"`
	Output       string            `json:"output"`
	ExitCode     *int              `json:"exit_code,omitzero"`
	Summary      string            `json:"summary,omitzero"`
	Content      jsontext.Value    `json:"content,omitzero"`
	Structured   jsontext.Value    `json:"structured,omitzero"`
	Artifacts    jsontext.Value    `json:"artifacts,omitzero"`
	FilesRead    []string          `json:"files_read,omitempty"`
	FilesChanged []string          `json:"files_changed,omitempty"`
	Terminate    bool              `json:"terminate,omitzero"`
	Error        *schema.ErrorBody `json:"error,omitzero"`
}

// answer reads what a worker has answered.
func (w *workers) answer(m *nats.Msg, call *Invocation) (Result, error) {
	res, why, err := readAnswer(m)
	if why != "" {
		// As of any tool that fails unexpectedly the model sees the class only.
		w.x.log.Error("a worker failed unexpectedly", "session", call.Session, "call", call.CallID, "subject", m.Subject, "err", why)
	}
	return res, err
}

var errNoResult = errors.New("the answer of a worker is no result")

// readAnswer reads the answer of a worker: a result, or an error that it
// declares. cause is for operators.
func readAnswer(m *nats.Msg) (res Result, cause string, err error) {
	code := m.Header.Get(micro.ErrorCodeHeader)
	if code != "" {
		if err := schema.ParseEnvelope(m.Data); err != nil {
			return Result{}, "", declared(err)
		}
		return Result{}, m.Header.Get(micro.ErrorHeader), schema.Errorf(schema.ToolFailed, "the worker failed unexpectedly").With("class", "worker").With("code", shorten(code, 64))
	}
	bad := func(why string) (Result, string, error) {
		return Result{}, "", schema.Errorf(schema.ToolFailed, "the worker answered, and its answer is no result: %s", why).
			With("next", "look whether the tool took effect; the worker answers with one JSON object that has ok and output").Cause(errNoResult)
	}
	sound, replaced, err := schema.Compact(nil, m.Data, 1)
	switch {
	case err != nil:
		return bad(schema.AsError(err).Message)
	case sound[0] != '{':
		return bad("it is no object")
	}
	var a workerAnswer
	if err := json.Unmarshal(sound, &a, jsontext.AllowInvalidUTF8(true)); err != nil {
		where := ""
		if e, ok := errors.AsType[*json.SemanticError](err); ok {
			where = " at " + shorten(string(e.JSONPointer), maxShown)
		}
		return bad("it does not have the form of one" + where)
	}
	switch {
	case a.Error != nil && a.Error.Kind != "":
		return Result{}, "", declared(a.Error.Err())
	case a.Error != nil:
		return bad("its error has no kind")
	case a.OK == nil:
		return bad("it has no ok")
	}
	for _, v := range []*jsontext.Value{&a.Content, &a.Structured, &a.Artifacts} {
		if v.Kind() == 'n' {
			*v = nil
		}
	}
	return Result{OK: *a.OK, Output: a.Output, ExitCode: a.ExitCode, Summary: a.Summary, Content: a.Content, Structured: a.Structured, Artifacts: a.Artifacts,
		FilesRead: a.FilesRead, FilesChanged: a.FilesChanged, Terminate: a.Terminate, replaced: replaced}, "", nil
}

// mayDeclare are the kinds that a worker may give its error. Those of policy,
// approvals, leases, logs and the queue are steno's alone to say, and so is
// interrupted. What leaves the outcome open is there only where it is the
// worker's own word for it: that it was told to stop, or does not know.
var mayDeclare = []schema.Kind{
	schema.InvalidArgs, schema.OutsideWorkspace, schema.ProtectedPath, schema.NotFound, schema.ResourceMissing, schema.NoMatch, schema.NotUnique,
	schema.ReadFailed, schema.WriteFailed, schema.CommandFailed, schema.PayloadTooLarge, schema.ToolFailed, schema.Unavailable,
	schema.Timeout, schema.Cancelled, schema.OutcomeUnknown,
}

// declared is the error that a worker has given as its answer, with a kind that
// it may give: of any other it says that beside tool_failed, as of one that is on
// no list.
func declared(err error) error {
	e := schema.AsError(err)
	if k := e.Kind; !slices.Contains(mayDeclare, k) && k.Info().Origin != "provider" {
		e.With("kind", string(k)).Kind = schema.ToolFailed
	}
	delete(e.Details, "session") // which steno says
	return e
}

// sound says whether a result that comes late is what its tool declares, if the
// tool is still known.
func (w *workers) sound(tool string, res *Result, dryRun bool) error {
	e, err := w.x.cfg.Tools.lookup(tool)
	if err != nil {
		return nil
	}
	return e.sound(res, dryRun)
}

// A ticket is what a worker shows to have a result recorded that nobody waits
// for: the attempt, and a keyed hash of it that only executors of the store can
// make.
type ticket struct {
	Session string `json:"s"`
	CallID  string `json:"c"`
	Attempt uint64 `json:"a"`
	Epoch   uint64 `json:"e"`
	Seq     uint64 `json:"q"`
	Tool    string `json:"t"`
	DryRun  bool   `json:"d,omitzero"`
}

func (w *workers) ticket(tool string, call *Invocation) string {
	text := asJSON(ticket{call.Session, call.CallID, uint64(call.Attempt), call.Epoch, call.Seq, tool, call.DryRun})
	return base64.RawURLEncoding.EncodeToString(append(w.mac(text), text...))
}

const macSize = 16

func (w *workers) mac(text []byte) []byte {
	h := hmac.New(sha256.New, w.secret)
	h.Write([]byte("the result of an attempt\n"))
	h.Write(text)
	return h.Sum(nil)[:macSize]
}

// resultSubject is where tickets are shown.
const resultSubject = "calls.result"

var (
	workerVerb      = verb{resultSubject, (*Executor).runWorkerResult, false, ofWrites}
	workerEndpoints = []endpoint{{"calls-result", workerVerb.name + ".*", workerSchema, endAnswerSchema, workerVerb, false}}
)

const workerSchema = `{"type":"object","required":["ok"],"properties":{"ok":{"type":"boolean"},"output":{"type":"string"},"error":{"type":"object"}}}`

// runWorkerResult takes the answer of a worker whose executor does not listen for
// it any more: the subject has the ticket of the attempt.
func (x *Executor) runWorkerResult(ctx context.Context, shown string, payload []byte, _ bool) (reply, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(shown)
	var t ticket
	if err != nil || len(b) <= macSize || x.workers == nil || !hmac.Equal(b[:macSize], x.workers.mac(b[macSize:])) || schema.Unmarshal(b[macSize:], &t) != nil {
		return reply{}, schema.Errorf(schema.NotAuthenticated, "this is no ticket for a late result of this store").
			With("next", "send the answer to the subject that stands in "+HeaderResultTo+" of the request")
	}
	res, _, err := readAnswer(&nats.Msg{Data: payload})
	if errors.Is(err, errNoResult) {
		return reply{}, schema.Errorf(schema.InvalidArgs, "%s", schema.AsError(err).Message).With("session", t.Session).With("call_id", t.CallID)
	}
	if err == nil {
		err = x.workers.sound(t.Tool, &res, t.DryRun)
	}
	out := verdict{result: res}
	if err != nil {
		out.err = schema.AsError(err).With("session", t.Session)
	}
	if !out.genuine() {
		return reply{}, schema.Errorf(schema.InvalidArgs, "this is no late result: it leaves the outcome open").With("session", t.Session).With("call_id", t.CallID)
	}
	x.inspect(&out)
	data := out.inline(&Request{CallID: t.CallID}, t.Attempt)
	body, err := encode(lateResult{t.Session, t.CallID, t.Attempt, t.Epoch, t.Seq, bytes.Clone(data)})
	if err != nil {
		return reply{}, err
	}
	return x.route(ctx, resultVerb, t.Session, body, 0, false)
}
