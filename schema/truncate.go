package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Truncate cuts s to at most limit bytes. Invalid UTF-8 is replaced by U+FFFD
// first, so cut is always valid. What does not fit is left out of the middle:
// 40 % of the room goes to the head and 60 % to the tail, because the end of an
// output says more often how it went. A marker in between states how many bytes
// are left out and of how many; it is inside the limit. Cuts fall on character
// borders. Dropped is the number of bytes left out, 0 if s fits.
//
// A limit too small to hold the marker and some text gives the head alone.
func Truncate(s string, limit int) (cut string, dropped int) {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if len(s) <= limit {
		return s, 0
	}
	return JoinEnds(s, s, len(s), limit)
}

// JoinEnds is Truncate for a text of total bytes of which only a valid
// beginning and a valid end are at hand, each at least as long as its share of
// limit, or all there is.
func JoinEnds(head, tail string, total, limit int) (cut string, dropped int) {
	head, tail, dropped, both := ends(head, tail, total, limit)
	if !both {
		return head, dropped
	}
	return head + marker(dropped, total) + tail, dropped
}

// Dropped is how much JoinEnds leaves out.
func Dropped(head, tail string, total, limit int) int {
	_, _, dropped, _ := ends(head, tail, total, limit)
	return dropped
}

func ends(head, tail string, total, limit int) (h, t string, dropped int, both bool) {
	// The marker is measured with the largest number it can hold: the number
	// itself depends on where the cuts fall.
	room := limit - len(marker(total, total))
	if room < 4*utf8.UTFMax {
		head = head[:borderBefore(head, limit)]
		return head, "", total - len(head), false
	}
	share := room * 2 / 5
	head = head[:borderBefore(head, share)]
	tail = tail[borderAfter(tail, len(tail)-(room-share)):]
	return head, tail, total - len(head) - len(tail), true
}

func marker(dropped, total int) string {
	return fmt.Sprintf("\n[… %d of %d bytes left out …]\n", dropped, total)
}

// borderBefore is the last character border of s at or before n.
func borderBefore(s string, n int) int {
	n = max(n, 0)
	if n >= len(s) {
		return len(s)
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

// borderAfter is the first character border of s at or after n.
func borderAfter(s string, n int) int {
	n = max(n, 0)
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n++
	}
	return n
}
