package schema

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep data may nest; data itself is level 1.
const MaxDepth = 250

// Compact is the door for JSON from outside. It appends src to dst without the
// white space between tokens and otherwise byte for byte: numbers keep their
// text, objects the order of their keys, strings their escapes. Broken UTF-8
// and lone surrogates become U+FFFD; replaced says how many (RFC 3629 decoding
// with one replacement for each maximal subpart, Unicode 3.9).
//
// level is how deep the value will stand: 1 for an event's data, 2 for a value
// inside it. Text that is not JSON (RFC 8259), a key that stands twice in one
// object and nesting over MaxDepth are refused with InvalidArgs, whose details
// hold the reason and the offset in src. dst is unchanged then. dst must not
// overlap src.
func Compact(dst, src []byte, level int) (out []byte, replaced int, err error) {
	s := scanner{src: src, dst: dst, depth: level - 1}
	s.space()
	if r := s.value(); r != "" {
		return dst, 0, s.refuse(r)
	}
	if s.space(); s.pos < len(src) {
		return dst, 0, s.refuse(InvalidJSON)
	}
	return s.dst, s.replaced, nil
}

// CanonicalArgs is the form of arguments that args_sha256 is taken over: keys
// sorted as in RFC 8785, strings with the fewest escapes, numbers as written
// (RFC 8785 would round them). args must come from Compact.
func CanonicalArgs(args []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(args))
	err := v.Format(jsontext.ReorderRawObjects(true), jsontext.PreserveRawStrings(false),
		jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false),
		jsontext.AllowDuplicateNames(false), jsontext.EscapeForHTML(false), jsontext.EscapeForJS(false))
	if err != nil {
		return nil, Errorf(InvalidArgs, "the arguments have no canonical form: %v", err)
	}
	return v, nil
}

