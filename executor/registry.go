package executor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A Registry holds the tools there are, by name, each with its compiled schema.
// A tool in it does not change any more: the Registry keeps a copy of the
// caller's Tool and gives out copies. All methods may be called from many
// goroutines at the same time.
type Registry struct {
	mu    sync.RWMutex
	tools map[string]*registered // guarded by mu
	large chan struct{}          // a slot for each validation of large arguments
	alone atomic.Bool            // some tool is exclusive, or was
}

// exclusive reports whether a tool is. Where none is, nobody waits for a lock to
// know.
func (r *Registry) exclusive(name string) bool {
	if !r.alone.Load() {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.tools[name]
	return e != nil && e.tool.Exclusive
}

type registered struct {
	tool   Tool
	input  *jsonschema.Schema
	output *jsonschema.Schema // nil if the tool declares none
	large  chan struct{}      // the registry's
}

// NewRegistry returns a registry of these tools. It fails as [Registry.Register]
// does, at the first tool that cannot be registered.
func NewRegistry(tools ...Tool) (*Registry, error) {
	r := &Registry{tools: make(map[string]*registered, len(tools)), large: make(chan struct{}, 2)}
	for _, t := range tools {
		if err := r.Register(t); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Register adds t and compiles its schema.
//
// The schema is JSON Schema 2020-12, or draft-07 if its $schema says so, and
// its type must be object. It must be complete in itself: a $ref to another
// document is refused, nothing is ever loaded. Patterns are RE2 as in package
// regexp, so that matching takes time in proportion to the text and never
// hangs; a pattern with a look-around or a back-reference is refused.
//
// The same holds for Output, if there is one.
//
// Kind already_exists says that the name is taken, kind invalid_config that t
// cannot be registered: its name, description, schemas, tier or timeout is not
// usable, it has no Run, or it is one that [Define] could not make.
func (r *Registry) Register(t Tool) error { return r.put(t, false) }

// Replace is like [Registry.Register] but takes the place of a tool of the same
// name, if there is one. Calls of the old tool that are running go on.
func (r *Registry) Replace(t Tool) error { return r.put(t, true) }

func (r *Registry) put(t Tool, replace bool) error {
	if t.bad != nil {
		return badTool(t, shorten(t.bad.Error(), maxShown)).Cause(t.bad)
	}
	if !schema.ValidToolName(t.Name) {
		return badTool(t, "a tool's name is 1 to 64 of A-Z, a-z, 0-9, _ and -")
	}
	switch {
	case strings.TrimSpace(t.Description) == "":
		return badTool(t, "it has no description")
	case t.Run == nil:
		return badTool(t, "it has no Run")
	case t.Tier < 0:
		return badTool(t, "its tier is below 0")
	case slices.ContainsFunc(t.Phases, func(p string) bool { return !slices.Contains(phases, p) }):
		return badTool(t, "it has a phase that is none of "+strings.Join(phases, ", "))
	case t.Escalates && len(t.Phases) > 0 && !slices.Equal(t.Phases, phases[:1]):
		return badTool(t, "it escalates, which it can in the phase investigating only")
	case slices.ContainsFunc(t.Paths, func(p PathArg) bool { return p.Pointer == "" || !jsontext.Pointer(p.Pointer).IsValid() }):
		return badTool(t, "it has a path whose pointer is none")
	case t.Timeout < 0:
		return badTool(t, "its timeout is below 0")
	}
	e := &registered{tool: frozen(t), large: r.large}
	var err error
	if e.input, err = compile(t.Input); err != nil {
		return badTool(t, "its schema: "+shorten(err.Error(), maxShown)).Cause(err)
	}
	if t.Output != nil {
		if e.output, err = compile(t.Output); err != nil {
			return badTool(t, "the schema of its answer: "+shorten(err.Error(), maxShown)).Cause(err)
		}
		e.tool.Run = e.answering(t.Run)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.tools[t.Name]; taken && !replace {
		return schema.Errorf(schema.AlreadyExists, "there is a tool %q already", t.Name).With("tool", t.Name)
	}
	r.tools[t.Name] = e
	if t.Exclusive {
		r.alone.Store(true)
	}
	return nil
}

// Get returns the tool of that name. Kind unknown_tool says that there is none;
// details.known is a sorted []string of the names there are.
func (r *Registry) Get(name string) (Tool, error) {
	e, err := r.lookup(name)
	if err != nil {
		return Tool{}, err
	}
	return frozen(e.tool), nil
}

// Tools returns all tools, sorted by name.
func (r *Registry) Tools() []Tool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]Tool, 0, len(r.tools))
	for _, name := range slices.Sorted(maps.Keys(r.tools)) {
		list = append(list, frozen(r.tools[name].tool))
	}
	return list
}

func (r *Registry) lookup(name string) (*registered, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e, ok := r.tools[name]; ok {
		return e, nil
	}
	return nil, schema.Errorf(schema.UnknownTool, "there is no tool %s", quoted(name)).
		With("known", slices.Sorted(maps.Keys(r.tools)))
}

// answering is run with a look at its answer. A plan, and a no without data,
// may be anything.
func (e *registered) answering(run func(context.Context, *Invocation) (Result, error)) func(context.Context, *Invocation) (Result, error) {
	return func(ctx context.Context, call *Invocation) (Result, error) {
		res, err := run(ctx, call)
		if err != nil || call.DryRun || !res.OK && len(res.Structured) == 0 {
			return res, err
		}
		defer e.room(len(res.Structured))()
		found := []Violation{{"", "this is not JSON"}}
		if text, _, err := schema.Compact(nil, res.Structured, 2); err == nil {
			found = violations(e.output, text, readSound)
		}
		if len(found) == 0 {
			return res, nil
		}
		listed, omitted := listable(found)
		bad := schema.Errorf(schema.ToolFailed, "the tool ran, and its answer does not fit its own schema").With("violations", listed)
		if omitted > 0 {
			bad.With("omitted", omitted)
		}
		return Result{}, bad
	}
}

// frozen is t with values of its own, so that no holder of one copy can change
// another.
func frozen(t Tool) Tool {
	if t.Destructive != nil {
		t.Destructive = new(*t.Destructive)
	}
	if t.OpenWorld != nil {
		t.OpenWorld = new(*t.OpenWorld)
	}
	t.Input, t.Output, t.Phases, t.Paths = slices.Clone(t.Input), slices.Clone(t.Output), slices.Clone(t.Phases), slices.Clone(t.Paths)
	return t
}

func badTool(t Tool, why string) *schema.Error {
	return schema.Errorf(schema.InvalidConfig, "the tool %s cannot be registered: %s", quoted(t.Name), why).
		With("tool", shorten(t.Name, maxShown))
}
