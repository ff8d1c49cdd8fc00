package executor

import (
	"cmp"
	"maps"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/journal"
	"steno/schema"
)

// A verdict is what became of an attempt, before it is recorded.
type verdict struct {
	result    Result
	err       error // instead of a result
	duration  time.Duration
	synthetic bool      // nobody knows; the record says so
	decided   *decision // why it does not run, if that is still to be recorded
	escalates bool      // it makes an edit task of an investigate task
	over      resolution
	replaced  int           // U+FFFD that inspect put in
	left      int           // bytes that it left out
	marks     []redact.Mark // of what it redacted
}

func (s *session) verdict(r Result, err error) verdict {
	if err != nil {
		e := *schema.AsError(err)
		if known := e.Kind.Known(); !known || e.Details["session"] == nil {
			d := map[string]any{"session": s.id}
			maps.Copy(d, e.Details)
			if !known { // the list is closed; what the tool says stays beside it
				d["kind"], _ = schema.Truncate(string(e.Kind), 256)
				e.Kind = schema.ToolFailed
			}
			e.Details = d
		}
		return verdict{err: &e}
	}
	return verdict{result: r}
}

// interrupted answers a call that started, has no result and must not run
// again by itself. It leaves the outcome open.
func (s *session) interrupted(id string) verdict {
	return verdict{synthetic: true, err: schema.Errorf(schema.Interrupted,
		"the executor stopped before a result was recorded; whether the tool took effect is not known").
		With("session", s.id).With("next", nextResolve(s.id, id))}
}

// Bounds of the parts of a result that stay in its line, as they are encoded.
// With them and what stands in the place of blobs the line has room.
const (
	maxSummary   = 4 << 10
	maxArtifacts = 64 << 10
	maxFiles     = 64 << 10  // of each list of files
	maxFailure   = 256 << 10 // of an error
)

// inspect sees every result before its event is encoded, as hide sees every
// call. What must not reach the record as it is changes here, before a byte of it
// is written or cut: text that is not Unicode, which is replaced and counted, and
// what is secret, which is redacted and marked.
func (x *Executor) inspect(out *verdict) {
	text := func(t *string, at string) {
		valid, replaced := schema.ValidUTF8(*t)
		out.replaced += replaced
		*t, out.marks = x.redact.Text(valid, at, out.marks)
	}
	r := &out.result
	out.replaced += r.replaced
	r.replaced = 0
	if is, ok := out.err.(*schema.Error); ok {
		e := *is // a verdict may be looked at twice, each time from its beginning
		out.err = &e
		text(&e.Message, "/error/message")
		e.Details, out.marks = x.details(e.Details, out.marks)
		return
	}
	text(&r.Output, "/output")
	text(&r.Summary, "/summary")
	value := func(v *jsontext.Value, at string) {
		if len(*v) == 0 {
			return
		}
		b, n, err := schema.Compact(nil, *v, 2)
		if err != nil || len(b) > MaxOutput {
			out.left += len(*v)
			*v = nil
			return
		}
		out.replaced += n
		*v, out.marks = x.redact.JSON(b, at, out.marks)
	}
	value(&r.Content, "/content")
	value(&r.Structured, "/structured")
	value(&r.Artifacts, "/artifacts")
	value(&r.Meta, "/meta")
	r.Patch, _ = x.redact.JSON(r.Patch, "", nil) // an event of its own, without marks
	r.FilesRead, out.marks = x.redact.Texts(r.FilesRead, "/files_read", out.marks)
	r.FilesChanged, out.marks = x.redact.Texts(r.FilesChanged, "/files_changed", out.marks)
}

// A longText is a detail of an error that is cut to maxKilledOutput when nothing
// secret is in it any more: half a secret would not be found.
type longText string

// details redacts details of an error.
func (x *Executor) details(d map[string]any, m []redact.Mark) (map[string]any, []redact.Mark) {
	if long, ok := d["output"].(longText); ok {
		var text string
		text, m = x.redact.Text(string(long), "/error/details/output", m)
		d = maps.Clone(d)
		d["output"], _ = schema.Truncate(text, maxKilledOutput)
	}
	b, err := json.Marshal(d, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return d, m // they will be left out
	}
	n := len(m)
	if b, m = x.redact.JSON(b, "/error/details", m); len(m) == n {
		return d, m
	}
	var clean map[string]jsontext.Value
	if json.Unmarshal(b, &clean, jsontext.AllowInvalidUTF8(true)) != nil {
		return nil, m
	}
	d = make(map[string]any, len(clean))
	for k, v := range clean {
		d[k] = v
	}
	return d, m
}

