package replay

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// ModelText is the most bytes of text that a model is given of one result; the
// middle of a longer one is left out. The record has all of it.
const ModelText = 16_000

// ResultText is what a model is shown of the data of a tool_result, and whether
// that is no success, as where a command has exited non-zero. Of blobs it has
// their previews. note is what the text ends with where the same call has had the
// same result again and again.
func ResultText(result []byte) (text, note string, failed bool, err error) {
	var v struct {
		OK         bool           `json:"ok"`
		Output     jsontext.Value `json:"output"`
		Error      jsontext.Value `json:"error"`
		ExitCode   *int           `json:"exit_code"`
		Structured jsontext.Value `json:"structured"`
		Content    jsontext.Value `json:"content"`
		Repeat     struct {
			Count int `json:"count"`
		} `json:"repeat"`
	}
	if err := schema.Unmarshal(schema.Previews(result), &v); err != nil {
		return "", "", true, schema.Errorf(schema.Internal, "a result cannot be read").Cause(err)
	}
	text = string(plain(v.Output))
	switch {
	case len(v.Error) > 0:
		text = string(v.Error)
	case text == "" && v.ExitCode == nil && len(v.Structured) > 0:
		text = string(v.Structured)
	case text == "" && len(v.Content) > 0:
		text = textOf(v.Content)
	}
	if v.ExitCode != nil && *v.ExitCode != 0 {
		text = strings.TrimSuffix(text, "\n") + "\nexit code " + strconv.Itoa(*v.ExitCode)
		text = strings.TrimPrefix(text, "\n")
	}
	if v.Repeat.Count == 0 {
		text, _ = schema.Truncate(text, ModelText)
		return text, "", !v.OK, nil
	}
	note = "[steno: the same call, " + strconv.Itoa(v.Repeat.Count) + " times in a row, with the same result]"
	text, _ = schema.Truncate(text, ModelText-len(note)-1)
	text = strings.TrimPrefix(strings.TrimSuffix(text, "\n")+"\n"+note, "\n")
	return text, note, !v.OK, nil
}

// resultMessage is the message of a tool_result.
func resultMessage(e *schema.Event, d data) *Message {
	text, _, failed, err := ResultText(e.Data)
	if err != nil { // a line that no writer of ours made
		text, failed = string(schema.Envelope(err)), true
	}
	return &Message{Role: "result", Seq: e.Seq, Content: quoted(text), Failed: failed, Kind: d.kind(), Synthetic: d.is(schema.KeySynthetic),
		Supersedes: d.number(schema.KeySupersedes), Redacted: valid(d.Get(schema.KeyRedacted))}
}

// unanswered stands for the result of a call that has none.
func (p *projection) unanswered(n *uint32) *Message {
	switch {
	case n == nil:
		return noResult(schema.OrphanToolCall, "no result recorded", nextResume)
	case p.calls[*n].started || int(*n) < p.lost:
		return noResult(schema.OutcomeUnknown, "no result recorded: the call has started, or may have, and what became of it is not known", "")
	case p.calls[*n].waits:
		return noResult(schema.OrphanToolCall, "no result recorded: the call waits until a person allows or denies it", "do not make it again; its result comes once somebody has answered")
	}
	return noResult(schema.OrphanToolCall, "no result recorded: the call has not started", nextResume)
}

const nextResume = "resume the session, which runs the call or says what became of it"

// never stands for the result of a call that a model has made in the message of
// that seq, and that nobody has asked steno for, as far as the log tells.
func (p *projection) never(seq uint64) *Message {
	switch {
	case seq < p.hole:
		return noResult(schema.OutcomeUnknown, "no result recorded, nor the call: the log is damaged behind the message, so whether it ran is not known", "")
	case seq <= p.copied:
		return noResult(schema.OutcomeUnknown, "no result recorded, nor the call: a fork does not have the calls that were open, so whether it ran only the log of its parent tells", "")
	}
	return noResult(schema.OrphanToolCall, "no result recorded: nor is the call, which did not run", "make it again if it is still needed")
}

// noResult is an answer that is made up. next is what to do, that of the kind if
// it is empty.
func noResult(kind schema.Kind, why, next string) *Message {
	err := schema.Errorf(kind, "%s", why).With("synthetic", true)
	if next != "" {
		err.With("next", next)
	}
	b, _ := json.Marshal(schema.Body(err), json.Deterministic(true)) // it has only text
	return &Message{Role: "result", Content: quoted(string(b)), Failed: true, Kind: kind, Synthetic: true}
}

// quoted is a text as JSON.
func quoted(text string) jsontext.Value {
	b, _ := jsontext.AppendQuote(nil, text) // an error only says that text was replaced
	return b
}