// inOrder gives the offset behind the compact JSON value at b[i], -1 if it may
// be written in another way than its canonical form: as most are, it is
// canonical if it has no escape and all keys stand in order.
func inOrder(b []byte, i, level int) int {
	if i >= len(b) || level > MaxDepth {
		return -1
	}
	switch c := b[i]; c {
	case '"':
		end, escaped := skipString(b, i)
		if escaped {
			return -1
		}
		return end
	case '{', '[':
		var last []byte
		for i++; i < len(b) && b[i] != c+2; { // the bracket that closes it
			if c == '{' {
				end, escaped := skipString(b, i)
				if b[i] != '"' || end < 0 || end >= len(b) || b[end] != ':' || escaped {
					return -1
				}
				key := b[i+1 : end-1]
				// Keys are in the order of UTF-16, which is that of the bytes of ASCII.
				if last != nil && bytes.Compare(last, key) >= 0 || bytes.ContainsFunc(key, func(r rune) bool { return r >= 0x80 }) {
					return -1
				}
				last, i = key, end+1
			}
			if i = inOrder(b, i, level+1); i < 0 || i >= len(b) {
				return -1
			}
			if b[i] != ',' {
				break
			}
			if i++; i >= len(b) || b[i] == c+2 {
				return -1
			}
		}
		if i >= len(b) || b[i] != c+2 {
			return -1
		}
		return i + 1
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

// A scanner walks one JSON text and copies what it reads to dst, without white
// space and with broken text replaced. It is written by hand since a refusal must
// say which of the reasons of a finding it is, and replaced characters must be
// counted. Stored lines go through Fields, which only says no.
type scanner struct {
	src, dst []byte
	pos      int
	depth    int
	replaced int
	keys     keyStack
}

// A keyStack holds the decoded keys of the objects that are open, innermost
// last. The first few lie in the stack itself, so that most lines are read
// without an allocation.
type keyStack struct {
	n    int
	few  [32][]byte
	more [][]byte
}

func (k *keyStack) at(i int) []byte {
	if i < len(k.few) {
		return k.few[i]
	}
	return k.more[i-len(k.few)]
}

func (k *keyStack) push(key []byte) {
	if k.n < len(k.few) {
		k.few[k.n] = key
	} else {
		k.more = append(k.more, key)
	}
	k.n++
}

func (k *keyStack) cut(n int) {
	k.n = n
	k.more = k.more[:max(0, n-len(k.few))]
}

func (s *scanner) refuse(r Reason) error {
	return Errorf(InvalidArgs, "%s", map[Reason]string{
		InvalidJSON:  "not JSON",
		TooDeep:      fmt.Sprintf("nested more than %d deep", MaxDepth),
		DuplicateKey: "a key stands twice in one object",
	}[r]).With("reason", string(r)).With("offset", s.pos)
}

func (s *scanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte {
	if s.pos < len(s.src) {
		return s.src[s.pos]
	}
	return 0
}

// take reads the byte c or says no.
func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.pos >= len(s.src) {
		return false
	}
	s.pos++
	s.dst = append(s.dst, c)
	return true
}

func (s *scanner) value() Reason {
	switch c := s.peek(); {
	case c == '"':
		return s.str()
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return InvalidJSON
}

func (s *scanner) word(w string) Reason {
	if !bytes.HasPrefix(s.src[s.pos:], []byte(w)) {
		return InvalidJSON
	}
	s.pos += len(w)
	s.dst = append(s.dst, w...)
	return ""
}

func (s *scanner) digits() bool {
	at := s.pos
	for s.pos < len(s.src) && '0' <= s.src[s.pos] && s.src[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > at
}

func (s *scanner) number() Reason {
	at := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return InvalidJSON
	}
	if s.peek() == '.' {
		if s.pos++; !s.digits() {
			return InvalidJSON
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return InvalidJSON
		}
	}
	s.dst = append(s.dst, s.src[at:s.pos]...)
	return ""
}

func (s *scanner) array() Reason {
	if s.depth++; s.depth > MaxDepth {
		return TooDeep
	}
	s.take('[')
	s.space()
	if s.take(']') {
		s.depth--
		return ""
	}
	for {
		s.space()
		if r := s.value(); r != "" {
			return r
		}
		s.space()
		if s.take(',') {
			continue
		}
		if !s.take(']') {
			return InvalidJSON
		}
		s.depth--
		return ""
	}
}

// manyKeys is the size from which an object's keys are looked up in a map
// instead of one after another.
const manyKeys = 24

func (s *scanner) object() Reason {
	if s.depth++; s.depth > MaxDepth {
		return TooDeep
	}
	s.take('{')
	s.space()
	if s.take('}') {
		s.depth--
		return ""
	}
	base, twice := s.keys.n, -1
	var many map[string]struct{}
	for {
		s.space()
		if s.peek() != '"' {
			return InvalidJSON
		}
		at, from := s.pos, len(s.dst)
		if r := s.str(); r != "" {
			return r
		}
		raw := s.dst[from:] // with what was replaced: two broken keys may become one
		key := unquote(raw)
		if many != nil {
			if _, ok := many[string(key)]; ok && twice < 0 {
				twice = at
			}
			many[string(key)] = struct{}{}
		} else {
			for i := base; i < s.keys.n; i++ {
				if twice < 0 && bytes.Equal(s.keys.at(i), key) {
					twice = at
				}
			}
			if s.keys.push(key); s.keys.n-base == manyKeys {
				many = make(map[string]struct{}, 4*manyKeys)
				for i := base; i < s.keys.n; i++ {
					many[string(s.keys.at(i))] = struct{}{}
				}
			}
		}
		s.space()
		if !s.take(':') {
			return InvalidJSON
		}
		s.space()
		if r := s.value(); r != "" {
			return r
		}
		s.space()
		if s.take(',') {
			continue
		}
		if !s.take('}') {
			return InvalidJSON
		}
		if twice >= 0 { // told only here: until it is closed, it might be no object at all
			s.pos = twice
			return DuplicateKey
		}
		s.keys.cut(base)
		s.depth--
		return ""
	}
}

// plain marks the bytes that stand for themselves in a string: ASCII but for
// controls, the quote and the backslash.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x80; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

func (s *scanner) str() Reason {
	src := s.src
	at := s.pos // from here on nothing is copied yet
	i := s.pos + 1
	for {
		for i < len(src) && plain[src[i]] {
			i++
		}
		if i >= len(src) {
			s.pos = i
			return InvalidJSON
		}
		switch c := src[i]; {
		case c == '"':
			i++
			s.dst = append(s.dst, src[at:i]...)
			s.pos = i
			return ""
		case c == '\\':
			n, lone := escape(src[i:])
			if n == 0 {
				s.pos = i
				return InvalidJSON
			}
			if lone {
				s.dst = append(append(s.dst, src[at:i]...), `\ufffd`...)
				s.replaced++
				at = i + n
			}
			i += n
		case c < 0x20:
			s.pos = i
			return InvalidJSON
		default:
			if r, n := utf8.DecodeRune(src[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			s.dst = append(append(s.dst, src[at:i]...), "\uFFFD"...)
			s.replaced++
			i += subpart(src[i:])
			at = i
		}
	}
}
