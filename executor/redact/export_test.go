package redact

import (
	"fmt"
	"slices"
)

// Spans gives what a Redactor finds in a text, SlowSpans what it finds if it
// looks at each place for each of its rules.
func Spans(r *Redactor, s string) []string {
	w := new(redaction)
	w.begin(r, "", nil)
	w.scan(s)
	return w.sorted()
}

func SlowSpans(r *Redactor, s string) []string {
	w := new(redaction)
	w.begin(r, "", nil)
	w.looked = make([]int, len(r.patterns))
	for i, p := range r.patterns {
		for _, m := range p.re.FindAllStringIndex(s, -1) {
			w.found(m[0], m[1], p.rule)
		}
		w.looked[i] = len(s) + 1
	}
	for at := range s {
		for _, group := range r.groups {
			for _, l := range group {
				if l.text != "" || at+1 < len(s) && (s[at+1] == '=' || s[at+1] == ':') {
					w.look(s, at, []*literal{l})
				}
			}
		}
	}
	return w.sorted()
}

func (w *redaction) sorted() []string {
	var list []string
	for _, f := range w.spans {
		list = append(list, fmt.Sprintf("%d-%d %s", f.from, f.to, f.rule))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// StandsFor says whether a value is no secret though it has the name of a secret.
func StandsFor(v any) bool {
	switch v := v.(type) {
	case nil, bool:
		return true
	case string:
		return stands(v)
	case []any:
		return len(v) == 0
	case map[string]any:
		kind, _ := v["type"].(string)
		_, ref := v["$ref"]
		return len(v) == 0 || ref || slices.Contains([]string{"string", "number", "integer", "boolean", "object", "array"}, kind)
	}
	return false
}

// SecretKey says whether the value of a member is secret.
func SecretKey(r *Redactor, name string) bool {
	_, is := r.key(name)
	return is
}
