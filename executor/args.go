package executor

import (
	"bytes"
	stdjson "encoding/json" // for Number only, as in validate.go

	"github.com/go-json-experiment/json/jsontext"
)

// readSound is parseStrict for JSON that has come through the door, which has
// looked at all of it. Half a surrogate pair, which a log may hold, is left to
// parseStrict.
func readSound(args []byte) (any, []Violation) {
	r := argsReader{b: args, ok: true}
	if v := r.value(); r.ok {
		return v, nil
	}
	return parseStrict(args)
}

type argsReader struct {
	b  []byte
	i  int
	ok bool
}

func (r *argsReader) value() any {
	switch c := r.b[r.i]; c {
	case '{':
		object := map[string]any{}
		for r.i++; r.b[r.i] != '}'; {
			key := r.text()
			r.i++ // the colon
			object[key] = r.value()
			r.comma()
		}
		r.i++
		return object
	case '[':
		array := []any{}
		for r.i++; r.b[r.i] != ']'; {
			array = append(array, r.value())
			r.comma()
		}
		r.i++
		return array
	case '"':
		return r.text()
	case 't', 'n':
		r.i += len("true")
		if c == 'n' {
			return nil
		}
		return true
	case 'f':
		r.i += len("false")
		return false
	}
	at := r.i
	for r.i < len(r.b) && r.b[r.i] != ',' && r.b[r.i] != '}' && r.b[r.i] != ']' {
		r.i++
	}
	return stdjson.Number(bounded(string(r.b[at:r.i])))
}

func (r *argsReader) comma() {
	if r.b[r.i] == ',' {
		r.i++
	}
}

func (r *argsReader) text() string {
	at, escaped := r.i, false
	for r.i++; ; r.i++ {
		n := bytes.IndexByte(r.b[r.i:], '"')
		if k := bytes.IndexByte(r.b[r.i:r.i+n], '\\'); k >= 0 {
			escaped = true
			r.i += k + 1 // what is escaped is no end, whatever it is
			continue
		}
		r.i += n + 1
		break
	}
	if !escaped {
		return string(r.b[at+1 : r.i-1])
	}
	b, err := jsontext.AppendUnquote(nil, r.b[at:r.i])
	r.ok = r.ok && err == nil
	return string(b)
}
