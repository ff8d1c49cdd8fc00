package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"steno/schema"
)

// A lineReader splits a segment at 0x0A. Memory is bounded: of a line over the
// limit only its length, its hash and whether it has a NUL are kept.
//
// It reads chunks of whole lines. Every line can be judged alone, so others may
// judge the lines of later chunks meanwhile (see judgeAhead); whoever reads gets
// the lines in order, one after another, and does not see the difference.
type lineReader struct {
	f       io.ReadCloser
	left    int64  // bytes that are still to be read from f
	rest    []byte // of them, the beginning of the next chunk
	fail    error  // of f, given behind the lines before it
	trusted bool   // sums are not compared
	size    int    // of a chunk
	quick   bool   // nobody will ask for the hash of a long line, which is most of the work
	pool    *pool

	chunk *chunk // that the line is from
	at    int    // in it, of the next line
	nth   int    // number of the next line in it

	line   []byte // without its newline; valid until the next call
	number int    // from 1
	offset int64  // of the line
	length int64  // of the line without its newline
	whole  bool   // it ends in a newline
	long   bool   // longer than the limit; line has only its beginning
	judged int    // one more than its number among those of the chunk that are judged
	next0  int64  // offset of the next line
	err    error

	ahead   []*chunk // that were read and not yet given, in their order
	most    int      // how many these may be
	work    chan *task
	workers sync.WaitGroup
}

// A chunk is some whole lines; only the last line of a segment may have no
// newline.
type chunk struct {
	buf   []byte // its lines, or the beginning of one over the limit
	small []byte // what buf is made of, as long as lines are short
	long  *longLine
	task  *task // to judge it ahead, nil if nobody does
	// What is known of its first n lines.
	n      int
	lines  []judged
	events []schema.Event
}

// A task is to judge the lines of a chunk, once. It is made anew each time, for
// it may be in a queue when its chunk is another reader's already.
type task struct {
	c     *chunk
	taken atomic.Bool // somebody judges it, or gives it as it is
	done  chan struct{}
}

// A judged line has been decoded.
type judged struct {
	end int   // of it in its chunk, without its newline
	err error // of Decode
}

// A longLine is one over the limit.
type longLine struct {
	length int64
	whole  bool
	nul    bool
	hash   hash.Hash
}

const (
	chunkSize = 64 << 10
	// maxJudged bounds the lines of a chunk that are judged ahead, and with them
	// the memory. Those behind them are judged one by one.
	maxJudged = 256
	// maxAhead bounds the bytes that are read ahead.
	maxAhead = 2 << 20
	// maxWorkers bounds the chunks in memory on a machine with many cores.
	maxWorkers = 8
)

// chunks are those that nobody reads now. Sessions may be many and short, and a
// chunk has all that is needed to decode its lines without garbage.
var chunks = sync.Pool{New: func() any { return new(chunk) }}

// A pool lends room for long lines, one reader after another.
type pool struct {
	big [][]byte // each with room for one line of any length
}

func (p *pool) put(c *chunk) {
	if cap(c.buf) > schema.MaxLine && len(p.big) < 3 {
		p.big = append(p.big, c.buf[:schema.MaxLine+1])
	}
	c.buf, c.long, c.task, c.n = nil, nil, nil, 0
	chunks.Put(c)
}

// grow copies b to where it has room.
func (p *pool) grow(b []byte) []byte {
	var big []byte
	if n := len(p.big); n > 0 {
		big, p.big = p.big[n-1], p.big[:n-1]
	} else {
		big = make([]byte, schema.MaxLine+1)
	}
	copy(big, b)
	return big
}

func newLineReader(f io.ReadCloser, offset, size int64, p *pool) *lineReader {
	return &lineReader{f: f, left: max(0, size-offset), next0: offset, size: chunkSize, pool: p}
}

