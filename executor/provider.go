package executor

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// ModelText is [replay.ModelText].
const ModelText = replay.ModelText

// A ModelCall is a call in the format in which a model's provider gives it.
type ModelCall struct {
	Request Request
	// Bad says why it cannot be asked for: its arguments are no JSON. It is
	// answered with ModelCall.Refuse.
	Bad error

	format string
	item   bool           // of OpenAI's responses, not of its chat completions
	id     jsontext.Value // as the provider wrote it
}

// ReadModelCalls reads a call, or a list of calls, as a model's provider gives
// it: FormatMCP a request tools/call, FormatAnthropic a block tool_use,
// FormatOpenAI an entry of tool_calls, or an item function_call.
//
// The call id is the provider's, so that a repeat is the same call. Providers
// that number their calls anew in each turn need turn: it stands before the id,
// with a dot between, and is recorded. InvalidArgs: this is none of these calls,
// or its id is none. DuplicateCall: two calls of a list have one id.
func ReadModelCalls(format string, text []byte, turn string) (calls []ModelCall, list bool, err error) {
	if len(text) > MaxRequest {
		return nil, false, schema.Errorf(schema.PayloadTooLarge, "the calls have %d bytes; the limit is %d", len(text), MaxRequest)
	}
	sound, _, err := schema.Compact(nil, text, 0)
	if err != nil {
		return nil, false, err
	}
	// As they came: what must be replaced in them is counted where they are
	// recorded.
	all := []jsontext.Value{text}
	if list = sound[0] == '['; list {
		if err := json.Unmarshal(text, &all, jsontext.AllowInvalidUTF8(true)); err != nil {
			return nil, true, schema.Errorf(schema.InvalidArgs, "the list cannot be read").Cause(err)
		}
	}
	seen := map[string]bool{}
	for _, one := range all {
		c, err := readModelCall(format, one, turn)
		if err != nil {
			return nil, list, err
		}
		if seen[c.Request.CallID] {
			return nil, list, schema.Errorf(schema.DuplicateCall, "two calls have the id %s", c.id).With("call_id", c.Request.CallID).
				With("next", "give each call of a turn an id of its own")
		}
		seen[c.Request.CallID] = true
		calls = append(calls, c)
	}
	return calls, list, nil
}

func readModelCall(format string, text jsontext.Value, turn string) (ModelCall, error) {
	var v struct {
		ID        jsontext.Value `json:"id"`
		CallID    jsontext.Value `json:"call_id"`
		Type      string         `json:"type"`
		Method    string         `json:"method"`
		Name      string         `json:"name"`
		Input     jsontext.Value `json:"input"`
		Arguments *string        `json:"arguments"`
		Function  struct {
			Name      string  `json:"name"`
			Arguments *string `json:"arguments"`
		} `json:"function"`
		Params struct {
			Name      string         `json:"name"`
			Arguments jsontext.Value `json:"arguments"`
		} `json:"params"`
	}
	none := func(why string) (ModelCall, error) {
		return ModelCall{}, schema.Errorf(schema.InvalidArgs, "this is no call in the format %s: %s", format, why)
	}
	if text.Kind() != '{' || json.Unmarshal(text, &v, jsontext.AllowInvalidUTF8(true)) != nil {
		return none("it does not have its form")
	}
	c := ModelCall{format: format, id: v.ID}
	var arguments *string
	switch {
	case format == FormatMCP && v.Method == "tools/call":
		c.Request.Name, c.Request.Args = v.Params.Name, v.Params.Arguments
	case format == FormatMCP:
		return none("its method is not tools/call")
	case format == FormatAnthropic && v.Type == "tool_use":
		c.Request.Name, c.Request.Args = v.Name, v.Input
	case format == FormatAnthropic:
		return none("its type is not tool_use")
	case format == FormatOpenAI && v.Type == "function_call":
		c.item, c.id = true, v.CallID
		c.Request.Name, arguments = v.Name, v.Arguments
	case format == FormatOpenAI && v.Type == "function":
		c.Request.Name, arguments = v.Function.Name, v.Function.Arguments
	case format == FormatOpenAI:
		return none("its type is neither function nor function_call")
	default:
		return none("there are mcp, anthropic and openai")
	}
	switch {
	case len(c.id) == 0 || c.id[0] != '"' && !(c.id.Kind() == '0' && format == FormatMCP):
		return none("it has no id")
	case c.Request.Name == "":
		return none("it has no name")
	}
	if id := string(c.id); c.id[0] != '"' {
		c.Request.CallID = id
	} else if err := schema.Unmarshal(c.id, &c.Request.CallID); err != nil {
		return none("its id is no valid text")
	}
	if turn != "" {
		c.Request.CallID = turn + "." + c.Request.CallID
		c.Request.Turn, _ = jsontext.AppendQuote(nil, turn) // an error only says that text was replaced
	}
	if err := schema.CheckCallID(c.Request.CallID); err != nil {
		return ModelCall{}, err
	}
	if arguments != nil && strings.TrimSpace(*arguments) != "" {
		c.Request.Args = jsontext.Value(*arguments)
		if _, _, err := schema.Compact(nil, c.Request.Args, 2); err != nil {
			e := schema.AsError(err)
			e.Message = "the arguments are not valid: " + e.Message
			c.Bad = e.With("call_id", c.Request.CallID)
		}
	}
	return c, nil
}

