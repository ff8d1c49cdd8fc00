package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	stdjson "encoding/json" // RawMessage, as the SDK sends it
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// call sends a call to the server and waits for its answer.
func (s *server) call(ctx context.Context, original string, call *executor.Invocation) (executor.Result, error) {
	l, err := s.current()
	if err != nil {
		return executor.Result{}, err
	}
	seen := &exchange{}
	on, stop := context.WithCancel(context.WithValue(ctx, exchangeKey{}, seen))
	defer stop()
	defer context.AfterFunc(l.ctx, stop)()
	token := "steno-" + strconv.FormatUint(s.tokens.Add(1), 10)
	s.speech.Store(token, call)
	defer s.speech.Delete(token)
	params := &sdk.CallToolParams{Meta: s.meta(call, token), Name: original, Arguments: stdjson.RawMessage(call.Args)}
	if q := s.asked.take(callOf(call)); q != nil && call.Attempt > 1 { // a person has said yes
		params.InputResponses, params.RequestState = q.yes, q.state
	}
	res, err := l.session.CallTool(on, params)
	if err != nil {
		return executor.Result{}, s.failure(ctx, l, seen, err)
	}
	text := seen.raw.Load()
	if text == nil { // it came in a way that nobody takes results out of
		made, err := stdjson.Marshal(res)
		if err != nil {
			return executor.Result{}, noResult().Cause(err)
		}
		text = (*stdjson.RawMessage)(&made)
	}
	if jsontext.Value(*text).Kind() != '{' { // null, of which a decoder makes nothing
		return executor.Result{}, noResult()
	}
	var a answer
	if err := json.Unmarshal(*text, &a, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return executor.Result{}, noResult().Cause(err)
	}
	if a.Type == "input_required" {
		return executor.Result{}, s.ask(call, &a)
	}
	return result(&a)
}

// meta is what the server is told of the call.
func (s *server) meta(call *executor.Invocation, token string) sdk.Meta {
	m := sdk.Meta{"progressToken": token, "steno/session": call.Session, "steno/call": call.CallID, "steno/key": call.Key,
		"steno/attempt": call.Attempt, "steno/epoch": call.Epoch, "steno/seq": call.Seq}
	if s.cfg.Trust && call.Actor.ID != "" {
		m["steno/actor"] = map[string]string{"id": call.Actor.ID, "via": call.Actor.Via}
	}
	if s.cfg.Trust && len(call.Context) > 0 {
		m["steno/context"] = stdjson.RawMessage(call.Context)
	}
	return m
}

// progress tells how far a call is.
func (s *server) progress(p *sdk.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	call, there := s.speech.Load(token)
	if !there {
		return // it is over, or never was
	}
	text := p.Message
	if text == "" {
		text = strconv.FormatFloat(p.Progress, 'g', -1, 64)
		if p.Total > 0 {
			text += " of " + strconv.FormatFloat(p.Total, 'g', -1, 64)
		}
	}
	call.(*executor.Invocation).Progress(text + "\n")
}

// failure is why a call has no result.
func (s *server) failure(ctx context.Context, l *link, seen *exchange, err error) error {
	if stop := ctx.Err(); stop != nil {
		return stop
	}
	var says *jsonrpc.Error
	var dialled *net.OpError
	var web *url.Error // no answer by HTTP
	status := seen.status.Load()
	switch {
	case errors.As(err, &says) && says.Code == codeLong, seen.long.Load():
		return schema.Errorf(schema.PayloadTooLarge, "the tool ran, and its answer is longer than %d MiB", maxMessage>>20).
			With("server", s.cfg.Name).With("next", "look whether it took effect; have it answer less, or by a file")
	case errors.As(err, &says) && !errors.As(err, &web) && status < 500:
		return schema.Errorf(schema.ToolFailed, "the MCP server answers with an error: %s", s.clean(says.Message)).
			With("server", s.cfg.Name).With("code", says.Code)
	case errors.As(err, &dialled) && dialled.Op == "dial":
		s.drop(l)
		return schema.Errorf(schema.Unavailable, "the MCP server %s cannot be reached", s.cfg.Name).
			With("server", s.cfg.Name).With("next", "call the tool again in a while, under a new call id").Cause(err)
	case status >= 400 && status < 500:
		s.drop(l) // its session may be gone
		return schema.Errorf(schema.ToolFailed, "the MCP server refuses the call with HTTP status %d", status).With("server", s.cfg.Name).Cause(err)
	}
	s.drop(l)
	s.log.Warn("a call to an MCP server has no answer", "err", s.clean(err.Error()))
	return schema.Errorf(schema.Interrupted, "the connection to the MCP server %s broke before it answered; whether the tool took effect is not known", s.cfg.Name).
		With("server", s.cfg.Name).Cause(err)
}

