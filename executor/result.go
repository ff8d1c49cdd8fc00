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
func interrupted() verdict {
	return verdict{synthetic: true, err: schema.Errorf(schema.Interrupted,
		"the executor stopped before a result was recorded; whether the tool took effect is not known")}
}

// inspect sees every call and every result before they are encoded, and gives
// the data of the tool_result. Whatever must happen to a value before its
// first byte is written happens here: text becomes valid Unicode, and what is
// too long for the record is cut and marked.
func (x *Executor) inspect(req *Request, attempt uint64, out *verdict) []byte {
	limit := MaxOutput
	for {
		data := out.encode(req, attempt, limit)
		if len(data) <= maxData {
			return data
		}
		// Text that grows when it is escaped: NULs and the like take six bytes
		// each. What is not text goes first.
		if len(out.result.Content) > 0 || len(out.result.Structured) > 0 {
			out.result.Content, out.result.Structured = nil, nil
			continue
		}
		limit /= 2
	}
}

// encode is the data of a tool_result whose texts are cut at limit bytes.
func (out *verdict) encode(req *Request, attempt uint64, limit int) []byte {
	var o schema.Object
	replaced := 0
	o.Text("call_id", req.CallID).Uint("attempt", attempt).Bool("ok", out.err == nil && out.result.OK)
	r := &out.result
	if out.err != nil {
		body := schema.Body(out.err)
		body.Message, _ = Truncate(body.Message, limit)
		b, err := json.Marshal(body, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
		if err != nil || len(b) > limit {
			body.Details = map[string]any{"next": body.Kind.Next("")}
			b, _ = json.Marshal(body, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
		}
		o.Raw("error", b)
	} else {
		text, n := schema.ValidUTF8(r.Output)
		replaced += n
		cut, dropped := Truncate(text, limit)
		o.Text("output", cut)
		if r.ExitCode != nil {
			o.Raw("exit_code", strconv.AppendInt(nil, int64(*r.ExitCode), 10))
		}
		if r.Summary != "" {
			summary, n := schema.ValidUTF8(r.Summary)
			replaced += n
			summary, _ = Truncate(summary, 4<<10)
			o.Text("summary", summary)
		}
		for _, v := range [...]struct {
			key   string
			value jsontext.Value
		}{{"content", r.Content}, {"structured", r.Structured}} {
			if len(v.value) == 0 || len(v.value) > MaxOutput {
				continue
			}
			if b, n, err := schema.Compact(nil, v.value, 2); err == nil {
				o.Raw(v.key, b)
				replaced += n
			}
		}
		if dropped > 0 || r.Bytes > 0 {
			var t schema.Object
			o.Raw("truncated", t.Uint("limit", uint64(limit)).Uint("bytes", uint64(max(r.Bytes, len(text)))).Text("policy", "head_tail").Bytes())
		}
	}
	o.Uint("duration_us", uint64(out.duration.Microseconds()))
	texts(&o, "files_read", r.FilesRead)
	texts(&o, "files_changed", r.FilesChanged)
	if r.Terminate {
		o.Bool("terminate", true)
	}
	if out.synthetic {
		o.Bool("synthetic", true)
	}
	if replaced > 0 {
		o.Uint("replaced", uint64(replaced))
	}
	return o.Bytes()
}

// maxFiles bounds the names of files in a result.
const maxFiles = 1000

func texts(o *schema.Object, key string, list []string) {
	if len(list) == 0 {
		return
	}
	b := []byte{'['}
	for i, t := range list[:min(len(list), maxFiles)] {
		if i > 0 {
			b = append(b, ',')
		}
		valid, _ := schema.ValidUTF8(t)
		b, _ = jsontext.AppendQuote(b, valid)
	}
	o.Raw(key, append(b, ']'))
}
