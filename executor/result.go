package executor

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A verdict is what became of an attempt, before it is recorded.
type verdict struct {
	result    Result
	err       error // instead of a result
	duration  time.Duration
	synthetic bool // nobody knows; the record says so
}

func (s *session) verdict(r Result, err error) verdict {
	if err != nil {
		e := *schema.AsError(err)
		if !e.Kind.Known() { // the list is closed
			e.Kind = schema.ToolFailed
		}
		if e.Details == nil || e.Details["session"] == nil {
			d := map[string]any{"session": s.id}
			for k, v := range e.Details {
				d[k] = v
			}
			e.Details = d
		}
		return verdict{err: &e}
	}
	return verdict{result: r}
}

// interrupted answers a call that started, has no result and must not run
// again by itself. It leaves the outcome open.
func (s *session) interrupted() verdict {
	v := s.verdict(Result{}, schema.Errorf(schema.Interrupted,
		"the executor stopped before a result was recorded; whether the tool took effect is not known"))
	v.synthetic = true
	return v
}

// Bounds of the parts of a result, as they are encoded. What is left of a line
// is for the output.
const (
	maxSummary = 4 << 10
	maxPart    = MaxOutput // of content and of structured
	maxFiles   = 64 << 10  // of each list of files
)

// inspect sees every result before it is encoded, and gives the data of the
// tool_result. Whatever must happen to a value before its first byte is written
// happens here: text becomes valid Unicode, and what is too long for the record
// is cut and marked.
func (x *Executor) inspect(req *Request, attempt uint64, out *verdict) []byte {
	// Text may grow when it is escaped: a NUL takes six bytes.
	for limit := MaxOutput; ; limit /= 2 {
		if data := out.encode(req, attempt, limit); len(data) <= maxData {
			return data
		}
	}
}

// encode is the data of a tool_result whose output, or message, is cut at
// limit bytes.
func (out *verdict) encode(req *Request, attempt uint64, limit int) []byte {
	e := encoder{}
	e.Text("call_id", req.CallID).Uint("attempt", attempt).Bool("ok", out.err == nil && out.result.OK)
	if out.err != nil {
		e.failure(out.err, limit)
	} else {
		e.success(&out.result, limit)
	}
	e.Uint("duration_us", uint64(out.duration.Microseconds()))
	if out.synthetic {
		e.Bool("synthetic", true)
	}
	if e.cut != nil {
		e.Raw("truncated", e.cut)
	} else if e.left > 0 {
		e.Raw("truncated", truncated(maxPart, e.left, "left_out"))
	}
	if e.replaced > 0 {
		e.Uint("replaced", uint64(e.replaced))
	}
	return e.Bytes()
}

// An encoder makes a result and takes down what it had to change.
type encoder struct {
	schema.Object
	replaced int    // characters that are not Unicode
	cut      []byte // what was cut of the output
	left     int    // bytes of the parts that were left out, whole or in part
}

func truncated(limit, bytes int, policy string) []byte {
	var o schema.Object
	return o.Uint("limit", uint64(limit)).Uint("bytes", uint64(bytes)).Text("policy", policy).Bytes()
}

func (e *encoder) valid(text string) string {
	text, n := schema.ValidUTF8(text)
	e.replaced += n
	return text
}

func (e *encoder) failure(err error, limit int) {
	body := schema.Body(err)
	body.Message, _ = Truncate(e.valid(body.Message), limit)
	b, err := json.Marshal(body, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil || len(b) > limit { // details that are no JSON, or no details
		body.Details = map[string]any{"next": body.Kind.Next("")}
		b, _ = json.Marshal(body, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	}
	e.Raw("error", b)
}

func (e *encoder) success(r *Result, limit int) {
	text := e.valid(r.Output)
	output, dropped := Truncate(text, limit)
	if dropped > 0 {
		e.cut = truncated(limit, len(text), "head_tail")
	}
	e.Text("output", output)
	if r.ExitCode != nil {
		e.Raw("exit_code", strconv.AppendInt(nil, int64(*r.ExitCode), 10))
	}
	if r.Summary != "" {
		summary, _ := Truncate(e.valid(r.Summary), maxSummary)
		e.Text("summary", summary)
	}
	e.part("content", r.Content)
	e.part("structured", r.Structured)
	e.files("files_read", r.FilesRead)
	e.files("files_changed", r.FilesChanged)
	if r.Terminate {
		e.Bool("terminate", true)
	}
}

// part adds a value that is whole or not there at all.
func (e *encoder) part(key string, value jsontext.Value) {
	if len(value) == 0 {
		return
	}
	b, n, err := schema.Compact(nil, value, 2)
	if err != nil || len(b) > maxPart {
		e.left += len(value)
		return
	}
	e.Raw(key, b)
	e.replaced += n
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