func noResult() *schema.Error {
	return schema.Errorf(schema.ToolFailed, "the tool ran, and the MCP server answered with what is no result").
		With("next", "look whether it took effect; its server does not keep to the protocol")
}

// An answer is a result of the protocol, as far as it is read here.
type answer struct {
	Type       string           `json:"resultType"`
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structuredContent"`
	IsError    bool             `json:"isError"`
	// Of one that asks.
	Requests map[string]inputRequest `json:"inputRequests"`
	State    string                  `json:"requestState"`
}

// result is what an answer says.
func result(a *answer) (executor.Result, error) {
	res := executor.Result{OK: !a.IsError, Structured: a.Structured}
	var out strings.Builder
	var files []artifact
	for i, raw := range a.Content {
		says, file := shown(raw, i)
		if out.Len() > 0 && says != "" {
			out.WriteByte('\n')
		}
		out.WriteString(says)
		if file != nil && len(files) < maxArtifacts {
			files = append(files, *file)
		}
	}
	if len(a.Content) > 0 {
		content, err := json.Marshal(a.Content, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return executor.Result{}, noResult().Cause(err)
		}
		res.Content = content
	}
	if res.Output = out.String(); res.Output == "" && len(a.Structured) > 0 {
		res.Output = string(a.Structured)
	}
	if len(files) > 0 {
		list, err := json.Marshal(files)
		if err != nil {
			return executor.Result{}, noResult().Cause(err)
		}
		res.Artifacts = list
	}
	return res, nil
}

// maxArtifacts is how many files of a result are listed; all are in its content.
const maxArtifacts = 200

// An artifact is a file in the content of a result: where it stands, in base64, and
// what it is once that is undone.
type artifact struct {
	Pointer string `json:"pointer"`
	Type    string `json:"media_type,omitzero"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
}

// shown is what the model sees of a block of content, and the file that it holds.
func shown(raw jsontext.Value, i int) (string, *artifact) {
	var b struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Data     string `json:"data"`
		MIME     string `json:"mimeType"`
		URI      string `json:"uri"`
		Name     string `json:"name"`
		Resource struct {
			URI  string `json:"uri"`
			MIME string `json:"mimeType"`
			Text string `json:"text"`
			Blob string `json:"blob"`
		} `json:"resource"`
	}
	if json.Unmarshal(raw, &b, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return "[content that cannot be read]", nil
	}
	switch {
	case b.Type == "text":
		return b.Text, nil
	case b.Type == "image" || b.Type == "audio":
		return file(b.Type, b.MIME, b.Data, fmt.Sprintf("/content/%d/data", i))
	case b.Type == "resource_link":
		return fmt.Sprintf("[%s: %s]", strings.TrimSpace("link "+b.Name), b.URI), nil
	case b.Type == "resource" && b.Resource.Blob != "":
		return file("resource "+b.Resource.URI, b.Resource.MIME, b.Resource.Blob, fmt.Sprintf("/content/%d/resource/blob", i))
	case b.Type == "resource":
		return b.Resource.Text, nil
	}
	return "[" + short(b.Type) + "]", nil
}

// file is what is shown of a file, and what is known of it.
func file(what, mime, data, pointer string) (string, *artifact) {
	sum := sha256.New()
	n, err := io.Copy(sum, base64.NewDecoder(base64.StdEncoding, strings.NewReader(data)))
	if err != nil {
		return fmt.Sprintf("[%s that is not in base64]", short(what)), nil
	}
	mime = short(mime)
	return fmt.Sprintf("[%s, %d bytes]", strings.TrimSpace(short(what)+" "+mime), n), &artifact{pointer, mime, n, hex.EncodeToString(sum.Sum(nil))}
}
