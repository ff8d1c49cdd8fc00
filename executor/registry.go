package executor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

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
	tools map[string]*registered  // guarded by mu
	order []*registered           // all that there were and are to be closed, as they came; guarded by mu
	hosts map[string]func() error // by the beginning of names; guarded by mu
	large chan struct{}           // a slot for each validation of large arguments
	alone atomic.Bool             // some tool is exclusive, or was
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
	case len(t.Original) > 1024 || !utf8.ValidString(t.Original):
		return badTool(t, "the name that it has where it comes from is longer than 1,024 bytes, or not UTF-8")
	case strings.TrimSpace(t.Description) == "":
		return badTool(t, "it has no description")
	case t.Run == nil && t.Bind == nil:
		return badTool(t, "it has no Run")
	case t.Run != nil && t.Bind != nil:
		return badTool(t, "it has both Run and Bind")
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
	}
	e.tool.of = e
	if t.Check != nil {
		e.tool.Check = func(ctx context.Context, call *Invocation) (Checked, error) {
			c, err := t.Check(ctx, call)
			if err == nil && c.Took {
				err = e.sound(&c.Result, call.DryRun)
			}
			return c, err
		}
	}
	if t.Bind == nil {
		e.tool.Run = e.guarded(t.Run)
	} else {
		e.tool.Bind = func(ctx context.Context, s Session) (Instance, error) {
			in, err := t.Bind(ctx, s)
			if in.Run != nil {
				in.Run = e.guarded(in.Run)
			}
			return in, err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if there, taken := r.tools[t.Name]; taken && !replace {
		return clash(there.tool, t)
	}
	r.tools[t.Name] = e
	if t.Exclusive {
		r.alone.Store(true)
	}
	if t.Close != nil {
		r.order = append(r.order, e)
	}
	return nil
}

// Remove takes a tool away, as when who hosts it has it no more. Calls of it that
// are running go on; further ones are of an unknown tool. It is closed with the
// others. Nothing happens if there is no such tool.
func (r *Registry) Remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tools, name)
}

// Host announces tools that come and go and whose names begin with prefix. As long
// as away says why they are not there, a name of them that is not known is that
// error, which may pass, and not unknown_tool. away must not wait for anything.
func (r *Registry) Host(prefix string, away func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil {
		r.hosts = map[string]func() error{}
	}
	r.hosts[prefix] = away
}

// announced reports whether a name belongs to tools that come and go.
func (r *Registry) announced(name string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for prefix := range r.hosts {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
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
	for prefix, away := range r.hosts {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := away(); err != nil {
			return nil, err
		}
	}
	return nil, schema.Errorf(schema.UnknownTool, "there is no tool %s", quoted(name)).
		With("known", slices.Sorted(maps.Keys(r.tools)))
}

// guarded is run with what every tool gets from the runtime: a plan for a dry run
// that it does not know, and a look at its answer.
func (e *registered) guarded(run func(context.Context, *Invocation) (Result, error)) func(context.Context, *Invocation) (Result, error) {
	return func(ctx context.Context, call *Invocation) (Result, error) {
		if call.DryRun && !e.tool.DryRun {
			return e.plan(call), nil
		}
		res, err := run(ctx, call)
		if err != nil {
			return res, err
		}
		return res, e.sound(&res, call.DryRun)
	}
}

// sound says whether a result can be recorded, and is what the tool declares.
func (e *registered) sound(res *Result, dryRun bool) error {
	if dryRun {
		res.Patch = nil
	}
	if len(res.Patch) > 0 {
		if _, err := patched(res.Patch); err != nil {
			return schema.Errorf(schema.ToolFailed, "the tool ran, and its patch of the working state cannot be recorded: %s", err)
		}
	}
	return e.answers(res, dryRun)
}

// plan is the answer to a dry run of a tool that knows none.
func (e *registered) plan(call *Invocation) Result {
	var o schema.Object
	o.Text("tool", e.tool.Name).Raw("args", call.Args)
	args, _ := schema.Truncate(string(call.Args), maxPlan)
	return Result{OK: true, Output: "would call " + e.tool.Name + " with " + args, Structured: o.Bytes(),
		Summary: "a dry run; " + e.tool.Name + " was not called"}
}

// maxPlan is how many bytes of the arguments the text of a plan repeats.
const maxPlan = 4000

// answers says whether a result fits what the tool declares. A plan, and a no
// without data, may be anything.
func (e *registered) answers(res *Result, dryRun bool) error {
	if e.output == nil || dryRun || !res.OK && len(res.Structured) == 0 {
		return nil
	}
	defer e.room(len(res.Structured))()
	found := []Violation{{"", "this is not JSON"}}
	if text, _, err := schema.Compact(nil, res.Structured, 2); err == nil {
		found = violations(e.output, text, readSound)
	}
	if len(found) == 0 {
		return nil
	}
	listed, omitted := listable(found)
	bad := schema.Errorf(schema.ToolFailed, "the tool ran, and its answer does not fit its own schema").With("violations", listed)
	if omitted > 0 {
		bad.With("omitted", omitted)
	}
	return bad
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

// clash says that two tools have one name, and which ones if that is not the
// name that they have where they come from.
func clash(there, t Tool) *schema.Error {
	bad := schema.Errorf(schema.AlreadyExists, "there is a tool %q already", t.Name)
	if there.Original != "" || t.Original != "" {
		bad = schema.Errorf(schema.AlreadyExists, "the tools %s and %s would both be called %s", quoted(there.origin()), quoted(t.origin()), t.Name).
			With("originals", []string{shorten(there.origin(), maxShown), shorten(t.origin(), maxShown)})
	}
	return bad.With("tool", t.Name)
}

// origin is the name that the tool has where it comes from.
func (t *Tool) origin() string { return cmp.Or(t.Original, t.Name) }

func badTool(t Tool, why string) *schema.Error {
	return schema.Errorf(schema.InvalidConfig, "the tool %s cannot be registered: %s", quoted(t.Name), why).
		With("tool", shorten(t.Name, maxShown))
}
