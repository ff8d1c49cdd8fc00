package executor

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"steno/schema"
)

// A capture keeps a stream in memory, whole up to the limit that it is asked for,
// else its beginning and its end. It grows with what there is, piece by piece, so
// that a command that says little takes little. What is read goes straight into
// the pieces. It is for one goroutine.
type capture struct {
	most   int      // bytes that text will be asked for, MaxOutput at the most
	pieces [][]byte // each of pieceSize but the last; those between beginning and end are gone
	kept   int      // bytes in pieces
	total  int      // bytes taken
}

const (
	pieceSize  = 256 << 10
	firstPiece = 4 << 10 // most commands say little
)

// headPieces is how many pieces hold as much of the beginning as is shown.
func (c *capture) headPieces() int { return (c.most*2/5+spareText)/pieceSize + 1 }

// room is where the next bytes go; took says how many they were.
func (c *capture) room() []byte {
	last := len(c.pieces) - 1
	if last < 0 || len(c.pieces[last]) == pieceSize {
		c.pieces = append(c.pieces, c.piece())
		last = len(c.pieces) - 1
	} else if p := c.pieces[last]; len(p) == cap(p) { // the first
		c.pieces[last] = append(make([]byte, 0, min(4*cap(p), pieceSize)), p...)
	}
	p := c.pieces[last]
	return p[len(p):cap(p)]
}

func (c *capture) took(n int) {
	last := len(c.pieces) - 1
	c.pieces[last] = c.pieces[last][:len(c.pieces[last])+n]
	c.kept, c.total = c.kept+n, c.total+n
}

// piece gives the next piece: the oldest behind the beginning, once what is
// behind it is enough.
func (c *capture) piece() []byte {
	switch {
	case len(c.pieces) == 0:
		return make([]byte, 0, firstPiece)
	case c.kept < c.most+4*pieceSize:
		return make([]byte, 0, pieceSize)
	}
	at := c.headPieces()
	oldest := c.pieces[at][:0]
	c.pieces = append(c.pieces[:at], c.pieces[at+1:]...)
	c.kept -= pieceSize
	return oldest
}

// spareText is how much more than is shown of a long text goes through the
// redaction: what it takes to be cut at a line.
const spareText = 128 << 10

// text is what was written as valid text; where that is much longer than limit,
// its beginning and its end, in whole lines. [cutText] cuts it to limit once
// nothing secret is in it any more: half a secret would not be found. The capture
// is empty afterwards.
func (c *capture) text(limit int) string {
	head, tail := "", ""
	if c.kept == c.total {
		if head = c.join(0, len(c.pieces)); len(head) <= limit+2*spareText {
			return validText(head)
		}
		tail = head
	} else {
		at := c.headPieces()
		head, tail = c.join(0, at), c.join(at, len(c.pieces))
	}
	head = head[:min(len(head), limit*2/5+spareText)]
	tail = tail[max(0, len(tail)-limit*3/5-spareText):]
	// The gap may have cut through a character. Half of one is not invalid
	// text, so it goes to the gap.
	end := len(head) - utf8.UTFMax
	head = head[:end+len(trimPartialRune([]byte(head[end:])))]
	for i := 0; i < 3 && len(tail) > 0 && tail[0]&0xC0 == 0x80; i++ {
		tail = tail[1:]
	}
	head, tail = wholeLines(head, tail)
	gap := c.total - len(head) - len(tail)
	head, tail = validText(head), validText(tail)
	text, _ := schema.JoinEnds(head, tail, len(head)+gap+len(tail), 4*MaxOutput) // nothing more is cut
	return text
}

// cutText cuts a text to limit; whole is how long it was, 0 if nothing of it is
// missing.
func cutText(text string, whole, limit int) (string, int) {
	if whole <= len(text) || len(text) <= limit {
		return schema.Truncate(text, limit)
	}
	return schema.JoinEnds(text, text, whole, limit)
}

// wholeLines is the text before a gap up to its last line, and the text behind it
// from its first; of longer lines something is left out.
func wholeLines(head, tail string) (string, string) {
	const line, part = 64 << 10, 4 << 10
	last := max(0, len(head)-line)
	if i := strings.LastIndexByte(head[last:], '\n'); i >= 0 {
		head = head[:last+i+1]
	} else {
		n := max(0, len(head)-part)
		for n > 0 && !utf8.RuneStart(head[n]) {
			n--
		}
		head = head[:n]
	}
	if i := strings.IndexByte(tail[:min(len(tail), line)], '\n'); i >= 0 {
		tail = tail[i+1:]
	} else {
		n := min(len(tail), part)
		for n < len(tail) && !utf8.RuneStart(tail[n]) {
			n++
		}
		tail = tail[n:]
	}
	return head, tail
}

// join makes one text of some of the pieces and lets go of them.
func (c *capture) join(from, to int) string {
	n := 0
	for _, p := range c.pieces[from:to] {
		n += len(p)
	}
	var b strings.Builder
	b.Grow(n)
	for i := from; i < to; i++ {
		b.Write(c.pieces[i])
		c.pieces[i] = nil
	}
	return b.String()
}

// A tail keeps the end of a stream, and tells its lines as they come: longer ones
// than it keeps are not told, since half a line may hold half a secret. It is for
// one goroutine.
type tail struct {
	end  []byte
	cut  bool // something came before it
	tell func(line string)
	line int  // of end, where the line begins that has not ended
	long bool // its beginning is gone
}

// room and took are as those of a capture.
func (t *tail) room() []byte {
	if t.end == nil {
		t.end = make([]byte, 0, 4*maxTail)
	}
	if len(t.end) > 2*maxTail {
		gone := len(t.end) - maxTail
		t.end, t.cut = append(t.end[:0], t.end[gone:]...), true
		if t.line -= gone; t.line < 0 {
			t.line, t.long = 0, true
		}
	}
	return t.end[len(t.end):cap(t.end)]
}

func (t *tail) took(n int) {
	t.end = t.end[:len(t.end)+n]
	for {
		i := bytes.IndexByte(t.end[t.line:], '\n')
		if i < 0 {
			return
		}
		if line := t.end[t.line : t.line+i]; !t.long && t.tell != nil {
			t.tell(string(line))
		}
		t.line, t.long = t.line+i+1, false
	}
}

// text is the end as valid text, from the first whole line on: half a line may
// hold half a secret. Of one that is long its end stays.
func (t *tail) text() string {
	b := t.end[max(0, len(t.end)-maxTail):]
	if t.cut || len(b) < len(t.end) {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		} else {
			b = b[min(len(b), 1<<10):]
		}
		for i := 0; i < 3 && len(b) > 0 && b[0]&0xC0 == 0x80; i++ {
			b = b[1:]
		}
	}
	return validText(string(b))
}
