package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"regexp/syntax"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/schema"
)

// withoutBlobs is data with nothing in the places of its blobs.
func withoutBlobs(data []byte) []byte {
	bare, err := schema.PutBack(data, func(schema.Blob) (jsontext.Value, error) { return jsontext.Value("null"), nil })
	if err != nil { // somebody's own idea of blobs
		return data
	}
	return bare
}

// inBlobs looks at the values of an event that lie beside the log, text by text
// and rune by rune: they may be larger than memory. at is "" if none matches. What
// is wrong with one is kept for the end of its session: it hides nothing else, and of
// the value there is what its line shows.
func (r *sieve) inBlobs(ctx context.Context, e *schema.Event, session string) (at, text string, err error) {
	blobs, err := schema.Refs(e.Data)
	if err != nil { // somebody's own idea of blobs
		return "", "", nil
	}
	for _, b := range blobs {
		text, found, err := r.inBlob(ctx, b, session)
		switch {
		case errors.Is(err, schema.CorruptLogLine):
			if r.bad == nil {
				r.bad = err
			}
			if m := r.pattern.FindStringIndex(b.Preview); m != nil {
				return "/" + b.Key, around(b.Preview, m[0], m[1]), nil
			}
		case err != nil:
			return "", "", err
		case found:
			return "/" + b.Key, text, nil
		}
	}
	return "", "", nil
}

func (r *sieve) inBlob(ctx context.Context, b schema.Blob, session string) (text string, found bool, err error) {
	// Each reading goes to the end, which says whether the bytes are the right ones.
	read := func(f func(in *bufio.Reader) error) error {
		in, err := journal.OpenBlob(ctx, r.store, session, b.Ref)
		if err != nil {
			return err
		}
		defer in.Close()
		buf := bufio.NewReaderSize(&stoppable{ctx, in}, 64<<10)
		if err := f(buf); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, buf)
		return err
	}
	json := b.MediaType == schema.MediaJSON
	if len(r.literal) > 0 {
		may := false
		err := read(func(in *bufio.Reader) (err error) {
			may, err = r.mayIn(in, json)
			return err
		})
		if err != nil || !may {
			return "", false, err
		}
	}
	n, from, to := 0, 0, 0 // which text it is, and where in it
	err = read(func(in *bufio.Reader) error {
		t := texts{in: in, json: json}
		for ; t.next(); n++ {
			if m := t.find(r.pattern, r.longest); m != nil {
				found, from, to = true, m[0], m[1]
				return nil
			}
		}
		return t.failed()
	})
	if err != nil || !found {
		return "", false, err
	}
	w := window{from: max(0, from-aroundBefore), to: from + aroundMost}
	err = read(func(in *bufio.Reader) error {
		t := texts{in: in, json: json}
		for k := 0; t.next(); k++ {
			if k == n {
				w.fill(&t)
				return nil
			}
		}
		return t.failed()
	})
	begin := min(from-w.from, len(w.text))
	return around(string(w.text), begin, min(begin+to-from, len(w.text))), true, err
}

// A stoppable reader ends with the search.
type stoppable struct {
	ctx context.Context
	in  io.Reader
}

func (s *stoppable) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.in.Read(b)
}

// mayIn is may for a value beside the log.
func (r *sieve) mayIn(in *bufio.Reader, json bool) (bool, error) {
	keep := max(1, len(r.literal)-1) // of what was read, for what stands across
	buf, n := make([]byte, 64<<10+keep), 0
	for {
		k, err := in.Read(buf[n:])
		b := buf[:n+k]
		switch {
		case bytes.Contains(b, r.literal), json && (bytes.Contains(b, []byte(`\u`)) || bytes.Contains(b, []byte(`\/`))):
			return true, nil
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, err
		}
		n = copy(buf, b[max(0, len(b)-keep):])
	}
}

// texts gives the texts and numbers of a value one after another, each as runes
// up to io.EOF, and keeps nothing of them. What is no JSON is one text.
type texts struct {
	in   *bufio.Reader
	json bool

	begun  bool
	open   byte   // of the value that is given: '"', or '0' for what has no quotes; 0 between two
	nested []byte // the containers around it
	name   bool   // the next string is a name
	err    error  // that ended it
}

// next goes to the next text; false if there is none.
func (t *texts) next() bool {
	for t.open != 0 {
		_, _, _ = t.ReadRune() // what is left of the one before
	}
	if !t.json {
		begun := t.begun
		t.begun, t.open = true, '0'
		return !begun
	}
	for {
		c, err := t.in.ReadByte()
		if err != nil {
			t.err = err
			return false
		}
		switch c {
		case '{', '[':
			t.nested = append(t.nested, c)
			t.name = c == '{'
		case '}', ']':
			t.nested = t.nested[:max(0, len(t.nested)-1)]
			t.name = false
		case ',':
			t.name = len(t.nested) > 0 && t.nested[len(t.nested)-1] == '{'
		case '"':
			t.open = '"'
			if !t.name {
				return true
			}
			for t.name = false; t.open != 0; {
				_, _, _ = t.ReadRune()
			}
		case ':', 'n', 'u', 'l': // null is no text
		default:
			_ = t.in.UnreadByte() // it was read just now
			t.open = '0'
			return true
		}
	}
}

