package replay

import (
	"cmp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A form makes messages of groups, one at a time. Both report whether more are
// wanted.
type form interface {
	group(g *group, yield func(jsontext.Value) bool) bool
	end(yield func(jsontext.Value) bool) bool
}

type plainForm struct{}

func (*plainForm) group(g *group, yield func(jsontext.Value) bool) bool {
	for _, m := range append(slices.Clip(g.said), g.answers...) {
		b, err := json.Marshal(m, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))
		if err != nil {
			panic("replay: a message has no JSON form: " + err.Error()) // a bug: it is made of valid JSON
		}
		if !yield(b) {
			return false
		}
	}
	return true
}

func (*plainForm) end(func(jsontext.Value) bool) bool { return true }

// anthropicForm makes turns of user and assistant by turns.
type anthropicForm struct {
	role   string
	blocks []byte // a list, without its end
	begun  bool
}

// maxTogether bounds what is put into one message because the role stays. The
// answers to the calls of one turn stand in one message, whatever they take.
const maxTogether = 8 << 20

func (a *anthropicForm) add(role string, block jsontext.Value, yield func(jsontext.Value) bool) bool {
	if role != a.role {
		if !a.end(yield) {
			return false
		}
		a.role = role
	}
	if !a.begun && role != "user" { // a conversation begins with a user
		a.role = "user"
		if !a.add("user", textBlock(quoted("[no message of a user is recorded before this]")), yield) || !a.end(yield) {
			return false
		}
		a.role = role
	}
	a.begun = true
	if len(a.blocks) > 0 {
		a.blocks = append(a.blocks, ',')
	}
	a.blocks = append(a.blocks, block...)
	return true
}

func (a *anthropicForm) end(yield func(jsontext.Value) bool) bool {
	if len(a.blocks) == 0 {
		return true
	}
	var o schema.Object
	o.Text("role", a.role).Raw("content", append(append([]byte{'['}, a.blocks...), ']'))
	a.blocks = a.blocks[:0]
	return yield(o.Bytes())
}

// speaks reports whether a block is more than white space, which Anthropic
// refuses.
func speaks(text string) bool { return strings.TrimSpace(text) != "" }

func textBlock(text jsontext.Value) jsontext.Value {
	var o schema.Object
	return o.Text("type", "text").Raw("text", text).Bytes()
}

func (a *anthropicForm) group(g *group, yield func(jsontext.Value) bool) bool {
	if len(a.blocks) > maxTogether && !a.end(yield) {
		return false
	}
	if g.user {
		for _, v := range userBlocks(g.said[0]) {
			if !a.add("user", v, yield) {
				return false
			}
		}
		return true
	}
	var last *Message // whose content has the calls that follow
	var list []block
	for _, m := range g.said {
		var v []jsontext.Value
		switch {
		case m.Role == "assistant":
			last, list = m, blocks(m.Content)
			v = a.assistant(g, m, list)
		case m.Role == "reasoning":
			v = ownReasoning(m)
		case !m.declared || last == nil:
			var o schema.Object
			v = []jsontext.Value{o.Text("type", "tool_use").Text("id", m.id).Text("name", shownName(m.Name)).Raw("input", argsOf(m)).Bytes()}
		}
		for _, v := range v {
			if !a.add("assistant", v, yield) {
				return false
			}
		}
	}
	for _, m := range g.answers {
		var o schema.Object
		o.Text("type", "tool_result").Text("tool_use_id", m.id).Raw("content", anthropicAnswer(m))
		if m.Failed {
			o.Bool("is_error", true)
		}
		if !a.add("user", o.Bytes(), yield) {
			return false
		}
	}
	return true
}

// anthropicAnswer is the content of an answer: a text, or blocks.
func anthropicAnswer(m *Message) jsontext.Value {
	text := ""
	if m.Content[0] == '[' {
		if !slices.ContainsFunc(blocks(m.Content), func(b block) bool { return b.raw[0] != '{' || b.Type == "" || b.Type == "text" && !speaks(b.Text) }) {
			return m.Content
		}
		text = textOf(m.Content)
	} else if text = string(plain(m.Content)); m.Content[0] != '"' {
		text = textOf(m.Content)
	}
	if m.Failed && text == "" { // a failure must say something
		text = "[it failed, and said nothing]"
	}
	return quoted(text)
}

// shownName is the name of a tool as every provider takes it: a call of a tool that
// there is not may have any.
func shownName(name string) string {
	if schema.ValidToolName(name) {
		return name
	}
	return cmp.Or(schema.ToolName(name), "unnamed")
}

