package executor

import (
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// A GrantRequest is the wish that like calls be not asked about again: of the
// same tool, of the same program where the tool has programs, and of no higher
// tier. What a policy denies stays denied.
type GrantRequest struct {
	Until time.Time `json:"until,omitzero"` // for ever if zero
}

// programOf is what a grant of a call is for; "" for a tool that has no
// programs. It is not ok where the program cannot be told.
func (t *Tool) programOf(args jsontext.Value) (program string, ok bool) {
	if t.Program == nil {
		return "", true
	}
	program = t.Program(args)
	return program, program != "" && len(program) <= maxShown
}

// granted gives the grant that a call needs no question by, nil if there is none.
func (q *question) granted() *replay.Grant {
	if len(q.grants) == 0 {
		return nil
	}
	program, ok := q.tool.programOf(q.args)
	if !ok {
		return nil
	}
	for i := range q.grants {
		g := &q.grants[i]
		if g.Tool != q.tool.Name || g.Program != program || uint64(q.tool.Tier) > g.Tier {
			continue
		}
		if until, err := time.Parse(time.RFC3339Nano, g.Until); g.Until == "" || err == nil && q.now.Before(until) {
			return g
		}
	}
	return nil
}

// grant is what an answer grants beside the call itself, as it is recorded.
func (s *session) grant(c *replay.Call, want *GrantRequest) (jsontext.Value, error) {
	fail := func(kind schema.Kind, why string) (jsontext.Value, error) {
		return nil, schema.Errorf(kind, "%s", why).With("session", s.id).With("call_id", c.ID)
	}
	if !want.Until.IsZero() && !want.Until.After(time.Now()) {
		return fail(schema.InvalidArgs, "the grant would have ended already")
	}
	e, err := s.x.cfg.Tools.lookup(c.Name)
	if err != nil {
		return nil, err
	}
	req, _, err := s.requestOf(c)
	if err != nil {
		return nil, err
	}
	program, ok := e.tool.programOf(req.Args)
	if !ok {
		return fail(schema.InvalidArgs, "which program the call runs cannot be told, so nothing can be granted beyond it; allow it without a grant")
	}
	var o schema.Object
	o.Text("tool", c.Name)
	if program != "" {
		o.Text("program", program)
	}
	o.Uint("tier", uint64(e.tool.Tier))
	if !want.Until.IsZero() {
		o.Text("until", want.Until.UTC().Format(timeFormat))
	}
	return o.Bytes(), nil
}

// bashProgram is the program of a call of bash: the first word of argv, or of a
// command that is one program with its arguments and nothing that a shell would
// do more with.
func bashProgram(args jsontext.Value) string {
	var a struct {
		Command string   `json:"command"`
		Argv    []string `json:"argv"`
	}
	if schema.Unmarshal(args, &a) != nil {
		return ""
	}
	if len(a.Argv) > 0 {
		if a.Command != "" {
			return ""
		}
		return a.Argv[0]
	}
	words := strings.Fields(a.Command)
	if len(words) == 0 || strings.ContainsAny(a.Command, ";|&$<>()`\\\"'\n\r{}!#") || strings.ContainsAny(words[0], "=*?[]~%") {
		return ""
	}
	return words[0]
}