// find is where an expression matches in the text at hand. Where a match has no
// more than longest bytes it looks at pieces, which is several times as fast as
// rune by rune; 0 says that this cannot be known.
func (t *texts) find(re *regexp.Regexp, longest int) []int {
	if longest == 0 {
		return re.FindReaderIndex(t)
	}
	piece, at := make([]byte, 0, 32<<10+longest), 0
	for {
		ended := false
		for len(piece) < cap(piece)-utf8.UTFMax && !ended {
			c, _, err := t.ReadRune()
			if ended = err != nil; !ended {
				piece = utf8.AppendRune(piece, c)
			}
		}
		if m := re.FindIndex(piece); m != nil {
			return []int{at + m[0], at + m[1]}
		}
		if ended {
			return nil
		}
		gone := len(piece) - longest
		at, piece = at+gone, append(piece[:0], piece[gone:]...)
	}
}

// longestOf is how many bytes a match of an expression has at most, 0 where
// nothing says so, or where it looks at what stands beside it.
func longestOf(re *syntax.Regexp) int {
	const most = 4 << 10
	n := 0
	switch re.Op {
	case syntax.OpLiteral:
		n = utf8.UTFMax * len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		n = utf8.UTFMax
	case syntax.OpCapture, syntax.OpQuest:
		n = longestOf(re.Sub[0])
	case syntax.OpRepeat:
		n = max(0, re.Max) * longestOf(re.Sub[0])
	case syntax.OpConcat, syntax.OpAlternate:
		for _, sub := range re.Sub {
			k := longestOf(sub)
			if k == 0 {
				return 0
			}
			if n += k; re.Op == syntax.OpAlternate {
				n = max(n-k, k)
			}
		}
	}
	if n > most {
		return 0
	}
	return n
}

// failed is the error that ended it, nil for the end of the value.
func (t *texts) failed() error {
	if t.err == io.EOF {
		return nil
	}
	return t.err
}

func (t *texts) end(err error) (rune, int, error) {
	t.open = 0
	if err != nil {
		t.err = err
	}
	return 0, 0, io.EOF
}

// ReadRune gives the next rune of a text.
func (t *texts) ReadRune() (rune, int, error) {
	c, size, err := t.in.ReadRune()
	switch {
	case err != nil || t.open == 0:
		return t.end(err)
	case !t.json:
	case t.open == '0' && (c == ',' || c == ']' || c == '}'):
		return t.end(t.in.UnreadRune())
	case t.open == '"' && c == '"':
		return t.end(nil)
	case t.open == '"' && c == '\\':
		if c, err = t.escaped(); err != nil {
			return t.end(err)
		}
		size = utf8.RuneLen(c)
	}
	return c, size, nil
}

// escaped is the rune of an escape whose reverse solidus was read.
func (t *texts) escaped() (rune, error) {
	c, err := t.in.ReadByte()
	if err != nil || c != 'u' {
		if i := bytes.IndexByte([]byte("bfnrt"), c); i >= 0 {
			c = "\b\f\n\r\t"[i]
		}
		return rune(c), err
	}
	hex := func() (r rune) {
		var b [4]byte
		if _, err = io.ReadFull(t.in, b[:]); err != nil {
			return 0
		}
		for _, d := range b {
			r = r<<4 | rune(unhex(d))
		}
		return r
	}
	r := hex()
	if !utf16.IsSurrogate(r) || err != nil {
		return r, err
	}
	if next, _ := t.in.Peek(2); string(next) == `\u` {
		_, _ = t.in.Discard(2) // they were seen
		return utf16.DecodeRune(r, hex()), err
	}
	return utf8.RuneError, nil
}

func unhex(d byte) byte {
	switch {
	case d >= 'a':
		return d - 'a' + 10
	case d >= 'A':
		return d - 'A' + 10
	}
	return d - '0'
}

// A window is the part of a text around a match.
type window struct {
	from, to int // in bytes of the text
	text     []byte
}

const (
	aroundBefore = 24 * utf8.UTFMax // bytes that have what stands before a match
	aroundMost   = 1 << 10
)

func (w *window) fill(t *texts) {
	for at := 0; at < w.to; {
		c, size, err := t.ReadRune()
		if err != nil {
			return
		}
		if at += size; at > w.from {
			if len(w.text) == 0 {
				w.from = at - size
			}
			w.text = utf8.AppendRune(w.text, c)
		}
	}
}
