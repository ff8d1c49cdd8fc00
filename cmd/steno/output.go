package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A printer is standard output. That it cannot be written is no bug of ours.
type printer struct{ to io.Writer }

func (p printer) Write(b []byte) (int, error) {
	n, err := p.to.Write(b)
	if err != nil {
		return n, schema.Errorf(schema.WriteFailed, "standard output cannot be written").With("next", "check where it goes, and try again").Cause(err)
	}
	return n, nil
}

// onTerminal reports whether standard output is a terminal.
func (a *app) onTerminal() bool {
	p, ok := a.out.(printer)
	f, isFile := p.to.(*os.File)
	if !ok || !isFile {
		return false
	}
	fi, err := f.Stat()
	null, none := os.Stat(os.DevNull) // a character device too, and as harmless as a file
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && (none != nil || !os.SameFile(fi, null))
}

// json writes v as one line.
func (a *app) json(v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(b, '\n'))
	return err
}

// encode gives JSON in which nothing acts on a terminal: its characters beyond
// ASCII that would are written as escapes.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), json.FormatNilSliceAsNull(false))
	if err != nil || !bytes.ContainsFunc(b, acts) {
		return b, err
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case !acts(r):
			out = utf8.AppendRune(out, r)
		case r > 0xFFFF:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out, nil
}

// acts says whether a character is for a terminal and not to be seen.
func acts(r rune) bool {
	return r >= 0x7f && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp))
}

// table writes rows in columns. What stands in a log is hostile: every cell is
// escaped.
func (a *app) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if head != nil {
		fmt.Fprintln(w, strings.Join(head, "\t"))
	}
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = inert(c)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// A listing gives rows as they come, however many they are: a line of JSON each,
// an array of JSON, or tables, one behind the other as if they were one.
type listing struct {
	a    *app
	head []string
	rows [][]string
	any  bool // something is written already
}

const listingRows = 1000 // of a table, before it is written

// add gives a row: v as JSON, or what cells makes of it.
func (l *listing) add(v any, cells func() []string) error {
	switch l.a.format {
	case "jsonl":
		return l.a.json(v)
	case "json":
		b, err := encode(v)
		if err != nil {
			return err
		}
		open := byte('[')
		if l.any {
			open = ','
		}
		l.any = true
		_, err = l.a.out.Write(append([]byte{open}, b...))
		return err
	}
	if l.rows = append(l.rows, cells()); len(l.rows) < listingRows {
		return nil
	}
	return l.write()
}

func (l *listing) write() error {
	head := l.head
	if l.any {
		head = nil
	}
	err := l.a.table(head, l.rows)
	l.rows, l.any = l.rows[:0], true
	return err
}

// end writes what is left.
func (l *listing) end() error {
	switch {
	case l.a.format == "jsonl":
		return nil
	case l.a.format == "json":
		end := "]\n"
		if !l.any {
			end = "[]\n"
		}
		_, err := io.WriteString(l.a.out, end)
		return err
	case len(l.rows) > 0 || !l.any:
		return l.write()
	}
	return nil
}

// inert escapes whatever could act on a terminal or turn the text around: C0,
// DEL and C1 controls, bidi controls, other invisible formatting, and bytes
// that are no UTF-8.
func inert(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp):
			if r < 0x80 {
				fmt.Fprintf(&b, `\x%02x`, r)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// many says how many of something there are.
func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// short cuts text for a cell.
func short(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	return string(r[:n-1]) + "…"
}
