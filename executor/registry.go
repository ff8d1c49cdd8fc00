package executor

import (
	"maps"
	"slices"
	"strings"
	"sync"

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
}

type registered struct {
	tool  Tool
	input *jsonschema.Schema
	large chan struct{} // the registry's
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
// Kind already_exists says that the name is taken, kind invalid_config that t
// cannot be registered: its name, description, schema, tier or timeout is not
// usable, or it has no Run.
func (r *Registry) Register(t Tool) error { return r.put(t, false) }

// Replace is like [Registry.Register] but takes the place of a tool of the same
// name, if there is one. Calls of the old tool that are running go on.
func (r *Registry) Replace(t Tool) error { return r.put(t, true) }

func (r *Registry) put(t Tool, replace bool) error {
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
	case t.Timeout < 0:
		return badTool(t, "its timeout is below 0")
	}
	input, err := compileInput(t.Input)
	if err != nil {
		return badTool(t, "its schema: "+shorten(err.Error(), maxShown)).Cause(err)
	}
	t = frozen(t)

	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.tools[t.Name]; taken && !replace {
		return schema.Errorf(schema.AlreadyExists, "there is a tool %q already", t.Name).With("tool", t.Name)
	}
	r.tools[t.Name] = &registered{t, input, r.large}
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

// frozen is t with a schema of its own, so that no holder of one copy can
// change another.
func frozen(t Tool) Tool {
	t.Input = jsontext.Value(slices.Clone(t.Input))
	return t
}

func badTool(t Tool, why string) *schema.Error {
	return schema.Errorf(schema.InvalidConfig, "the tool %s cannot be registered: %s", quoted(t.Name), why).
		With("tool", shorten(t.Name, maxShown))
}
