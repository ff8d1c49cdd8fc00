package mcp

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"steno/executor"
	"steno/schema"
)

func asksWith(t *testing.T, message, field string) *answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form","message":"`+message+`",
		"requestedSchema":{"type":"object","required":["backups"],"properties":{"why":{"type":"string"},"backups":`+field+`}}}}}}`), &a); err != nil {
		t.Fatal(err)
	}
	return &a
}

// A person sees all that a yes says, or is not asked.
func TestAQuestionShowsTheFieldsOfItsForm(t *testing.T) {
	t.Parallel()
	s := newServer(&Servers{opts: Options{Logger: slog.New(slog.DiscardHandler)}}, executor.MCPServer{Name: "x"})
	call := &executor.Invocation{Session: "s", CallID: "c"}
	const field = `{"type":"boolean","title":"Backups","description":"Delete them too"}`
	q, is := errors.AsType[*executor.Question](s.ask(call, asksWith(t, "Go on?", field)))
	if want := "Go on? [backups, Backups, Delete them too: yes] [why: left empty]"; !is || q.Text != want {
		t.Errorf("a person sees %v, want %s", q, want)
	}
	for _, a := range []*answer{asksWith(t, strings.Repeat("x", maxShown), field), asksWith(t, "Go on?", `{"type":"string"}`)} {
		s.asked.take("s c")
		if err := s.ask(call, a); schema.KindOf(err) != schema.ToolFailed || s.asked.take("s c") != nil {
			t.Errorf("a person would be asked: %v", err)
		}
	}
}

// Questions that nobody has said yes to make room for others.
func TestTheOldestQuestionIsForgotten(t *testing.T) {
	t.Parallel()
	var asked questions
	for n := range maxAsked + 2 {
		asked.keep(fmt.Sprint(n), &question{state: fmt.Sprint(n)})
	}
	if asked.take("1") != nil || asked.take("2") == nil || len(asked.of) != maxAsked-1 || len(asked.order) != maxAsked-1 {
		t.Errorf("%d are kept", len(asked.of))
	}
	last := fmt.Sprint(maxAsked + 1)
	if q := asked.take(last); q == nil || q.state != last || asked.take(last) != nil {
		t.Errorf("the last is %v", q)
	}
}
