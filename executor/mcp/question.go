package mcp

import (
	"maps"
	"slices"
	"strings"
	"sync"

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

// questions are those of a server, by [callOf]. Of one whose call a person has denied, or
// nobody has answered, nothing is heard here: the oldest are forgotten, and a server whose
// question is asks again.
type questions struct {
	mu    sync.Mutex
	of    map[string]*question
	order []string // oldest first
}

// maxAsked bounds the questions of a server that are kept, maxShown the bytes of one: of
// a longer one the executor leaves out the middle, and nobody says yes to what is not shown.
const (
	maxAsked = 1000
	maxShown = 1000
)

func (a *questions) keep(call string, q *question) {
	a.take(call)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) == maxAsked {
		delete(a.of, a.order[0])
		a.order = slices.Delete(a.order, 0, 1)
	}
	if a.of == nil {
		a.of = map[string]*question{}
	}
	a.of[call], a.order = q, append(a.order, call)
}

// take gives the question of a call and forgets it; nil if there is none.
func (a *questions) take(call string) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.of[call]
	if q != nil {
		delete(a.of, call)
		i := slices.Index(a.order, call)
		a.order = slices.Delete(a.order, i, i+1)
	}
	return q
}

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
		content, fields, is := r.yes()
		if !is {
			return schema.Errorf(schema.ToolFailed, "the tool asks for more than a yes before it goes on, and nobody is asked for that here").
				With("server", s.cfg.Name).With("asks", s.clean(r.Params.Message)).With("next", "give it what it needs as arguments, or use a tool that does not ask")
		}
		q.yes[id] = &sdk.ElicitResult{Action: "accept", Content: content}
		texts = append(texts, strings.TrimSpace(strings.TrimSpace(r.Params.Message+" "+r.Params.URL)+fields))
	}
	text := s.redacted(strings.Join(texts, "; "))
	if len(text) > maxShown {
		return schema.Errorf(schema.ToolFailed, "the tool asks more than can be shown to a person (%d bytes, at most %d)", len(text), maxShown).
			With("server", s.cfg.Name).With("asks", short(text)).With("next", "give it what it needs as arguments, or use a tool that does not ask")
	}
	s.asked.keep(callOf(call), q)
	return &executor.Question{Text: text}
}

// yes is the content of an answer that says yes to all that must be said, and what a
// person is shown of the fields.
func (r *inputRequest) yes() (content map[string]any, shown string, is bool) {
	if r.Method != "elicitation/create" {
		return nil, "", false
	}
	if r.Params.Mode == "url" {
		return nil, "", true
	}
	content = map[string]any{}
	for _, name := range r.Params.Schema.Required {
		content[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(r.Params.Schema.Properties)) {
		var field struct {
			Type        jsontext.Value `json:"type"`
			Title       string         `json:"title"`
			Description string         `json:"description"`
		}
		says := "left empty"
		if content[name] != nil {
			says = "yes"
		}
		if schema.Unmarshal(r.Params.Schema.Properties[name], &field) != nil || content[name] != nil && string(field.Type) != `"boolean"` {
			return nil, "", false
		}
		shown += " [" + strings.Join(slices.DeleteFunc([]string{name, field.Title, field.Description}, func(s string) bool { return s == "" }), ", ") + ": " + says + "]"
	}
	for name := range content {
		if _, there := r.Params.Schema.Properties[name]; !there {
			return nil, "", false
		}
	}
	return content, shown, true
}
