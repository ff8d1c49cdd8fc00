package schema

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// diagnose says why a line that parse refuses is no event. The order decides
// where several reasons fit; FORMAT.md has it.
func diagnose(line []byte) error {
	if bytes.IndexByte(line, 0) >= 0 {
		return NULBytes
	}
	if !utf8.Valid(line) {
		return InvalidUTF8
	}
	if nesting(line) > MaxDepth+1 {
		return TooDeep
	}
	_, _, err := Compact(nil, line, 0) // level 0: the envelope stands around data
	if err != nil {
		switch reason, _ := AsError(err).Details["reason"].(string); Reason(reason) {
		case TooDeep:
			return TooDeep
		case DuplicateKey:
			return DuplicateKey
		}
		if glued(line) {
			return GluedLines
		}
		return InvalidJSON
	}
	if bytes.TrimLeft(line, " \t\r\n")[0] != '{' {
		return NotAnObject
	}
	if newer(line) {
		return UnsupportedSchemaVersion
	}
	return BadEnvelope
}

// nesting is the deepest nesting of brackets outside strings, in text that
// need not be JSON.
func nesting(b []byte) int {
	now, most, quoted := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			most = max(most, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return most
}

// glued reports whether a whole JSON text that begins like a line stands on
// the line together with something else.
func glued(line []byte) bool {
	mark := []byte(`{"v":`)
	var buf []byte
	// Bounded, since each try may read the whole line and the line is hostile.
	for at, budget := 0, 4*len(line); budget > 0; {
		s := scanner{src: line[at:], dst: buf, depth: -1}
		s.space()
		whole := s.value() == ""
		budget -= s.pos
		buf = s.dst[:0]
		next := at + 1
		if whole {
			s.space()
			end := at + s.pos
			if at == 0 && bytes.HasPrefix(line[end:], mark) || at > 0 && end == len(line) {
				return true
			}
			if at > 0 {
				next = end // a record inside this one cannot end the line either
			}
		}
		i := bytes.Index(line[next:], mark)
		if i < 0 {
			return false
		}
		at = next + i
	}
	return false
}

// newer reports whether a JSON object has a v larger than ours.
func newer(line []byte) bool {
	var v struct {
		V jsontext.Value `json:"v"`
	}
	// Half a surrogate pair is no reason to hide the version.
	if !utf8.Valid(line) || json.Unmarshal(line, &v, jsontext.AllowInvalidUTF8(true)) != nil || len(v.V) == 0 {
		return false
	}
	for _, c := range v.V {
		if c < '0' || c > '9' {
			return false
		}
	}
	n, err := strconv.ParseUint(string(v.V), 10, 64)
	return err != nil || n > Version
}