// assistant is the content of a message, with the calls in it as they are
// shown.
func (a *anthropicForm) assistant(g *group, m *Message, list []block) (out []jsontext.Value) {
	calls := declaredOf(g, m)
	for i := range list {
		b := &list[i]
		id := b.call()
		text, said := b.text()
		switch {
		case said && !speaks(text):
		case said:
			out = append(out, textOr(b, text))
		case id == "" && (b.Type == "" || b.Type == "tool_use" || b.Type == "function" || b.Type == "function_call"): // nobody can answer it
		case id == "":
			out = append(out, b.raw)
		case calls[id] != nil:
			shown := calls[id].id
			delete(calls, id)
			if b.Type == "tool_use" && len(b.Input) > 0 && b.Input[0] == '{' {
				out = append(out, b.renamed(shown))
				continue
			}
			var o schema.Object
			out = append(out, o.Text("type", "tool_use").Text("id", shown).Text("name", shownName(b.name())).Raw("input", b.args()).Bytes())
		}
	}
	return out
}

// declaredOf gives the calls that the content of a message has, by the ids
// there.
func declaredOf(g *group, m *Message) map[string]*Message {
	calls := map[string]*Message{}
	found := false
	for _, c := range g.said {
		if c == m {
			found = true
		} else if found && c.Role == "assistant" {
			break
		} else if found && c.declared {
			calls[c.provider] = c
		}
	}
	return calls
}

// ownReasoning is reasoning of a model that takes it back.
func ownReasoning(m *Message) (out []jsontext.Value) {
	for _, b := range blocks(m.Content) {
		if b.Type == "thinking" || b.Type == "redacted_thinking" || m.Dialect == FormatAnthropic && b.raw[0] == '{' {
			out = append(out, b.raw)
		}
	}
	return out
}

func argsOf(m *Message) jsontext.Value {
	if len(m.Args) == 0 || m.Args[0] != '{' {
		return jsontext.Value("{}")
	}
	return m.Args
}

// userBlocks is what a user says, without answers to calls, which stand behind
// those.
func userBlocks(m *Message) (out []jsontext.Value) {
	for _, b := range blocks(m.Content) {
		text, said := b.text()
		switch {
		case b.answers() != "" || said && !speaks(text):
		case said:
			out = append(out, textOr(&b, text))
		case b.Type != "":
			out = append(out, b.raw)
		}
	}
	return out
}

// textOr is a block of text: as its provider gave it, where all know that.
func textOr(b *block, text string) jsontext.Value {
	if b.Type == "text" && b.raw[0] == '{' {
		return b.raw
	}
	return textBlock(quoted(text))
}

type openAIForm struct{}

func (*openAIForm) end(func(jsontext.Value) bool) bool { return true }

func (*openAIForm) group(g *group, yield func(jsontext.Value) bool) bool {
	if g.user {
		return openAIUser(userBlocks(g.said[0]), yield)
	}
	var texts, calls []jsontext.Value
	for _, m := range g.said {
		switch m.Role {
		case "assistant":
			for _, b := range blocks(m.Content) {
				if text, said := b.text(); said && speaks(text) {
					texts = append(texts, quoted(text))
				}
			}
		case "call":
			calls = append(calls, openAICall(m.id, shownName(m.Name), argsOf(m)))
		}
	}
	if len(texts) > 0 || len(calls) > 0 {
		var o schema.Object
		o.Text("role", "assistant")
		switch len(texts) {
		case 0:
			o.Raw("content", []byte("null"))
		case 1:
			o.Raw("content", texts[0])
		default:
			for i, t := range texts {
				texts[i] = textBlock(t)
			}
			o.Raw("content", list(texts))
		}
		if len(calls) > 0 {
			o.Raw("tool_calls", list(calls))
		}
		if !yield(o.Bytes()) {
			return false
		}
	}
	for _, m := range g.answers {
		var o schema.Object
		content := m.Content
		if content[0] != '"' { // there is only text
			content = quoted(textOf(content))
		}
		if !yield(o.Text("role", "tool").Text("tool_call_id", m.id).Raw("content", content).Bytes()) {
			return false
		}
	}
	return true
}

func openAICall(id, name string, args jsontext.Value) jsontext.Value {
	var f, o schema.Object
	f.Text("name", name).Text("arguments", string(args))
	return o.Text("id", id).Text("type", "function").Raw("function", f.Bytes()).Bytes()
}

func openAIUser(parts []jsontext.Value, yield func(jsontext.Value) bool) bool {
	var o schema.Object
	o.Text("role", "user")
	switch {
	case len(parts) == 0:
		return true
	default:
		if b := blockOf(parts[0]); len(parts) == 1 && b.Type == "text" {
			o.Text("content", b.Text)
		} else {
			o.Raw("content", list(parts))
		}
	}
	return yield(o.Bytes())
}

func list(of []jsontext.Value) []byte {
	b := []byte{'['}
	for i, v := range of {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}
