package executor

import (
	"strings"
	"unicode/utf8"
)

// validText is s with U+FFFD for what is not UTF-8.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// shorten is s in at most n bytes, for a message: the head and an ellipsis.
func shorten(s string, n int) string {
	s = validText(s)
	if len(s) <= n {
		return s
	}
	n = max(0, n-len("…"))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
