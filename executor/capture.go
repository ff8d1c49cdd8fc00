package executor

import "io"

// A capture keeps the beginning and the end of a stream in bounded memory:
// MaxOutput bytes of each. It is for one goroutine.
type capture struct {
	head  []byte
	tail  []byte // a ring once it is full
	next  int    // where the ring goes on
	total int    // bytes written
}

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += n
	if room := MaxOutput - len(c.head); room > 0 {
		room = min(room, len(p))
		c.head = append(c.head, p[:room]...)
		p = p[room:]
	}
	if len(p) > MaxOutput {
		p = p[len(p)-MaxOutput:]
	}
	for len(p) > 0 {
		if len(c.tail) < MaxOutput {
			room := min(MaxOutput-len(c.tail), len(p))
			c.tail = append(c.tail, p[:room]...)
			p = p[room:]
			continue
		}
		copied := copy(c.tail[c.next:], p)
		c.next = (c.next + copied) % MaxOutput
		p = p[copied:]
	}
	return n, nil
}

// fill reads r to its end, or until reading fails, which says the same here.
func (c *capture) fill(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		c.Write(buf[:n])
		if err != nil {
			return err
		}
	}
}

// text is what was written as valid text of at most limit bytes, cut as
// [Truncate] cuts, and how many bytes are left out.
func (c *capture) text(limit int) (string, int) {
	tail := append(c.tail[c.next:len(c.tail):len(c.tail)], c.tail[:c.next]...)
	gap := c.total - len(c.head) - len(tail)
	if gap == 0 {
		return Truncate(string(c.head)+string(tail), limit)
	}
	// The gap may have cut through a character. Half of one is not invalid
	// text, so it goes to the gap.
	head := trimPartialRune(c.head)
	for i := 0; i < 3 && len(tail) > 0 && tail[0]&0xC0 == 0x80; i++ {
		tail = tail[1:]
	}
	gap = c.total - len(head) - len(tail)
	h, t := validText(string(head)), validText(string(tail))
	return joinEnds(h, t, len(h)+gap+len(t), limit)
}
