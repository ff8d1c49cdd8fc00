package executor

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// MetadataTool is the key in the metadata of a worker's endpoint whose value is
// the definition of its tool, a JSON object of at most 64 KiB: description and
// inputSchema, and, if it likes, name (of the endpoint's subject), outputSchema
// and timeout_ms. All else in it, annotations too, is left for others to read.
const MetadataTool = "steno_tool"

const maxDefinition = 64 << 10

// workerTier is the tier of a tool that nobody vouches for: it may do anything.
const workerTier = 3

// Workers says which tools that workers host may be called. The zero value
// takes all of them for tools that may do anything, and may not run twice.
type Workers struct {
	// Accept is any, vouched for those in Tools alone, or none; any if empty.
	Accept string
	Tools  []Vouched // what the operator knows of tools, by their names
}

// What Workers.Accept may be.
const (
	AcceptAny     = "any"
	AcceptVouched = "vouched"
	AcceptNone    = "none"
)

// A Vouched is what the operator says of a tool that workers host, whatever they
// say of it themselves.
type Vouched struct {
	Name        string    `json:"name"`
	Tier        *int      `json:"tier"` // 3 if nil
	ReadOnly    bool      `json:"read_only"`
	Repeatable  bool      `json:"repeatable"`
	Idempotent  bool      `json:"idempotent"`
	Destructive *bool     `json:"destructive"`
	OpenWorld   *bool     `json:"open_world"`
	Phases      []string  `json:"phases"`
	Exclusive   bool      `json:"exclusive"`
	Paths       []PathArg `json:"paths"`   // arguments that are paths of the session's workspace
	DryRun      bool      `json:"dry_run"` // its workers know dry runs
	// Timeout is 1s to 1h. Zero: what the worker says, if that is less than
	// [DefaultTimeout], and otherwise that.
	Timeout time.Duration `json:"-"`
}

// check says what is wrong with the settings.
func (w *Workers) check() error {
	if w.Accept == "" {
		w.Accept = AcceptAny
	}
	if !slices.Contains([]string{AcceptAny, AcceptVouched, AcceptNone}, w.Accept) {
		return schema.Errorf(schema.InvalidConfig, "workers: accept is any, vouched or none; got %s", quoted(w.Accept))
	}
	seen := map[string]bool{}
	for _, v := range w.Tools {
		bad := func(why string) error { return badTool(Tool{Name: v.Name}, why) }
		switch {
		case !schema.ValidToolName(v.Name):
			return bad("a tool's name is 1 to 64 of A-Z, a-z, 0-9, _ and -")
		case seen[v.Name]:
			return bad("it stands twice among those of workers")
		case v.Timeout != 0 && (v.Timeout < time.Second || v.Timeout > commandMax):
			return bad("timeout is 1s to 1h")
		case v.Tier != nil && *v.Tier < 0:
			return bad("its tier is below 0")
		case slices.ContainsFunc(v.Phases, func(p string) bool { return !slices.Contains(phases, p) }):
			return bad("it has a phase that is none of " + strings.Join(phases, ", "))
		case slices.ContainsFunc(v.Paths, func(p PathArg) bool { return p.Pointer == "" || !jsontext.Pointer(p.Pointer).IsValid() }):
			return bad("it has a path whose pointer is none")
		}
		seen[v.Name] = true
	}
	return nil
}

// A definition is what a worker says of a tool and what counts of it.
type definition struct {
	Name        string         `json:"name,omitzero"`
	Description string         `json:"description"`
	Input       jsontext.Value `json:"inputSchema"`
	Output      jsontext.Value `json:"outputSchema,omitzero"`
	TimeoutMS   int64          `json:"timeout_ms,omitzero"`
	Hints       *workerHints   `json:"annotations,omitzero"`
}

// workerHints are shown to whoever looks at the endpoint. They decide nothing.
type workerHints struct {
	ReadOnly    bool `json:"readOnlyHint"`
	Destructive bool `json:"destructiveHint"`
	Idempotent  bool `json:"idempotentHint"`
	OpenWorld   bool `json:"openWorldHint"`
}

// readDefinition reads the definition of a tool. The sum is over what counts, so
// that workers that spell it in other ways agree.
func readDefinition(name, text string) (d *definition, sum [32]byte, err error) {
	switch {
	case text == "":
		return nil, sum, errors.New("its metadata has no " + MetadataTool)
	case len(text) > maxDefinition:
		return nil, sum, fmt.Errorf("its definition has %d bytes; %d are the most", len(text), maxDefinition)
	}
	sound, replaced, err := schema.Compact(nil, []byte(text), 0)
	if err != nil {
		return nil, sum, fmt.Errorf("its definition: %s", schema.AsError(err).Message)
	}
	if replaced > 0 {
		return nil, sum, errors.New("its definition is not valid Unicode")
	}
	d = new(definition)
	if err := json.Unmarshal(sound, d); err != nil {
		return nil, sum, errors.New("its definition does not have the form of one")
	}
	switch {
	case d.Name == "":
		d.Name = name
	case d.Name != name:
		return nil, sum, fmt.Errorf("its definition is of a tool %s", quoted(d.Name))
	}
	if len(d.Input) == 0 {
		return nil, sum, errors.New("its definition has no inputSchema")
	}
	if d.TimeoutMS < 0 {
		return nil, sum, errors.New("its timeout_ms is below 0")
	}
	counts := *d
	counts.Hints = nil
	b, err := json.Marshal(counts, json.Deterministic(true))
	if err != nil {
		return nil, sum, err
	}
	canonical := jsontext.Value(b)
	// Numbers stay as they are written: two schemas that differ there are two.
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return nil, sum, err
	}
	return d, sha256.Sum256(canonical), nil
}

// tool is the tool of a definition. What it says of itself beyond its schemas
// counts for nothing; vouched is what the operator says.
func (w *Workers) tool(d *definition) (t Tool, vouched bool, err error) {
	t = Tool{Name: d.Name, Description: d.Description, Input: d.Input, Output: d.Output, Tier: workerTier, DryRun: false}
	t.Timeout = min(time.Duration(min(d.TimeoutMS, DefaultTimeout.Milliseconds()))*time.Millisecond, DefaultTimeout)
	i := slices.IndexFunc(w.Tools, func(v Vouched) bool { return v.Name == d.Name })
	if i < 0 {
		if w.Accept != AcceptAny {
			return Tool{}, false, errors.New("nobody vouches for it, and only tools that somebody vouches for are called")
		}
		return t, false, nil
	}
	v := w.Tools[i]
	if v.Tier != nil {
		t.Tier = *v.Tier
	}
	t.ReadOnly, t.Repeatable, t.Idempotent, t.Destructive, t.OpenWorld = v.ReadOnly, v.Repeatable, v.Idempotent, v.Destructive, v.OpenWorld
	t.Phases, t.Exclusive, t.DryRun, t.Paths = v.Phases, v.Exclusive, v.DryRun, v.Paths
	if v.Timeout != 0 {
		t.Timeout = v.Timeout
	}
	return t, true, nil
}
