package executor

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"steno/schema"
)

// A capture keeps a stream in memory, whole up to MaxOutput, else its beginning
// and its end. It grows with what there is, piece by piece, so that little is
// copied and a command that says little takes little. It is for one goroutine.
type capture struct {
	pieces [][]byte // each of pieceSize but the last; those between beginning and end are gone
	kept   int      // bytes in pieces
	total  int      // bytes written
}

const (
	pieceSize = 256 << 10
	// headPieces are as much of the beginning as schema.Truncate shows.
	headPieces = MaxOutput*2/5/pieceSize + 1
)

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		last := len(c.pieces) - 1
		if last < 0 || len(c.pieces[last]) == pieceSize {
			c.pieces = append(c.pieces, c.piece())
			last = len(c.pieces) - 1
		}
		room := min(pieceSize-len(c.pieces[last]), len(p))
		c.pieces[last] = append(c.pieces[last], p[:room]...)
		p = p[room:]
		c.total, c.kept = c.total+room, c.kept+room
	}
	return n, nil
}

// piece gives the next piece: the oldest behind the beginning, once what is
// behind it is enough.
func (c *capture) piece() []byte {
	switch {
	case len(c.pieces) == 0:
		return nil // it grows: most commands say little
	case c.kept < MaxOutput+4*pieceSize:
		return make([]byte, 0, pieceSize)
	}
	oldest := c.pieces[headPieces][:0]
	c.pieces = append(c.pieces[:headPieces], c.pieces[headPieces+1:]...)
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
		head, tail = c.join(0, headPieces), c.join(headPieces, len(c.pieces))
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

// A tail keeps the end of a stream. It is for one goroutine.
type tail struct {
	end []byte
	cut bool // something came before it
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if n > 2*maxTail {
		p, t.end, t.cut = p[n-2*maxTail:], t.end[:0], true
	}
	if t.end = append(t.end, p...); len(t.end) > 2*maxTail {
		t.end, t.cut = append(t.end[:0], t.end[len(t.end)-maxTail:]...), true
	}
	return n, nil
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
