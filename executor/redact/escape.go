package redact

import (
	"sort"
	"strings"
)

// A cut is where something was taken out of a text: what stands from to on in
// what is left stood from was on.
type cut struct{ to, was int }

// withoutEscapes takes out of a text what a terminal does not show: escape
// sequences of ECMA-48, as colours are, and the commands that an OSC begins.
func withoutEscapes(s string) (string, []cut) {
	var b strings.Builder
	cuts := []cut{{}}
	for i := 0; ; {
		n := strings.IndexByte(s[i:], 0x1b)
		if n < 0 {
			b.WriteString(s[i:])
			return b.String(), cuts
		}
		b.WriteString(s[i : i+n])
		i = escapeEnd(s, i+n)
		cuts = append(cuts, cut{b.Len(), i})
	}
}

// escapeEnd is where the escape sequence that begins at i ends.
func escapeEnd(s string, i int) int {
	if i++; i == len(s) {
		return i
	}
	switch s[i] {
	case '[': // CSI: parameters, intermediates, a final
		for i++; i < len(s) && s[i] >= 0x20 && s[i] < 0x40; i++ {
		}
	case ']': // OSC: up to BEL or ST
		if n := strings.IndexAny(s[i:min(len(s), i+1<<12)], "\a\x1b"); n >= 0 {
			if i += n; s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				i++
			}
		}
	default:
		for ; i < len(s) && s[i] >= 0x20 && s[i] < 0x30; i++ {
		}
	}
	if i < len(s) && s[i] != '\n' && s[i] != 0x1b {
		i++
	}
	return i
}

// stood is where a byte of what is left stood.
func stood(cuts []cut, i int) int {
	n := sort.Search(len(cuts), func(n int) bool { return cuts[n].to > i }) - 1
	return cuts[n].was + i - cuts[n].to
}
