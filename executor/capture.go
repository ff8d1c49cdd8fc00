package executor

import (
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
	case c.kept < MaxOutput+pieceSize:
		return make([]byte, 0, pieceSize)
	}
	oldest := c.pieces[headPieces][:0]
	c.pieces = append(c.pieces[:headPieces], c.pieces[headPieces+1:]...)
	c.kept -= pieceSize
	return oldest
}

// text is what was written as valid text of at most limit bytes, cut as
// [schema.Truncate] cuts, and how many bytes are left out. The capture is empty
// afterwards.
func (c *capture) text(limit int) (string, int) {
	if c.kept == c.total {
		return schema.Truncate(c.join(0, len(c.pieces)), limit)
	}
	// The gap may have cut through a character. Half of one is not invalid
	// text, so it goes to the gap.
	head := c.join(0, headPieces)
	end := len(head) - utf8.UTFMax
	head = head[:end+len(trimPartialRune([]byte(head[end:])))]
	tail := c.join(headPieces, len(c.pieces))
	for i := 0; i < 3 && len(tail) > 0 && tail[0]&0xC0 == 0x80; i++ {
		tail = tail[1:]
	}
	gap := c.total - len(head) - len(tail)
	head, tail = validText(head), validText(tail)
	return schema.JoinEnds(head, tail, len(head)+gap+len(tail), limit)
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
type tail struct{ end []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.end = append(t.end, p[max(0, len(p)-2*maxTail):]...)
	if len(t.end) > 2*maxTail {
		t.end = append(t.end[:0], t.end[len(t.end)-maxTail:]...)
	}
	return len(p), nil
}

// text is the end as valid text, from the first whole character on.
func (t *tail) text() string {
	b := t.end[max(0, len(t.end)-maxTail):]
	for i := 0; i < 3 && len(b) > 0 && len(b) < len(t.end) && b[0]&0xC0 == 0x80; i++ {
		b = b[1:]
	}
	return validText(string(b))
}