// record is the tool_result. What is large in it becomes a blob; what is above
// MaxOutput is cut, or left out, and marked.
func (out *verdict) record(d *desk, req *Request, attempt uint64) journal.Entry {
	e := encoder{Object: d.object(), replaced: out.replaced, left: out.left}
	e.Grow(len(req.CallID) + min(len(out.result.Output), schema.MaxInline) + 256)
	e.Text("call_id", req.CallID).Uint("attempt", attempt).Bool("ok", out.err == nil && out.result.OK)
	if out.err != nil {
		e.failure(out.err)
	} else {
		e.success(&out.result)
	}
	e.Uint("duration_us", uint64(out.duration.Microseconds()))
	if out.synthetic {
		e.Bool("synthetic", true)
	}
	out.over.record(&e.Object)
	if e.cut != nil {
		e.Raw("truncated", e.cut)
	} else if e.left > 0 {
		e.Raw("truncated", truncated(MaxOutput, e.left, "left_out"))
	}
	if len(out.marks) > 0 {
		e.Raw("redacted", redact.AppendMarks(nil, out.marks))
	}
	if e.replaced > 0 {
		e.Uint("replaced", uint64(e.replaced))
	}
	return journal.Entry{Type: schema.TypeToolResult, Data: d.done(&e.Object), Taken: e.taken}
}

// An encoder makes a result and takes down what it had to change.
type encoder struct {
	schema.Object
	replaced int    // characters that are not Unicode
	cut      []byte // what was cut of the output
	left     int    // bytes of the parts that were left out, whole or in part
	taken    []schema.Blob
}

func truncated(limit, bytes int, policy string) []byte {
	var o schema.Object
	return o.Uint("limit", uint64(limit)).Uint("bytes", uint64(bytes)).Text("policy", policy).Bytes()
}

func (e *encoder) failure(err error) {
	body := schema.Body(err)
	message := body.Message
	// Text may grow when it is escaped: a NUL takes six bytes.
	for limit := maxFailure; ; limit /= 2 {
		body.Message, _ = schema.Truncate(message, limit)
		b, err := json.Marshal(body, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
		if err == nil && len(b) <= maxFailure {
			e.Raw("error", b)
			return
		}
		// Details that are no JSON, or too long.
		body.Details = map[string]any{"next": body.Kind.Next("")}
	}
}

func (e *encoder) success(r *Result) {
	output, dropped := cutText(r.Output, r.Bytes, cmp.Or(r.limit, MaxOutput))
	if dropped > 0 || r.Bytes > 0 { // by us, or by the tool itself
		e.cut = truncated(cmp.Or(r.limit, MaxOutput), max(r.Bytes, len(r.Output)), "head_tail")
	}
	if b := schema.TextBlob("output", output); b != nil {
		e.blob(b)
	} else {
		e.Text("output", output)
	}
	if r.ExitCode != nil {
		e.Raw("exit_code", strconv.AppendInt(nil, int64(*r.ExitCode), 10))
	}
	if r.Summary != "" {
		summary, _ := schema.Truncate(r.Summary, maxSummary)
		e.Text("summary", summary)
	}
	e.part("content", r.Content)
	e.part("structured", r.Structured)
	e.inline("artifacts", r.Artifacts, maxArtifacts)
	e.inline("meta", r.Meta, maxArtifacts)
	e.files("files_read", r.FilesRead)
	e.files("files_changed", r.FilesChanged)
	if r.Terminate {
		e.Bool("terminate", true)
	}
}

// part adds a value that inspect has let pass.
func (e *encoder) part(key string, value jsontext.Value) {
	if len(value) == 0 {
		return
	}
	if blob := schema.ValueBlob(key, value); blob != nil {
		e.blob(blob)
		return
	}
	e.Raw(key, value)
}

// inline adds a value that stays in the line, or is left out.
func (e *encoder) inline(key string, value jsontext.Value, limit int) {
	if len(value) == 0 {
		return
	}
	b, n, err := schema.Compact(nil, value, 2)
	if err != nil || len(b) > limit {
		e.left += len(value)
		return
	}
	e.replaced += n
	e.Raw(key, b)
}

// blob adds a value that will not be in the line.
func (e *encoder) blob(b *schema.Blob) {
	e.Blob(b)
	e.taken = append(e.taken, *b)
}

// files adds as many names as there is room for.
func (e *encoder) files(key string, names []string) {
	if len(names) == 0 {
		return
	}
	b := []byte{'['}
	for i, name := range names {
		valid, n := schema.ValidUTF8(name)
		at := len(b)
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(b, valid) // an error only says that text was replaced
		if len(b) > maxFiles {
			b = b[:at]
			for _, name := range names {
				e.left += len(name)
			}
			break
		}
		e.replaced += n
	}
	e.Raw(key, append(b, ']'))
}
