package main

import (
	"fmt"
	"io"
	"strings"

	"steno/schema"
)

// A markdown writes a record as Markdown. Nothing of the log stands outside of
// a code span or a fence, where neither links, images nor HTML mean anything.
type markdown struct{ w io.Writer }

func (m markdown) begin(r *record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Session %s\n\n", codeSpan(r.session))
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "- **%s:**%s\n", f[0].text, line(f[1:]))
	}
	_, err := io.WriteString(m.w, b.String()+"\n---\n")
	return err
}

func (m markdown) event(e *schema.Event, p passage) error {
	var b strings.Builder
	if p.class == "epoch" {
		fmt.Fprintf(&b, "\n---\n\n## #%d%s\n", e.Seq, line(p.title))
	} else {
		fmt.Fprintf(&b, "\n### #%d%s\n", e.Seq, line(p.title))
	}
	fmt.Fprintf(&b, "\n%s\n", instant(e.Time))
	for i, n := range p.notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "-%s\n", line(n))
	}
	for _, v := range p.blocks {
		fmt.Fprintf(&b, "\n%s", codeSpan(v.label))
		if v.note != "" {
			fmt.Fprintf(&b, " (%s)", v.note)
		}
		b.WriteString(":\n\n" + fenced(v.text))
	}
	_, err := io.WriteString(m.w, b.String())
	return err
}

func (m markdown) finding(f schema.Finding) error {
	_, err := fmt.Fprintf(m.w, "\n> **%s** %s\n", strings.ToUpper(f.Severity), codeSpan(strings.TrimPrefix(findingText(f), f.Severity+"  ")))
	return err
}

func (m markdown) end(r *record) error {
	_, err := fmt.Fprintf(m.w, "\n---\n\nThe record ends with event %d. Whole values and the lines themselves: `steno session show %s -o jsonl`\n", r.head.Seq, r.session)
	return err
}

// line is words, a blank before each.
func line(words []word) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteByte(' ')
		if w.theirs {
			b.WriteString(codeSpan(w.text))
		} else {
			b.WriteString(w.text)
		}
	}
	return b.String()
}

// codeSpan is a code span, whose marks are longer than any in the text.
func codeSpan(text string) string {
	text = inert(text)
	marks := strings.Repeat("`", longestRun(text)+1)
	switch {
	case text == "":
		return "`\u00a0`"
	case text[0] == '`', text[len(text)-1] == '`', text[0] == ' ' && text[len(text)-1] == ' ': // a blank on each side is no part of it
		text = " " + text + " "
	}
	return marks + text + marks
}

// fenced is a fenced block, whose fences are longer than any run of backticks in
// the text.
func fenced(text string) string {
	text = inertLines(text)
	fence := strings.Repeat("`", max(3, longestRun(text)+1))
	return fence + "text\n" + strings.TrimSuffix(text, "\n") + "\n" + fence + "\n"
}

// longestRun is how many backticks stand in a row.
func longestRun(s string) (most int) {
	n := 0
	for i := range len(s) {
		if n++; s[i] != '`' {
			n = 0
		}
		most = max(most, n)
	}
	return most
}