// judgeAhead lets others judge lines ahead, as many as the machine runs at once
// if workers is 0, where there is enough to do for them.
func (r *lineReader) judgeAhead(workers int) {
	if workers == 0 {
		workers = min(runtime.GOMAXPROCS(0)-1, maxWorkers)
	}
	if workers < 1 || r.left < 2*int64(r.size) {
		return
	}
	r.most = 2*workers + 2
	r.work = make(chan *task, r.most)
	for range workers {
		r.workers.Go(func() {
			for t := range r.work {
				r.judge(t)
			}
		})
	}
}

// judge decodes the lines of a chunk, if nobody else does.
func (r *lineReader) judge(t *task) {
	if !t.taken.CompareAndSwap(false, true) {
		return
	}
	c := t.c
	if c.lines == nil {
		c.lines, c.events = make([]judged, maxJudged), make([]schema.Event, maxJudged)
	}
	for at := 0; c.long == nil && at < len(c.buf) && c.n < maxJudged; c.n++ {
		n := bytes.IndexByte(c.buf[at:], '\n')
		if n < 0 {
			break
		}
		l := &c.lines[c.n]
		l.end, l.err = at+n, decode(&c.events[c.n], c.buf[at:at+n], r.trusted)
		at = l.end + 1
	}
	close(t.done)
}

func decode(e *schema.Event, line []byte, trusted bool) error {
	if trusted {
		return e.DecodeTrusted(line)
	}
	return e.Decode(line)
}

// Close closes the segment. The line is no longer valid.
func (r *lineReader) Close() error {
	if r.work != nil {
		for _, c := range r.ahead {
			c.task.taken.CompareAndSwap(false, true) // nobody wants it any more
		}
		close(r.work)
		r.workers.Wait()
	}
	for _, c := range r.ahead {
		r.pool.put(c)
	}
	if r.chunk != nil {
		r.pool.put(r.chunk)
	}
	r.ahead, r.chunk, r.line, r.judged = nil, nil, nil, 0
	return r.f.Close()
}

// next reads the next line, also a last one without a newline.
func (r *lineReader) next() bool {
	for r.chunk == nil || r.at >= len(r.chunk.buf) {
		if r.err != nil || !r.advance() {
			return false
		}
	}
	c := r.chunk
	r.offset, r.long, r.judged, r.whole = r.next0, false, 0, true
	r.number++
	if l := c.long; l != nil {
		r.line, r.long, r.length, r.whole, r.at = c.buf, true, l.length, l.whole, len(c.buf)
	} else {
		end := 0
		if r.nth < c.n {
			end, r.judged = c.lines[r.nth].end, r.nth+1
		} else if n := bytes.IndexByte(c.buf[r.at:], '\n'); n >= 0 {
			end = r.at + n
		} else {
			end, r.whole = len(c.buf), false
		}
		r.line, r.length = c.buf[r.at:end], int64(end-r.at)
		r.at, r.nth = end+1, r.nth+1
	}
	r.next0 += r.length
	if r.whole {
		r.next0++
	}
	return true
}

// advance goes on to the next chunk.
func (r *lineReader) advance() bool {
	if r.chunk != nil {
		r.pool.put(r.chunk)
		r.chunk = nil
	}
	bytes := 0
	for _, c := range r.ahead {
		bytes += len(c.buf)
	}
	for len(r.ahead) < max(1, r.most) && (bytes < maxAhead || len(r.ahead) == 0) {
		c := chunks.Get().(*chunk)
		if !r.fill(c) {
			r.pool.put(c)
			break
		}
		r.ahead = append(r.ahead, c)
		bytes += len(c.buf)
		if r.work != nil {
			c.task = &task{c: c, done: make(chan struct{})}
			select {
			case r.work <- c.task:
			default: // there is enough to do
			}
		}
	}
	if len(r.ahead) == 0 {
		r.err = r.fail
		return false
	}
	c := r.ahead[0]
	// A chunk that nobody has begun with is judged line by line, as it is read.
	if t := c.task; t != nil && !t.taken.CompareAndSwap(false, true) {
		r.await(t)
	}
	r.ahead = append(r.ahead[:0], r.ahead[1:]...)
	r.chunk, r.at, r.nth = c, 0, 0
	return true
}