// Answer is a recorded result in the format of the call, with the provider's
// own id. What is no success is marked as an error, also where a command has
// exited non-zero.
func (c *ModelCall) Answer(data jsontext.Value) (jsontext.Value, error) {
	text, note, failed, err := replay.ResultText(data)
	if err != nil {
		return nil, err
	}
	var v struct {
		Content    jsontext.Value `json:"content"`
		Structured jsontext.Value `json:"structured"`
	}
	_ = schema.Unmarshal(schema.Previews(data), &v) // as above
	content, structured := v.Content, v.Structured
	if len(content) > ModelText || content.Kind() != '[' {
		content = nil
	}
	if note != "" && content != nil {
		block, _ := json.Marshal([]mcpText{{"text", note}})
		if given := bytes.TrimSuffix(content, []byte("]")); len(given) > 1 {
			block = slices.Concat(given, []byte(","), block[1:])
		}
		content = block
	}
	if len(structured) > ModelText || structured.Kind() != '{' {
		structured = nil
	}
	return c.answer(text, content, structured, failed)
}

// Refuse is the answer to a call that was never asked for: why.
func (c *ModelCall) Refuse(why error) (jsontext.Value, error) {
	b, err := json.Marshal(schema.Body(why), json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return nil, err
	}
	text, _ := schema.Truncate(string(b), ModelText)
	return c.answer(text, nil, nil, true)
}

func (c *ModelCall) answer(text string, content, structured jsontext.Value, failed bool) (jsontext.Value, error) {
	var v any
	switch {
	case c.format == FormatMCP:
		if content == nil {
			b, _ := json.Marshal([]mcpText{{"text", text}})
			content = b
		}
		v = mcpAnswer{"2.0", c.id, mcpResult{content, structured, failed}}
	case c.format == FormatAnthropic:
		v = anthropicResult{"tool_result", c.id, text, failed}
	case c.item:
		v = openAIOutput{"function_call_output", c.id, text}
	default:
		v = openAIMessage{"tool", c.id, text}
	}
	return json.Marshal(v, json.Deterministic(true))
}

type (
	mcpText struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	mcpAnswer struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  mcpResult      `json:"result"`
	}
	mcpResult struct {
		Content    jsontext.Value `json:"content"`
		Structured jsontext.Value `json:"structuredContent,omitzero"`
		IsError    bool           `json:"isError"`
	}
	anthropicResult struct {
		Type    string         `json:"type"`
		ID      jsontext.Value `json:"tool_use_id"`
		Content string         `json:"content"`
		IsError bool           `json:"is_error,omitzero"`
	}
	openAIMessage struct {
		Role    string         `json:"role"`
		ID      jsontext.Value `json:"tool_call_id"`
		Content string         `json:"content"`
	}
	openAIOutput struct {
		Type   string         `json:"type"`
		ID     jsontext.Value `json:"call_id"`
		Output string         `json:"output"`
	}
)
