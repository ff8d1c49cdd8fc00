package redact

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A frame is an object or a list that is being read.
type frame struct {
	key   string // of the member that is being read, with its quotes; "" in a list
	index int    // of the value, in a list
}

// A jsonReader copies JSON once something in it is replaced.
type jsonReader struct {
	w    *redaction
	s    string
	out  []byte // nil as long as nothing is
	last int    // up to where s is in out
	// nested is how many strings of JSON s lies in. Marks of what lies in a
	// string point to the outermost one.
	nested int
}

// json looks through JSON text; out is nil if nothing was replaced, is is false
// if s is no JSON.
func (w *redaction) json(s string, nested int) (out []byte, is bool) {
	r := jsonReader{w: w, s: s, nested: nested}
	i := r.value(r.space(0), 1)
	if i < 0 || r.space(i) != len(s) {
		return nil, false
	}
	if r.out != nil {
		r.out = append(r.out, s[r.last:]...)
	}
	return r.out, true
}

func (r *jsonReader) space(i int) int {
	for i < len(r.s) && (r.s[i] == ' ' || r.s[i] == '\n' || r.s[i] == '\t' || r.s[i] == '\r') {
		i++
	}
	return i
}

// put replaces s[from:to].
func (r *jsonReader) put(from, to int, text string) {
	if r.out == nil {
		r.out = make([]byte, 0, len(r.s)+len(text))
	}
	r.out = append(r.out, r.s[r.last:from]...)
	r.out, _ = jsontext.AppendQuote(r.out, text) // an error only says that text was replaced
	r.last = to
}

// maxWalk is how deep JSON is read. The doors let less pass.
const maxWalk = schema.MaxDepth + 50

// value reads the value at i and gives what is behind it, -1 if there is none.
func (r *jsonReader) value(i, depth int) int {
	if i >= len(r.s) || depth > maxWalk {
		return -1
	}
	switch c := r.s[i]; c {
	case '{':
		return r.object(i, depth)
	case '[':
		return r.list(i, depth)
	case '"':
		end, escaped := stringEnd(r.s, i)
		if end < 0 {
			return -1
		}
		r.str(i, end, escaped)
		return end
	}
	end := r.scalar(i)
	if end > i && end-i >= minKnown { // a number may be known
		if _, hit := r.w.text(r.s[i:end], maxNested); hit {
			r.put(i, end, redacted)
		}
	}
	return end
}

// scalar gives the end of a number or word.
func (r *jsonReader) scalar(i int) int {
	at := i
	for i < len(r.s) && (r.s[i] >= '0' && r.s[i] <= '9' || r.s[i] >= 'a' && r.s[i] <= 'z' || r.s[i] == '-' || r.s[i] == '+' || r.s[i] == '.' || r.s[i] == 'E') {
		i++
	}
	if i == at {
		return -1
	}
	switch c := r.s[at]; {
	case c == '-' || c >= '0' && c <= '9':
		return i
	case r.s[at:i] == "true" || r.s[at:i] == "false" || r.s[at:i] == "null":
		return i
	}
	return -1
}

func (r *jsonReader) list(i, depth int) int {
	r.push(frame{})
	defer r.pop()
	if i = r.space(i + 1); i < len(r.s) && r.s[i] == ']' {
		return i + 1
	}
	for n := 0; ; n++ {
		r.top(frame{index: n})
		if i = r.value(i, depth+1); i < 0 {
			return -1
		}
		if i = r.space(i); i >= len(r.s) || r.s[i] != ',' {
			break
		}
		i = r.space(i + 1)
	}
	if i >= len(r.s) || r.s[i] != ']' {
		return -1
	}
	return i + 1
}

func (r *jsonReader) object(i, depth int) int {
	r.push(frame{})
	defer r.pop()
	if i = r.space(i + 1); i < len(r.s) && r.s[i] == '}' {
		return i + 1
	}
	for renamed := 0; ; {
		if i >= len(r.s) || r.s[i] != '"' {
			return -1
		}
		key, escaped := stringEnd(r.s, i)
		if key < 0 {
			return -1
		}
		r.top(frame{key: r.s[i:key]})
		name := r.plain(r.s[i:key], escaped)
		rule, secret := r.w.r.key(name)
		if r.rename(i, key, name, renamed+1) {
			renamed++
		}
		if i = r.space(key); i >= len(r.s) || r.s[i] != ':' {
			return -1
		}
		i = r.space(i + 1)
		if secret {
			i = r.whole(i, depth+1, rule)
		} else {
			i = r.value(i, depth+1)
		}
		if i < 0 {
			return -1
		}
		if i = r.space(i); i >= len(r.s) || r.s[i] != ',' {
			break
		}
		i = r.space(i + 1)
	}
	if i >= len(r.s) || r.s[i] != '}' {
		return -1
	}
	return i + 1
}