// A block is what a provider gave as part of a message, as far as it is a call
// or the answer to one.
type block struct {
	raw jsontext.Value

	Type       string         `json:"type"`
	ID         string         `json:"id"`
	CallID     string         `json:"call_id"`
	ToolUseID  string         `json:"tool_use_id"`
	ToolCallID string         `json:"tool_call_id"`
	Name       string         `json:"name"`
	Text       string         `json:"text"`
	Refusal    string         `json:"refusal"`
	Content    jsontext.Value `json:"content"`
	Output     jsontext.Value `json:"output"`
	IsError    bool           `json:"is_error"`
	Input      jsontext.Value `json:"input"`
	Arguments  string         `json:"arguments"`
	Function   struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// blocks reads the content of a message: a text, a list, or a whole message as
// OpenAI gives it. What has no form that is known is carried as it is.
func blocks(content jsontext.Value) []block {
	var list []jsontext.Value
	switch {
	case len(content) == 0:
		return nil
	case content[0] == '[':
		if schema.Unmarshal(content, &list) != nil {
			list = []jsontext.Value{content}
		}
	case content[0] == '{':
		var m struct {
			Role    string           `json:"role"`
			Content jsontext.Value   `json:"content"`
			Calls   []jsontext.Value `json:"tool_calls"`
		}
		if schema.Unmarshal(content, &m) == nil && (m.Role == "assistant" || m.Role == "user") {
			out := blocks(m.Content)
			for _, raw := range m.Calls {
				out = append(out, blockOf(raw))
			}
			return out
		}
		fallthrough
	default:
		list = []jsontext.Value{content}
	}
	out := make([]block, len(list))
	for i, raw := range list {
		out[i] = blockOf(raw)
	}
	return out
}

func blockOf(raw jsontext.Value) (b block) {
	switch {
	case raw[0] == '"':
		b = block{Type: "text", Text: string(plain(raw))}
	case raw[0] != '{' || schema.Unmarshal(raw, &b) != nil:
		b = block{}
	}
	b.raw = raw
	return b
}

// text is what the block says, if that is all that it does. What no provider
// knows is said as it stands.
func (b *block) text() (text string, ok bool) {
	switch b.Type {
	case "text", "input_text", "output_text":
		return b.Text, true
	case "refusal":
		return b.Refusal, true
	case "":
		return string(b.raw), string(b.raw) != "null"
	}
	return "", false
}

// textOf is content as text, for where there can be nothing else. What is no text is
// named.
func textOf(content jsontext.Value) string {
	var texts []string
	for _, b := range blocks(content) {
		text, ok := b.text()
		switch {
		case ok:
			texts = append(texts, text)
		case b.Type != "":
			texts = append(texts, "["+b.Type+", which is not shown here]")
		}
	}
	return strings.Join(texts, "\n")
}

// call is the id of the call that the block is, "" if it is none.
func (b *block) call() string {
	switch b.Type {
	case "tool_use", "function":
		return b.ID
	case "function_call":
		return b.CallID
	}
	return ""
}

// answers is the id of the call that the block answers, "" if it is no answer.
func (b *block) answers() string {
	switch {
	case b.Type == "tool_result":
		return b.ToolUseID
	case b.Type == "function_call_output":
		return b.CallID
	}
	return b.ToolCallID
}

// answer is the answer that the block is.
func (b *block) answer(seq uint64) *Message {
	content := b.Content
	if len(content) == 0 {
		content = b.Output
	}
	if len(content) == 0 {
		content = quoted("")
	}
	return &Message{Role: "result", Seq: seq, Content: bytes.Clone(content), Failed: b.IsError}
}

func (b *block) name() string {
	if b.Type == "function" {
		return b.Function.Name
	}
	return b.Name
}

func (b *block) args() jsontext.Value {
	text := b.Arguments
	switch b.Type {
	case "tool_use":
		if len(b.Input) > 0 && b.Input[0] == '{' {
			return b.Input
		}
		return jsontext.Value("{}")
	case "function":
		text = b.Function.Arguments
	}
	out, _, err := schema.Compact(nil, []byte(text), 1)
	if err != nil || len(out) == 0 || out[0] != '{' {
		return jsontext.Value("{}") // a model's mistake, which its answer speaks of
	}
	return out
}

// renamed is a call as its provider gave it, with another id.
func (b *block) renamed(id string) jsontext.Value {
	if b.call() == id {
		return b.raw
	}
	var f schema.Fields
	var o schema.Object
	if text, _, err := schema.Compact(nil, b.raw, 1); err == nil {
		f.Read(text)
	}
	for i := range f.Len() {
		key, v := f.At(i)
		if k := string(key); k == "id" && b.Type != "function_call" || k == "call_id" && b.Type == "function_call" {
			v = quoted(id)
		}
		o.Raw(string(key), v)
	}
	return o.Bytes()
}