// await waits for a chunk, and judges others meanwhile.
func (r *lineReader) await(t *task) {
	for _, other := range r.ahead[1:] {
		select {
		case <-t.done:
			return
		default:
			r.judge(other.task)
		}
	}
	<-t.done
}

// fill reads a chunk; false at the end.
func (r *lineReader) fill(c *chunk) bool {
	buf := r.room(c)
	have, seen := copy(buf, r.rest), 0
	r.rest = r.rest[:0]
	for {
		have += r.readInto(buf[have:])
		if n := bytes.LastIndexByte(buf[seen:have], '\n'); n >= 0 {
			n += seen + 1
			r.rest = append(r.rest, buf[n:have]...)
			c.buf = buf[:n]
			return true
		}
		if have > schema.MaxLine {
			return r.skip(c, buf)
		}
		if have < len(buf) { // the end
			c.buf = buf[:have]
			return have > 0 && r.fail == nil
		}
		seen, buf = have, r.pool.grow(buf)
	}
}

// room is what a chunk is read into, with room for more than there is of it.
func (r *lineReader) room(c *chunk) []byte {
	size := r.size
	if r.quick && r.number == 0 {
		size /= 8 // who looks at the first lines does not want the others
	}
	size = int(min(int64(size), r.left+int64(len(r.rest))+1))
	if len(r.rest) >= size {
		return r.pool.grow(nil)
	}
	if cap(c.small) < size {
		c.small = make([]byte, size)
	}
	return c.small[:size]
}

// readInto reads until b is full, unless there is no more.
func (r *lineReader) readInto(b []byte) (have int) {
	for have < len(b) && r.left > 0 && r.fail == nil {
		n, err := r.f.Read(b[have:min(int64(len(b)), int64(have)+r.left)])
		have, r.left = have+n, r.left-int64(n)
		if err == io.EOF {
			r.left = 0
		} else if err != nil {
			r.fail = schema.Errorf(schema.LogReadFailed, "a segment cannot be read: %s", plain(err)).Cause(err)
		}
	}
	return have
}

// skip makes a chunk of a line over the limit, of which b has the beginning.
func (r *lineReader) skip(c *chunk, b []byte) bool {
	const kept = 1024
	l := &longLine{hash: sha256.New()}
	add := func(part []byte) {
		l.length += int64(len(part))
		l.nul = l.nul || bytes.IndexByte(part, 0) >= 0
		if !r.quick {
			l.hash.Write(part)
		}
	}
	add(b)
	for !l.whole {
		part := b[kept : kept+chunkSize]
		part = part[:r.readInto(part)]
		if len(part) == 0 {
			break
		}
		var behind []byte
		part, behind, l.whole = bytes.Cut(part, []byte{'\n'})
		add(part)
		r.rest = append(r.rest, behind...)
	}
	c.buf, c.long = b[:kept], l
	return r.fail == nil
}

// nul reports whether the line has a NUL byte. No line that can be decoded has.
func (r *lineReader) nul() bool {
	if r.long {
		return r.chunk.long.nul
	}
	return bytes.IndexByte(r.line, 0) >= 0
}

// decode reads the line into e.
func (r *lineReader) decode(e *schema.Event) error {
	if r.long {
		return schema.OverLimit
	}
	return decode(e, r.line, r.trusted)
}

// event gives the event that the line is, which was decoded already, or is into
// spare. It is one, in the form that a State takes.
func (r *lineReader) event(spare []schema.Event) ([]schema.Event, error) {
	if n := r.judged; n > 0 {
		return r.chunk.events[n-1 : n : n], r.chunk.lines[n-1].err
	}
	return spare, r.decode(&spare[0])
}

func (r *lineReader) sha256() string {
	if r.long {
		return hex.EncodeToString(r.chunk.long.hash.Sum(nil))
	}
	sum := sha256.Sum256(r.line)
	return hex.EncodeToString(sum[:])
}

// finding locates the line.
func (r *lineReader) finding(g *segment) schema.Finding {
	return schema.Finding{Segment: g.epoch, Line: r.number, Offset: r.offset, Bytes: r.length, SHA256: r.sha256()}
}