// rename replaces a name that holds a secret by one that no other member has.
func (r *jsonReader) rename(from, to int, name string, n int) bool {
	if to-from < minKnown {
		return false
	}
	if r.w.find(name); len(r.w.spans) == 0 {
		return false
	}
	rule := r.w.spans[0].rule
	instead := "[redacted " + strconv.Itoa(n) + "]"
	for strings.Contains(r.s, instead) { // it was there before, as after a first redaction
		n += 1000
		instead = "[redacted " + strconv.Itoa(n) + "]"
	}
	value := strings.Clone(name)
	r.top(frame{key: `"` + instead + `"`})
	r.w.mark(rule, "", value)
	r.put(from, to, instead)
	return true
}

// whole replaces a value whose name says that it is secret, unless it stands for
// one, or is the schema of one.
func (r *jsonReader) whole(i, depth int, rule string) int {
	skim := jsonReader{w: &redaction{r: noRules}, s: r.s, nested: maxNested}
	end := skim.value(i, depth)
	if end < 0 {
		return -1
	}
	switch v := r.s[i:end]; {
	case v == "true" || v == "false" || v == "null" || v == "{}" || v == "[]":
		return end
	case v[0] == '{' && isSchema(v):
		return r.value(i, depth)
	case v[0] == '"':
		text := r.plain(v, true)
		if stands(text) {
			return end
		}
		r.w.mark(rule, "", strings.Clone(text))
	default:
		r.w.mark(rule, "\x00", canonical(v))
	}
	r.put(i, end, redacted)
	return end
}

// isSchema says whether an object is a JSON Schema, as of a property that is
// named password.
func isSchema(v string) bool {
	var o map[string]jsontext.Value
	if schema.Unmarshal([]byte(v), &o) != nil {
		return false
	}
	switch string(o["type"]) {
	case `"string"`, `"number"`, `"integer"`, `"boolean"`, `"object"`, `"array"`:
		return true
	}
	return len(o["$ref"]) > 0
}

// canonical is JSON in a form that two writers of the same value share.
func canonical(v string) string {
	if b, _, err := schema.Compact(nil, []byte(v), 1); err == nil {
		if b, err = schema.CanonicalArgs(b); err == nil {
			return string(b)
		}
	}
	return v
}

// str looks through a string.
func (r *jsonReader) str(from, to int, escaped bool) {
	if to-from < minFound {
		return
	}
	text := r.plain(r.s[from:to], escaped)
	if clean, hit := r.w.text(text, r.nested); hit {
		r.put(from, to, clean)
	}
}

// plain gives the text of a string with its quotes. It is good until the next
// one is asked for.
func (r *jsonReader) plain(quoted string, escaped bool) string {
	if !escaped || strings.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	buf := &r.w.buffers[min(r.nested, maxNested)]
	*buf, _ = jsontext.AppendUnquote((*buf)[:0], quoted) // an error only says that text was replaced
	return unsafe.String(unsafe.SliceData(*buf), len(*buf))
}

// stringEnd gives the end of the string at i, -1 if it has none.
func stringEnd(s string, i int) (end int, escaped bool) {
	for i++; i < len(s); {
		n := strings.IndexByte(s[i:], '"')
		if n < 0 {
			return -1, false
		}
		k := strings.IndexByte(s[i:i+n], '\\')
		if k < 0 {
			return i + n + 1, escaped
		}
		escaped = true
		i += k + 2 // what is escaped is no end, whatever it is
	}
	return -1, false
}

func (r *jsonReader) push(f frame) {
	if r.nested == 0 {
		r.w.frames = append(r.w.frames, f)
	}
}

func (r *jsonReader) top(f frame) {
	if r.nested == 0 {
		r.w.frames[len(r.w.frames)-1] = f
	}
}

func (r *jsonReader) pop() {
	if r.nested == 0 {
		r.w.frames = r.w.frames[:len(r.w.frames)-1]
	}
}

// pointer is the place of the value that is being read.
func (w *redaction) pointer() string {
	p := w.at
	for _, f := range w.frames {
		part := strconv.Itoa(f.index)
		if f.key != "" {
			b, _ := jsontext.AppendUnquote(nil, f.key)
			part = jsonPointer.Replace(string(b))
		}
		if len(p)+1+len(part) > maxPointer {
			break
		}
		p += "/" + part
	}
	return p
}

var jsonPointer = strings.NewReplacer("~", "~0", "/", "~1")
