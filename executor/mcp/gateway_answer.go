package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/replay"
	"steno/schema"
)

// The recorded form of an answer: its content and structured content stand where
// those of every tool stand, and meta is the answer with null in their places. So
// it comes back byte for byte, whatever the protocol puts beside them.
const (
	keyContent    = "content"
	keyStructured = "structuredContent"
	keyIsError    = "isError"
	// detailRPC holds an error of the protocol in the details of a recorded error.
	detailRPC = "jsonrpc"
)

// maxOutput bounds how much of the content is looked at for the text that people
// and models are shown of a recorded call; all of it is in the content.
const maxOutput = 1 << 20

// taken is an answer of a server as it is recorded.
func taken(raw json.RawMessage) (executor.Result, error) {
	result := executor.Result{OK: true}
	text, _, err := schema.Compact(nil, raw, 1)
	if err != nil || text[0] != '{' {
		return result, schema.Errorf(schema.ToolFailed, "the tool ran, and its answer is no object").Cause(err)
	}
	var o schema.Object
	members, err := members(text)
	if err != nil {
		return result, schema.Errorf(schema.ToolFailed, "the tool ran, and its answer cannot be read").Cause(err)
	}
	for _, m := range members {
		switch {
		case m.key == keyContent && m.value.Kind() != 'n':
			result.Content, m.value = m.value, jsontext.Value("null")
		case m.key == keyStructured && m.value.Kind() != 'n':
			result.Structured, m.value = m.value, jsontext.Value("null")
		case m.key == keyIsError && m.value.Kind() == 't':
			result.OK = false
		}
		o.Raw(m.key, m.value)
	}
	result.Meta = o.Bytes()
	result.Output = outputOf(result.Content)
	return result, nil
}

type member struct {
	key   string
	value jsontext.Value
}

// members are those of an object, in their order.
func members(object jsontext.Value) (list []member, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object))
	if _, err = d.ReadToken(); err != nil {
		return nil, err
	}
	for d.PeekKind() != '}' {
		key, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		name := key.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		list = append(list, member{name, value.Clone()})
	}
	return list, nil
}

// outputOf is the text of content.
func outputOf(content jsontext.Value) string {
	if content.Kind() != '[' {
		return ""
	}
	var b strings.Builder
	d := jsontext.NewDecoder(bytes.NewBuffer(content))
	if _, err := d.ReadToken(); err != nil {
		return ""
	}
	for d.PeekKind() != ']' && b.Len() < maxOutput {
		value, err := d.ReadValue()
		if err != nil {
			break
		}
		var block struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			MimeType string `json:"mimeType"`
			URI      string `json:"uri"`
		}
		if json.Unmarshal(value, &block) != nil {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		switch {
		case block.Type == "text":
			b.WriteString(block.Text)
		case block.URI != "":
			fmt.Fprintf(&b, "[%s %s]", block.Type, block.URI)
		default:
			fmt.Fprintf(&b, "[%s %s, %d bytes]", block.Type, block.MimeType, len(value))
		}
	}
	text, _ := schema.Truncate(b.String(), replay.ModelText)
	return text
}

// refused is an error of the protocol as it is recorded.
func refused(e *rpcError) error {
	var o schema.Object
	o.Raw("code", jsontext.Value(fmt.Sprint(e.Code))).Text("message", e.Message)
	if len(e.Data) > 0 {
		if data, _, err := schema.Compact(nil, e.Data, 3); err == nil {
			o.Raw("data", data)
		}
	}
	return schema.Errorf(schema.ToolFailed, "%s", e.Message).With(detailRPC, jsontext.Value(o.Bytes()))
}

// given is a recorded result, whole, as a host gets it: the answer that was
// recorded, or the error of the protocol.
func given(data []byte) (json.RawMessage, error) {
	var v struct {
		OK         bool           `json:"ok"`
		Content    jsontext.Value `json:"content"`
		Structured jsontext.Value `json:"structured"`
		Meta       jsontext.Value `json:"meta"`
		Error      *struct {
			Details struct {
				RPC *struct {
					Code    int64           `json:"code"`
					Message string          `json:"message"`
					Data    json.RawMessage `json:"data"`
				} `json:"jsonrpc"`
			} `json:"details"`
		} `json:"error"`
		Truncated *struct {
			Bytes int `json:"bytes"`
		} `json:"truncated"`
	}
	if err := schema.Unmarshal(data, &v); err != nil {
		return nil, schema.Errorf(schema.Internal, "a result cannot be read").Cause(err)
	}
	switch {
	case v.Error != nil && v.Error.Details.RPC != nil:
		e := v.Error.Details.RPC
		return nil, &rpcError{Code: e.Code, Message: e.Message, Data: e.Data}
	case v.Error != nil || v.Content == nil && v.Meta == nil:
		text, _, failed, err := replay.ResultText(data)
		if err != nil {
			return nil, err
		}
		return said(text, v.Structured, failed), nil
	case v.Meta == nil:
		var o schema.Object
		o.Raw(keyContent, v.Content)
		if v.Structured.Kind() == '{' {
			o.Raw(keyStructured, v.Structured)
		}
		return o.Bool(keyIsError, !v.OK).Bytes(), nil
	}
	list, err := members(v.Meta)
	if err != nil {
		return nil, schema.Errorf(schema.Internal, "a result cannot be read").Cause(err)
	}
	var o schema.Object
	lost := false
	for _, m := range list {
		switch {
		case m.value.Kind() != 'n':
		case m.key == keyContent && v.Content != nil:
			m.value = v.Content
		case m.key == keyStructured && v.Structured != nil:
			m.value = v.Structured
		case m.key == keyContent && v.Truncated != nil:
			lost = true
		}
		o.Raw(m.key, m.value)
	}
	if lost { // the host is told no more than the record has
		return said(fmt.Sprintf("[steno: the tool ran, and its answer is left out: it has %d bytes, and at most %d are recorded]", v.Truncated.Bytes, executor.MaxOutput), nil, true), nil
	}
	return o.Bytes(), nil
}

// said is an answer of steno's own.
func said(text string, structured jsontext.Value, failed bool) json.RawMessage {
	var block, o schema.Object
	block.Text("type", "text").Text("text", text)
	o.Raw(keyContent, jsontext.Value("["+string(block.Bytes())+"]"))
	if structured.Kind() == '{' {
		o.Raw(keyStructured, structured)
	}
	return o.Bool(keyIsError, failed).Bytes()
}

// failure is what a host is told of a call that has no recorded result: its kind,
// why, and what to do next, in the one shape that errors have.
func failure(err error) json.RawMessage { return said(string(schema.Envelope(err)), nil, true) }
