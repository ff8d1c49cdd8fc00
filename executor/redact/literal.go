package redact

import (
	"regexp/syntax"
	"strings"
)

// A literal is what must stand where a rule can match.
type literal struct {
	text    string // empty for the end of a name and what follows it
	fold    bool   // case does not matter; text is in lower case
	rule    string
	shape   *shape // of a built-in pattern
	pattern int    // of an operator's, else -1
}

func (l *literal) at(s string) bool {
	if !l.fold {
		return strings.HasPrefix(s, l.text)
	}
	if len(s) < len(l.text) {
		return false
	}
	for i := range len(l.text) {
		if lower(s[i]) != l.text[i] {
			return false
		}
	}
	return true
}

// required gives texts of which one stands in whatever a pattern matches; nil if
// there are none. Case folds some letters beyond ASCII, so texts without case
// end before these.
func required(re *syntax.Regexp) (best []literal) {
	better := func(texts []literal) {
		if shortest(texts) > shortest(best) {
			best = texts
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		fold := re.Flags&syntax.FoldCase != 0
		if !fold {
			return []literal{{text: string(re.Rune)}}
		}
		var run []byte
		for _, c := range append(re.Rune, -1) {
			if c >= 0 && c < 0x80 && c != 'k' && c != 'K' && c != 's' && c != 'S' {
				run = append(run, lower(byte(c)))
				continue
			}
			better([]literal{{text: string(run), fold: true}})
			run = nil
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		run := []literal{{}}
		for _, sub := range re.Sub {
			next, ok := exactly(sub)
			if ok {
				if both, ok := joined(run, next); ok {
					run = both
					continue
				}
			}
			better(run)
			better(required(sub))
			run = []literal{{}}
		}
		better(run)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			texts := required(sub)
			if shortest(texts) == 0 {
				return nil
			}
			best = append(best, texts...)
		}
	}
	return best
}

// maxTexts bounds the texts that are looked for in place of one pattern.
const maxTexts = 64

// exactly gives all texts that an expression matches, if these are a few.
func exactly(re *syntax.Regexp) (texts []literal, ok bool) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return []literal{{}}, true
	case syntax.OpLiteral:
		text := string(re.Rune)
		if re.Flags&syntax.FoldCase == 0 {
			return []literal{{text: text}}, true
		}
		whole := required(re)
		return whole, len(whole) == 1 && len(whole[0].text) == len(text)
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for c := re.Rune[i]; c <= re.Rune[i+1]; c++ {
				if texts = append(texts, literal{text: string(c)}); len(texts) > 16 {
					return nil, false
				}
			}
		}
		return texts, len(texts) > 0
	case syntax.OpCapture:
		return exactly(re.Sub[0])
	case syntax.OpConcat:
		texts = []literal{{}}
		for _, sub := range re.Sub {
			next, ok := exactly(sub)
			if ok {
				texts, ok = joined(texts, next)
			}
			if !ok {
				return nil, false
			}
		}
		return texts, true
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			next, ok := exactly(sub)
			if texts = append(texts, next...); !ok || len(texts) > maxTexts {
				return nil, false
			}
		}
		return texts, true
	}
	return nil, false
}

// joined gives each of a with each of b behind it.
func joined(a, b []literal) (texts []literal, ok bool) {
	if len(a)*len(b) > maxTexts {
		return nil, false
	}
	for _, x := range a {
		for _, y := range b {
			l := literal{text: x.text + y.text, fold: x.fold || y.fold}
			if l.fold {
				l.text = strings.ToLower(l.text)
			}
			texts = append(texts, l)
		}
	}
	return texts, true
}

func shortest(texts []literal) int {
	n := 0
	for i, l := range texts {
		if i == 0 || len(l.text) < n {
			n = len(l.text)
		}
	}
	return n
}
