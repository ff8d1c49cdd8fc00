package executor

import (
	"cmp"
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// Forms in which tools are told to models: of the Model Context Protocol, of
// Anthropic's messages, and of OpenAI's chat completions and responses. Steno's
// own has all there is.
const (
	FormatSteno     = replay.FormatSteno
	FormatMCP       = "mcp"
	FormatAnthropic = replay.FormatAnthropic
	FormatOpenAI    = replay.FormatOpenAI
	FormatResponses = "openai-responses" // of tools only: calls and messages are told apart by what they hold
)

// A ToolInfo is a tool in steno's own form.
type ToolInfo struct {
	Name        string         `json:"name"`
	Original    string         `json:"original,omitzero"` // its name where it comes from, if that is another
	Description string         `json:"description"`
	Tier        int            `json:"tier"`
	Phases      []string       `json:"phases,omitempty"` // all if there are none
	Escalates   bool           `json:"escalates,omitzero"`
	ReadOnly    bool           `json:"read_only"`
	Repeatable  bool           `json:"repeatable"`
	Idempotent  bool           `json:"idempotent"`
	Destructive bool           `json:"destructive"`
	OpenWorld   bool           `json:"open_world"`
	TimeoutMS   int64          `json:"timeout_ms,omitzero"`
	Confined    string         `json:"confined,omitzero"` // what is around the commands that it runs
	Host        *Host          `json:"host,omitzero"`     // where it comes from; nil if it is of the executor's process
	Away        string         `json:"away,omitzero"`     // why nobody can call it now
	Hosted      *WorkerInfo    `json:"hosted,omitzero"`   // by whom, of a tool of workers
	Input       jsontext.Value `json:"input"`
	Output      jsontext.Value `json:"output,omitzero"`
}

// Spec is what a model is told of the tool, in one of the forms; steno's if
// format is empty. InvalidArgs: there is no such format.
func (t Tool) Spec(format string) (jsontext.Value, error) {
	var v any
	switch format {
	case "", FormatSteno:
		info := ToolInfo{Name: t.Name, Original: t.Original, Description: t.Description, Tier: t.Tier, Phases: t.Phases, Escalates: t.Escalates,
			ReadOnly: t.ReadOnly, Repeatable: t.Repeatable, Idempotent: t.idempotent(), Destructive: t.destructive(), OpenWorld: t.openWorld(),
			TimeoutMS: cmp.Or(t.asked, t.Timeout).Milliseconds(), Input: t.Input, Output: t.Output}
		if t.walls != nil {
			info.Confined = t.walls()
		}
		if t.Host != (Host{}) {
			info.Host = &t.Host
		}
		if t.Ready != nil {
			if err := t.Ready(); err != nil {
				info.Away = schema.AsError(err).Message
			}
		}
		if t.hosts != nil {
			info.Hosted = t.hosts()
		}
		v = info
	case FormatMCP:
		v = mcpTool{t.Name, t.Description, t.Input, t.Output, mcpHints{t.ReadOnly, t.destructive(), t.idempotent(), t.openWorld()}}
	case FormatAnthropic:
		v = anthropicTool{t.Name, t.Description, t.Input}
	case FormatOpenAI:
		v = openAITool{"function", openAIFunction{t.Name, t.Description, t.Input}}
	case FormatResponses:
		v = openAITyped{"function", t.Name, t.Description, t.Input, false}
	default:
		return nil, schema.Errorf(schema.InvalidArgs, "there is no format %s of a tool; there are steno, mcp, anthropic, openai and openai-responses", quoted(format)).
			With("pointer", "/format")
	}
	return json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

type (
	mcpTool struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Input       jsontext.Value `json:"inputSchema"`
		Output      jsontext.Value `json:"outputSchema,omitzero"`
		Hints       mcpHints       `json:"annotations"`
	}
	mcpHints struct {
		ReadOnly    bool `json:"readOnlyHint"`
		Destructive bool `json:"destructiveHint"`
		Idempotent  bool `json:"idempotentHint"`
		OpenWorld   bool `json:"openWorldHint"`
	}
	anthropicTool struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Input       jsontext.Value `json:"input_schema"`
	}
	openAITool struct {
		Type     string         `json:"type"`
		Function openAIFunction `json:"function"`
	}
	openAITyped struct {
		Type        string         `json:"type"`
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Input       jsontext.Value `json:"parameters"`
		Strict      bool           `json:"strict"` // it is true there where it is left out, and few schemas are that strict
	}
	openAIFunction struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Input       jsontext.Value `json:"parameters"`
	}
)

// What a tool does not say of itself is taken for the worse.
func (t *Tool) idempotent() bool  { return t.Idempotent || t.ReadOnly }
func (t *Tool) destructive() bool { return !t.ReadOnly && (t.Destructive == nil || *t.Destructive) }
func (t *Tool) openWorld() bool   { return t.OpenWorld == nil || *t.OpenWorld }

// ToolsRequest asks which tools a session admits now.
type ToolsRequest struct {
	Session string `json:"session"`
	Format  string `json:"format,omitzero"` // steno, mcp, anthropic, openai or openai-responses; steno if empty
}

// ToolsAnswer lists them, sorted by name. A call of another one is refused.
type ToolsAnswer struct {
	OK       bool             `json:"ok"`
	Phase    string           `json:"phase,omitzero"`
	TaskKind string           `json:"task_kind,omitzero"`
	Tools    []jsontext.Value `json:"tools"`
}

var toolsVerb = verb{"tools", (*Executor).runTools, true, ofLooks}

// runTools lists the tools that a session admits. Its holder is asked, since
// that is who will run them.
func (x *Executor) runTools(ctx context.Context, session string, payload []byte, here bool) (reply, error) {
	var req ToolsRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	if req.Session != session {
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	}
	s, err := x.find(ctx, session, here)
	if err != nil {
		return reply{}, err
	}
	defer s.leave()
	policy := x.cfg.Policy // what the next call would have the session go by
	if policy == nil || policy.goes(s.posture()) {
		if policy, err = s.policy(); err != nil {
			return reply{}, err
		}
	}
	at := s.stage()
	a := ToolsAnswer{OK: true, Phase: at.phase, TaskKind: at.task, Tools: []jsontext.Value{}}
	for _, t := range x.cfg.Tools.Tools() {
		if s.admit(policy, &t, at).gate != "" {
			continue
		}
		spec, err := t.Spec(req.Format)
		if err != nil {
			return reply{}, schema.AsError(err).With("session", session)
		}
		a.Tools = append(a.Tools, spec)
	}
	return answer(a, x, session, s.journal.Head())
}
