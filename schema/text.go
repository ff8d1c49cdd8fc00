package schema

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// ValidUTF8 gives s with every broken sequence replaced by U+FFFD, as Compact
// does, and how many there were.
func ValidUTF8(s string) (valid string, replaced int) {
	if utf8.ValidString(s) {
		return s, 0
	}
	b := make([]byte, 0, len(s)+8)
	for i := 0; i < len(s); {
		if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
			b, i = append(b, s[i:i+n]...), i+n
			continue
		}
		i += subpart([]byte(s[i:min(i+4, len(s))]))
		b, replaced = append(b, "\uFFFD"...), replaced+1
	}
	return string(b), replaced
}

// appendText appends a text as a JSON string with the fewest escapes; broken
// UTF-8 in it becomes U+FFFD.
func appendText(dst []byte, text string) []byte {
	at := len(dst)
	dst = append(append(append(dst, '"'), text...), '"')
	if end, escaped := skipString(dst, at); end == len(dst) && !escaped {
		return dst // it stands for itself
	}
	valid, _ := ValidUTF8(text)
	dst, _ = jsontext.AppendQuote(dst[:at], valid)
	return dst
}

// unquote gives the text of a key that str has accepted, so that "a" and
// "\u0061" are the same key, as they are for every reader.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // an error only says that text was replaced
	return text
}

// escape measures the escape at the beginning of b, 0 if it is none. A
// surrogate pair is one escape; lone says that it is half of one.
func escape(b []byte) (n int, lone bool) {
	if len(b) < 2 {
		return 0, false
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, false
	case 'u':
		c, ok := hex4(b)
		if !ok {
			return 0, false
		}
		if c < 0xD800 || c > 0xDFFF {
			return 6, false
		}
		if c < 0xDC00 {
			if d, ok := hex4(b[6:]); ok && d >= 0xDC00 && d <= 0xDFFF {
				return 12, false
			}
		}
		return 6, true
	}
	return 0, false
}

func hex4(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	return v, err == nil
}

// subpart is the length of the maximal subpart of a broken UTF-8 sequence at
// the beginning of b, at least 1 (Unicode 3.9, table 3-7).
func subpart(b []byte) int {
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case 0xC2 <= c && c <= 0xDF:
		need = 1
	case 0xE0 <= c && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case 0xF0 <= c && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	}
	n := 1
	for ; n <= need && n < len(b) && lo <= b[n] && b[n] <= hi; n++ {
		lo, hi = 0x80, 0xBF
	}
	return n
}

// quotedLen is the length of a text as a JSON string with the fewest escapes.
func quotedLen(s string) int {
	n := len(s) + 2
	for _, c := range []byte(s) {
		switch {
		case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
			n++
		case c < 0x20:
			n += 5
		}
	}
	return n
}
