package executor

import (
	"errors"
	"path"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A PathArg says where in the arguments of a tool a path of the workspace
// stands. Before a call is recorded the gate looks where each leads: out of the
// workspace, into a protected folder, and to a sensitive name none does. A tool
// that opens files by itself must walk there as carefully; in between somebody
// may put a link in the way.
type PathArg struct {
	Pointer string `json:"pointer"` // a JSON pointer from the arguments, such as /path; * stands for every element of a list, as in /files/*
	Write   bool   `json:"write"`   // what is there may be changed
}

// A touched is a path that a call names.
type touched struct {
	path  []string // its components from the workspace, links resolved
	write bool
	sure  bool // nothing is in the way; else path is by the letter
}

// touches gives the paths that a call names, or says why it may not touch one.
func (s *session) touches(t *Tool, args jsontext.Value) (list []touched, d decision, refusal error) {
	var w *Workspace
	for _, p := range t.Paths {
		for name := range pathsAt(args, strings.Split(p.Pointer, "/")[1:]) {
			if w == nil {
				var err error
				if w, err = s.space(); err == nil && w == nil {
					err = noWorkspace()
				}
				if err != nil {
					return nil, deniedPath(err), err
				}
			}
			to, err := w.resolve(name, p.Write)
			if err != nil {
				return nil, deniedPath(err), err
			}
			list = append(list, to)
		}
	}
	return list, decision{}, nil
}

// resolve says where a path leads. One of which a part is missing, or is no
// folder, leads nowhere; the tool will say so.
func (w *Workspace) resolve(name string, write bool) (touched, error) {
	p, err := w.find(name, perhapsNew)
	if errors.Is(err, schema.ResourceMissing) {
		by, err := w.split(name)
		if by = components(path.Clean("/" + strings.Join(by, "/"))); err != nil {
			return touched{}, err
		}
		return touched{by, write, false}, nil
	}
	if err != nil {
		return touched{}, err
	}
	defer p.close()
	return touched{components(p.path), write, true}, nil
}

func deniedPath(err error) decision {
	d := decision{gate: "path", by: "auto", kind: schema.KindOf(err), reason: "a path of the arguments leads where no tool may go"}
	if errors.Is(err, errEvidence) {
		d.gate = "evidence"
	} else if d.kind != schema.ProtectedPath {
		d.rule = string(d.kind) // or a result that is lost could not be made again
	}
	return d
}

// errEvidence is the cause where a path leads to what steno itself has written.
var errEvidence = errors.New("it is one of the executor's protected folders")

// pathsAt yields the texts at a pointer. A list there is looked into.
func pathsAt(v jsontext.Value, tokens []string) func(yield func(string) bool) {
	return func(yield func(string) bool) { walkPaths(v, tokens, yield) }
}

func walkPaths(v jsontext.Value, tokens []string, yield func(string) bool) bool {
	switch {
	case len(v) == 0:
	case v[0] == '[' && (len(tokens) == 0 || tokens[0] == "*"):
		var list []jsontext.Value
		if schema.Unmarshal(v, &list) != nil {
			return true
		}
		for _, e := range list {
			if !walkPaths(e, tokens[min(1, len(tokens)):], yield) {
				return false
			}
		}
	case len(tokens) > 0:
		if e, there := valueAt(v, jsontext.Pointer("/"+tokens[0])); there {
			return walkPaths(e, tokens[1:], yield)
		}
	case v[0] == '"':
		b, err := jsontext.AppendUnquote(nil, v)
		return err != nil || yield(string(b))
	}
	return true
}

// fitsPath reports whether a pattern fits a path. ** stands for any number of
// folders, also none.
func fitsPath(pattern, names []string) bool {
	p, n, star, from := 0, 0, -1, 0
	for n < len(names) {
		if p < len(pattern) && pattern[p] == "**" {
			star, from = p, n
			p++
			continue
		}
		if p < len(pattern) {
			if ok, _ := path.Match(pattern[p], names[n]); ok {
				p, n = p+1, n+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}

// checkPattern says what is wrong with a pattern of paths.
func checkPattern(pattern string) error {
	for _, part := range strings.Split(pattern, "/") {
		if _, err := path.Match(part, ""); err != nil || part == "" || part == "." || part == ".." || part != "**" && strings.Contains(part, "**") {
			return schema.Errorf(schema.InvalidConfig, "path must be a pattern from the workspace, such as **/*.lock; got %s", quoted(pattern))
		}
	}
	return nil
}

// fitsPaths reports whether a rule fits what a call touches: a deny or an ask
// one path of it, an allow all.
func (r *rule) fitsPaths(list []touched) bool {
	if r.path == nil && r.write == nil {
		return true
	}
	any, all := false, true
	for _, t := range list {
		ok := (r.write == nil || *r.write == t.write) && (r.path == nil || fitsPath(r.path, t.path)) && (t.sure || r.do != doAllow)
		any, all = any || ok, all && ok
	}
	return any && (all || r.do != doAllow)
}
