package executor

import (
	"bytes"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A ruleText is a rule as it stands in a policy document.
type ruleText struct {
	Name     string        `json:"name"`
	Do       string        `json:"do"`
	Tool     string        `json:"tool"`
	Tier     *int          `json:"tier"`
	Path     string        `json:"path"`
	Write    *bool         `json:"write"`
	Argument *argumentText `json:"argument"`
}

type argumentText struct {
	Pointer string `json:"pointer"`
	Matches string `json:"matches"`
}

// What a rule does.
const (
	doDeny = iota
	doAsk
	doAllow
)

var doWords = map[string]int{"deny": doDeny, "ask": doAsk, "allow": doAllow}

type rule struct {
	name    string
	do      int
	tool    string // a pattern; "" fits every tool
	tier    *int
	path    []string // components of a pattern; nil: whatever is touched
	write   *bool
	pointer jsontext.Pointer
	matches *regexp.Regexp // nil: whatever the arguments are
}

// ruleName is what may stand as rule in a decision.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func (t *ruleText) compile() (rule, error) {
	bad := func(format string, args ...any) (rule, error) {
		return rule{}, schema.Errorf(schema.InvalidConfig, format, args...)
	}
	do, known := doWords[t.Do]
	r := rule{name: t.Name, do: do, tool: t.Tool, tier: t.Tier, write: t.Write}
	switch {
	case !ruleName.MatchString(t.Name):
		return bad("a rule has a name, of 1 to 64 of A-Z a-z 0-9 _ . -")
	case t.Name == ruleNoMatch || t.Name == ruleUnattended || t.Name == ruleExpired:
		return bad("the name says something else in a decision; take another")
	case !known:
		return bad("do must be deny, ask or allow")
	case t.Tier != nil && (*t.Tier < 0 || *t.Tier >= neverTier):
		return bad("tier must be 0 to 3")
	}
	if _, err := path.Match(t.Tool, ""); err != nil {
		return bad("tool is no pattern: %s", shorten(t.Tool, maxShown))
	}
	if t.Path != "" {
		if err := checkPattern(t.Path); err != nil {
			return rule{}, err
		}
		r.path = strings.Split(t.Path, "/")
	}
	if a := t.Argument; a != nil {
		r.pointer = jsontext.Pointer(a.Pointer)
		if !r.pointer.IsValid() {
			return bad("pointer must be a JSON pointer, such as /path; got %s", quoted(a.Pointer))
		}
		if a.Matches == "" {
			return bad("argument says nothing: matches is missing")
		}
		text := a.Matches
		if _, err := regexp.Compile(text); err != nil { // by itself: a ) of its own must not close ours
			return bad("matches is no RE2 expression: %s", shorten(err.Error(), maxShown))
		}
		if do == doAllow {
			text = `\A(?:` + text + `)\z`
		}
		var err error
		if r.matches, err = regexp.Compile(text); err != nil {
			return bad("matches is no RE2 expression: %s", shorten(err.Error(), maxShown))
		}
	}
	return r, nil
}

// named reports whether the rule is about tools of this name.
func (r *rule) named(tool string) bool {
	ok, _ := path.Match(r.tool, tool)
	return ok || r.tool == ""
}

// fits reports whether a rule that is about the tool's name fits a call.
func (r *rule) fits(q *question) bool {
	if r.tier != nil && (r.do == doAllow && q.tool.Tier > *r.tier || r.do != doAllow && q.tool.Tier < *r.tier) {
		return false
	}
	if !r.fitsPaths(q.paths) {
		return false
	}
	if r.matches == nil {
		return true
	}
	v, there := valueAt(q.args, r.pointer)
	if !there {
		return false
	}
	if v[0] == '"' && bytes.IndexByte(v, '\\') < 0 { // as nearly always
		return r.matches.Match(v[1 : len(v)-1])
	}
	t := texts{strict: r.do == doAllow, matches: r.matches, all: true}
	if err := t.read(jsontext.NewDecoder(bytes.NewReader(v))); err != nil {
		return !t.strict // what cannot be looked at is not allowed, and may well be denied
	}
	if t.strict {
		return t.any && t.all
	}
	return t.any
}

// valueAt gives the value at a pointer in compact JSON, which it is a part of.
func valueAt(v jsontext.Value, p jsontext.Pointer) (jsontext.Value, bool) {
	if p == "" {
		return v, true
	}
	f := spare.Get().(*schema.Fields)
	defer func() {
		f.Read(nil)
		spare.Put(f)
	}()
	for name := range p.Tokens() {
		found := false
		switch {
		case len(v) > 0 && v[0] == '{' && f.Read(v):
			for i := range f.Len() {
				if key, value := f.At(i); string(key) == name {
					v, found = value, true
					break
				}
			}
		case len(v) > 0 && v[0] == '[':
			v, found = element(v, name)
		}
		if !found {
			return nil, false
		}
	}
	return v, true
}

// element gives an element of an array by its number.
func element(array jsontext.Value, name string) (jsontext.Value, bool) {
	d := jsontext.NewDecoder(bytes.NewReader(array))
	if _, err := d.ReadToken(); err != nil {
		return nil, false
	}
	for i := 0; ; i++ {
		if k := d.PeekKind(); k == ']' || k == 0 {
			return nil, false
		}
		v, err := d.ReadValue()
		if err != nil {
			return nil, false
		}
		if strconv.Itoa(i) == name {
			end := d.InputOffset()
			return array[end-int64(len(v)) : end], true
		}
	}
}

// texts compares the texts in a value with an expression.
type texts struct {
	// strict looks at what a list holds only as at one text, with spaces between;
	// otherwise each part is looked at for itself too.
	strict   bool
	matches  *regexp.Regexp
	any, all bool // of the texts matched
}

func (t *texts) add(text string) {
	ok := t.matches.MatchString(text)
	t.any, t.all = t.any || ok, t.all && ok
}

// number adds a number as it is written, and, where that is enough to match,
// as a whole number: 22.0 and 2.2e1 are a 22.
func (t *texts) number(text string) {
	t.add(text)
	if t.strict || !strings.ContainsAny(text, ".eE") {
		return
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		t.add(strconv.FormatFloat(f, 'f', -1, 64))
	}
}

func (t *texts) read(d *jsontext.Decoder) error {
	switch d.PeekKind() {
	case '{':
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for d.PeekKind() == '"' {
			if err := d.SkipValue(); err != nil { // the name
				return err
			}
			if err := t.read(d); err != nil {
				return err
			}
		}
		_, err := d.ReadToken()
		return err
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		var list []string
		for k := d.PeekKind(); k != ']'; k = d.PeekKind() {
			if k == '{' || k == '[' || k == 0 {
				if err := t.read(d); err != nil {
					return err
				}
				continue
			}
			token, err := d.ReadToken()
			if err != nil {
				return err
			}
			list = append(list, token.String())
			if k == '0' && !t.strict {
				t.number(token.String())
			} else if !t.strict {
				t.add(token.String())
			}
		}
		if list != nil {
			t.add(strings.Join(list, " "))
		}
		_, err := d.ReadToken()
		return err
	}
	token, err := d.ReadToken()
	if err != nil {
		return err
	}
	if token.Kind() == '0' {
		t.number(token.String())
	} else {
		t.add(token.String())
	}
	return nil
}
