package mcp

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// A server may answer a call with questions, and is to be sent the call again with the
// answers (input_required, from revision 2026-07-28 on). What a yes can answer becomes
// a question to a person, who allows the call or denies it: a form without fields that
// must be filled in, but for those that are true or false, or a page to look at.

// An inputRequest is a question of a server.
type inputRequest struct {
	Method string `json:"method"`
	Params struct {
		Mode    string `json:"mode"`
		Message string `json:"message"`
		URL     string `json:"url"`
		Schema  struct {
			Required   []string                  `json:"required"`
			Properties map[string]jsontext.Value `json:"properties"`
		} `json:"requestedSchema"`
	} `json:"params"`
}

// A question is what a person was asked for a call, and what the server is told once
// it is allowed. It is not in the log: a process that has not heard the question sends
// the call without, and the server asks again.
type question struct {
	yes   sdk.InputResponseMap
	state string
}

// callOf names the call of an attempt.
func callOf(call *executor.Invocation) string { return call.Session + " " + call.CallID }

// maxAsked bounds the questions of a server that wait.
const maxAsked = 10_000

// ask is the error of a call whose server asks.
func (s *server) ask(call *executor.Invocation, a *answer) error {
	if len(a.Requests) == 0 {
		return schema.Errorf(schema.Unavailable, "the MCP server %s has no room for the call now", s.cfg.Name).
			With("server", s.cfg.Name).With("next", "call the tool again in a while, under a new call id")
	}
	q := &question{sdk.InputResponseMap{}, a.State}
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(a.Requests)) {
		r := a.Requests[id]
		content, is := r.yes()
		if !is {
			return schema.Errorf(schema.ToolFailed, "the tool asks for more than a yes before it goes on, and nobody is asked for that here").
				With("server", s.cfg.Name).With("asks", s.clean(r.Params.Message)).With("next", "give it what it needs as arguments, or use a tool that does not ask")
		}
		q.yes[id] = &sdk.ElicitResult{Action: "accept", Content: content}
		texts = append(texts, strings.TrimSpace(s.clean(r.Params.Message)+" "+s.clean(r.Params.URL)))
	}
	n := 0
	s.asked.Range(func(any, any) bool { n++; return n < maxAsked })
	if n < maxAsked { // else the server asks again
		s.asked.Store(callOf(call), q)
	}
	return &executor.Question{Text: strings.Join(texts, "; ")}
}

// yes is the content of an answer that says yes to all that must be said.
func (r *inputRequest) yes() (map[string]any, bool) {
	if r.Method != "elicitation/create" {
		return nil, false
	}
	if r.Params.Mode == "url" {
		return nil, true
	}
	content := map[string]any{}
	for _, name := range r.Params.Schema.Required {
		var field struct {
			Type string `json:"type"`
		}
		if schema.Unmarshal(r.Params.Schema.Properties[name], &field) != nil || field.Type != "boolean" {
			return nil, false
		}
		content[name] = true
	}
	return content, true
}
