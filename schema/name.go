package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
)

// ValidSession reports whether id can name a session: one file name and one
// NATS token, [A-Za-z0-9][A-Za-z0-9_-]{0,127}.
func ValidSession(id string) bool { return validSession(id) }

func validSession[T string | []byte](id T) bool {
	if len(id) < 1 || len(id) > 128 || id[0] == '_' || id[0] == '-' {
		return false
	}
	for i := 0; i < len(id); i++ {
		if !word(id[i]) && id[i] != '-' {
			return false
		}
	}
	return true
}

// CheckSession is InvalidArgs for an id that cannot name a session.
func CheckSession(id string) error {
	if ValidSession(id) {
		return nil
	}
	return Errorf(InvalidArgs, "a session id is 1 to 128 of A-Z a-z 0-9 _ -, and begins with a letter or digit; got %s", quote(id))
}

// CheckCallID is InvalidArgs for an id that cannot name a call: 1 to 256 bytes
// of printable ASCII without space.
func CheckCallID(id string) error {
	ok := len(id) >= 1 && len(id) <= 256
	for i := 0; ok && i < len(id); i++ {
		ok = 0x21 <= id[i] && id[i] <= 0x7E
	}
	if ok {
		return nil
	}
	return Errorf(InvalidArgs, "a call id is 1 to 256 bytes of printable ASCII without space; got %s", quote(id))
}

// ValidToolName reports whether a tool can have this name: 1 to 64 of
// [A-Za-z0-9_-].
func ValidToolName(name string) bool {
	ok := len(name) >= 1 && len(name) <= maxToolName
	for i := 0; ok && i < len(name); i++ {
		ok = word(name[i]) || name[i] == '-'
	}
	return ok
}

// maxToolName is how many bytes the name of a tool may have.
const maxToolName = 64

// ToolName makes a name that [ValidToolName] takes of one that somebody else has
// given a tool, such as a server with a dot in it: each other character becomes
// "_". What is too long is cut and ends in a part of the hash of the whole, so
// that long names that differ stay different, and always get the same name. Short
// ones may meet ("a.b" and "a_b"), which whoever registers them must refuse. It
// is "" only for "".
func ToolName(original string) string {
	b := make([]byte, 0, maxToolName)
	cut := false
	for _, c := range original { // broken UTF-8 counts as a character for each byte
		if cut = len(b) == maxToolName; cut {
			break
		}
		if c >= 0x80 || !word(byte(c)) && c != '-' {
			c = '_'
		}
		b = append(b, byte(c))
	}
	if !cut {
		return string(b)
	}
	sum := sha256.Sum256([]byte(original))
	const digits = 8
	return string(hex.AppendEncode(append(b[:maxToolName-1-digits], '_'), sum[:digits/2]))
}

// ValidType reports whether typ can be the type of an event:
// [a-z][a-z0-9_]*(\.[a-z0-9_]+)*, at most 64 bytes.
func ValidType(typ string) bool { return validType(typ) }

func validType[T string | []byte](typ T) bool {
	if len(typ) == 0 || len(typ) > 64 || typ[0] < 'a' || typ[0] > 'z' {
		return false
	}
	part := 0
	for i := 0; i < len(typ); i++ {
		c := typ[i]
		switch {
		case c == '.':
			if part == 0 {
				return false
			}
			part = 0
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_':
			part++
		default:
			return false
		}
	}
	return part > 0
}

func word(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// quote shows hostile text: escaped, ASCII, bounded.
func quote(s string) string {
	if len(s) > 64 {
		return strconv.QuoteToASCII(s[:64]) + " … (" + strconv.Itoa(len(s)) + " bytes)"
	}
	return strconv.QuoteToASCII(s)
}

// ParseID parses an event id: a ULID in its canonical, upper-case form. The
// parser of the ULID package alone is lax; it takes lower case, and without
// its strict form even a path.
func ParseID(s string) (ulid.ULID, error) {
	id, err := ulid.ParseStrict(s)
	if err != nil || id.String() != s {
		return ulid.ULID{}, Errorf(InvalidArgs, "an event id is a ULID in upper case; got %s", quote(s))
	}
	return id, nil
}

// A Head names a whole log up to one event, "<epoch>.<seq>.<sum>". The zero
// Head is that of an empty log.
type Head struct {
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
	Sum   Sum    `json:"sum"`
}

func (h Head) String() string {
	var b [2*20 + 2 + 2*len(h.Sum)]byte
	return string(h.append(b[:0]))
}

func (h Head) append(dst []byte) []byte {
	dst = append(strconv.AppendUint(dst, h.Epoch, 10), '.')
	dst = append(strconv.AppendUint(dst, h.Seq, 10), '.')
	return hex.AppendEncode(dst, h.Sum[:])
}

// ParseHead parses the form that String gives, and only that.
func ParseHead(s string) (Head, error) {
	var h Head
	e, rest, _ := strings.Cut(s, ".")
	q, sum, ok := strings.Cut(rest, ".")
	var err1, err2, err3 error
	h.Epoch, err1 = strconv.ParseUint(e, 10, 64)
	h.Seq, err2 = strconv.ParseUint(q, 10, 64)
	h.Sum, err3 = ParseSum(sum)
	if !ok || err1 != nil || err2 != nil || err3 != nil || string(h.append(make([]byte, 0, 128))) != s {
		return Head{}, Errorf(InvalidArgs, "a head is <epoch>.<seq>.<sum>; got %s", quote(s))
	}
	return h, nil
}
