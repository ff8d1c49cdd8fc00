package schema

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Fields is the first level of an object that is compact JSON: where its keys
// and values stand in the text. The zero Fields is ready for use; used again
// and again it allocates nothing. It is for one goroutine at a time.
type Fields struct {
	b    []byte
	list []field         // of the object that was read
	keys []field         // of the objects that are open, innermost last
	at   [maxKeys]uint32 // the index in list of each key that is known, and one more

	// Of the line that was decoded last; they are valid.
	head, session string // its text as far as the seq, and the session in it
	writer        string // its text from the seq to the id, with the epoch
	epoch         uint64
	second        second
	typ           string
	spec          *spec // of typ
}

// A field is a key, b[key:end] with its quotes, and the value behind it,
// b[end+1:to].
type field struct {
	key, end, to int
	known        Key
	escaped      bool
}

// Read reads an object that is compact JSON, as Compact makes it. It reports
// whether data is one, and has none of its keys twice.
func (f *Fields) Read(data []byte) bool {
	if len(data) > 0 && data[0] == '{' && f.walk(data) == len(data) {
		return true
	}
	f.walk(nil)
	return false
}

// Refs is Refs of what has been read.
func (f *Fields) Refs() ([]Blob, error) {
	if f.at[keyBlobs] > 0 {
		return Refs(f.b)
	}
	return nil, nil
}

// Len is how many fields there are.
func (f *Fields) Len() int { return len(f.list) }

// At gives the text of a key and its value, as it is written. They alias what
// was read.
func (f *Fields) At(i int) (key, value []byte) {
	k := &f.list[i]
	return f.text(k), f.value(k)
}

// Get gives the value of a key, as it is written, nil if it is not there.
func (f *Fields) Get(key Key) []byte {
	if n := f.at[key]; n > 0 {
		return f.value(&f.list[n-1])
	}
	return nil
}

func (f *Fields) value(k *field) []byte { return f.b[k.end+1 : k.to : k.to] }

func (f *Fields) text(k *field) []byte {
	if k.escaped {
		return unquote(f.b[k.key:k.end])
	}
	return f.b[k.key+1 : k.end-1]
}

// of reports whether it is data that was read. Its bytes alone may be another
// event's by now, and so may these.
func (f *Fields) of(data []byte) bool {
	return f != nil && len(data) > 0 && len(f.b) > 0 && &f.b[0] == &data[0] && len(f.b) == len(data)
}

// walk reads the JSON value at the beginning of b and gives its length, -1 if
// there is none, if it has white space between tokens, broken UTF-8 or a key
// twice in one object, or nests too deep. Half a surrogate pair, which no writer
// should have written, is sound JSON and passes. Every byte of every log goes
// through this, so it only says no; diagnose finds out why.
func (f *Fields) walk(b []byte) int {
	for i := range f.list {
		f.at[f.list[i].known] = 0
	}
	f.b, f.list, f.keys = b, f.list[:0], f.keys[:0]
	n := f.any(0, 1)
	if n < 0 {
		f.b, f.list, f.at = nil, f.list[:0], [maxKeys]uint32{}
		return n
	}
	f.b = b[:n]
	return n
}

func (f *Fields) any(i, level int) int {
	b := f.b
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; c {
	case '"':
		end, _ := skipString(b, i)
		return end
	case '{':
		return f.object(i, level)
	case '[':
		if level > MaxDepth {
			return -1
		}
		if i++; i < len(b) && b[i] == ']' {
			return i + 1
		}
		for {
			if i = f.any(i, level+1); i < 0 || i >= len(b) {
				return -1
			}
			i++
			if b[i-1] == ']' {
				return i
			}
			if b[i-1] != ',' {
				return -1
			}
		}
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

func (f *Fields) object(i, level int) int {
	if level > MaxDepth {
		return -1
	}
	b := f.b
	if i++; i < len(b) && b[i] == '}' {
		return i + 1
	}
	base := len(f.keys)
	var many map[string]struct{}
	var seen uint64 // a bit for each key so far; one that is new needs no comparison
	for {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		end, escaped := skipString(b, i)
		if end < 0 || end >= len(b) || b[end] != ':' {
			return -1
		}
		k := field{key: i, end: end, escaped: escaped}
		if level == 1 {
			k.known = keyOf(f.text(&k))
		}
		if k.known > 0 {
			if f.at[k.known] > 0 {
				return -1
			}
			f.at[k.known] = uint32(len(f.list) + 1)
		} else if many != nil {
			key := f.text(&k)
			if _, twice := many[string(key)]; twice {
				return -1
			}
			many[string(key)] = struct{}{}
		} else {
			bit := uint64(1) << ((int(b[i+1]) + 7*int(b[end-2]) + 31*(end-i)) & 63)
			if escaped {
				bit = ^uint64(0) // it may be any of those before, and any behind it may be this one
			}
			if seen&bit != 0 && f.twice(&k, base) {
				return -1
			}
			seen |= bit
			if f.keys = append(f.keys, k); len(f.keys)-base == manyKeys {
				many = make(map[string]struct{}, 4*manyKeys)
				for j := base; j < len(f.keys); j++ {
					many[string(f.text(&f.keys[j]))] = struct{}{}
				}
			}
		}
		to := f.any(end+1, level+1)
		if to < 0 || to >= len(b) {
			return -1
		}
		if level == 1 {
			k.to = to
			f.list = append(f.list, k)
		}
		i = to + 1
		if b[to] == '}' {
			f.keys = f.keys[:base]
			return i
		}
		if b[to] != ',' {
			return -1
		}
	}
}

// twice reports whether a key is one of those from base on.
func (f *Fields) twice(k *field, base int) bool {
	for i := range f.keys[base:] {
		other := &f.keys[base+i]
		if k.escaped || other.escaped || other.end-other.key == k.end-k.key {
			if bytes.Equal(f.text(other), f.text(k)) {
				return true
			}
		}
	}
	return false
}

// skipString gives the offset behind the string that begins at b[i], which is
// its quote, -1 if it is none, and whether it has escapes.
func skipString(b []byte, i int) (end int, escaped bool) {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i++
	for {
		// Eight bytes at a time: the lowest bit of stop that is set belongs to
		// the first byte that is no ASCII, a control, a quote or a backslash.
		for i+8 <= len(b) {
			v := binary.LittleEndian.Uint64(b[i:])
			stop := (v | (v - 0x20*ones) | ((v ^ '"'*ones) - ones) | ((v ^ '\\'*ones) - ones)) & high
			if stop != 0 {
				i += bits.TrailingZeros64(stop) >> 3
				break
			}
			i += 8
		}
		for i < len(b) && plain[b[i]] {
			i++
		}
		if i >= len(b) {
			return -1, escaped
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			n, _ := escape(b[i:])
			if n == 0 {
				return -1, escaped
			}
			i, escaped = i+n, true
		case c < 0x20:
			return -1, escaped
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n <= 1 {
				return -1, escaped
			}
			i += n
		}
	}
}

func skipWord(b []byte, i int, word string) int {
	if end := i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end
	}
	return -1
}

func skipNumber(b []byte, i int) int {
	digits := func() bool {
		at := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > at
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return -1
		}
	}
	return i
}
