package journal

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"

	"steno/schema"
)

// A checkpoint is what a session's log up to one event amounts to for a writer:
// where its events stand and what their ids are, and what its State has saved of
// itself. It is a cache: Open reads it in place of the lines before that event,
// where it fits the log, and otherwise reads the log as if there were none. No
// reader uses it: what verify, show, replay and doctor say is said of the lines.
//
// All of it is checked before any of it is used: only who knows the store's
// secret can make one. So nobody who may write files gets a permission into a
// session that its log does not have. Of the log are checked then: that all
// segments before are there and as long as they were, with their claims and
// seals; that the event stands at its place with its sum; that no repair lists
// anything, and no commit log has lines of what is covered; and every line
// behind. The covered lines are not read again.
//
// It is made from the log, by a reading of its own, and not from the live state,
// so appends do not wait for it. A damaged log has none, and neither has a
// repaired one.
type checkpoint struct {
	checkpointHead
	list  []stretch
	count uint32 // of the events
	ids   schema.Table
	state []byte
}

// checkpointVersion changes with what a checkpoint holds, and with what the fold
// makes of the same events.
const checkpointVersion = 1

// checkpointHead is JSON, and followed by its parts.
type checkpointHead struct {
	Version  int         `json:"v"`
	Store    string      `json:"store"`
	Session  string      `json:"session"`
	Head     schema.Head `json:"head"`     // of the last event covered
	Offset   int64       `json:"offset"`   // of its line, in the last segment
	End      int64       `json:"end"`      // behind it
	Line     int         `json:"line"`     // its number
	Segments []covered   `json:"segments"` // all up to there, oldest first
	Places   int         `json:"places"`   // bytes of the parts, in this order
	IDs      int         `json:"ids"`
	State    int         `json:"state"`
}

// A covered segment. The last one may have grown since.
type covered struct {
	Epoch  uint64 `json:"epoch"`
	Size   int64  `json:"size"`
	Counts bool   `json:"counts"`
}

// macCheckpoint is the HMAC-SHA-256 over the hashes of its blocks, which are
// hashed side by side. The text that it begins with is no value that a record
// could have a hash of: it is no UTF-8.
func macCheckpoint(secret, body []byte) []byte {
	const block = 256 << 10
	n := (len(body) + block - 1) / block
	sums := make([][sha256.Size]byte, n)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				sums[i] = sha256.Sum256(body[i*block : min((i+1)*block, len(body))])
			}
		})
	}
	workers.Wait()
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("\xffcheckpoint of steno\n"))
	for i := range sums {
		h.Write(sums[i][:])
	}
	return h.Sum(nil)
}

// encode gives the checkpoint as it is kept.
func (c *checkpoint) encode(secret []byte) ([]byte, error) {
	places := make([]byte, 0, 5*int(c.count))
	for _, s := range c.list {
		for _, v := range []uint64{s.seq, s.epoch, uint64(s.offset), uint64(len(s.behind))} {
			places = binary.LittleEndian.AppendUint64(places, v)
		}
		for _, v := range s.behind {
			places = binary.LittleEndian.AppendUint32(places, v)
		}
	}
	c.Places, c.IDs, c.State = len(places), len(c.ids), len(c.state)
	head, err := json.Marshal(&c.checkpointHead)
	if err != nil {
		return nil, schema.Errorf(schema.Internal, "a checkpoint has no JSON form").Cause(err)
	}
	b := make([]byte, 0, binary.MaxVarintLen64+len(head)+c.Places+c.IDs+c.State+sha256.Size)
	b = append(binary.AppendUvarint(b, uint64(len(head))), head...)
	b = append(append(append(b, places...), c.ids...), c.state...)
	return append(b, macCheckpoint(secret, b)...), nil
}

// checkpointOf gives the session's checkpoint, nil if there is none that was made
// in this store, of a session with this name, by a version that made them like
// this one does.
func checkpointOf(ctx context.Context, store Store, session string) *checkpoint {
	b, err := store.Checkpoint(ctx, session)
	if err != nil || len(b) <= sha256.Size {
		return nil
	}
	secret, err := store.Secret()
	if err != nil {
		return nil
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !hmac.Equal(mac, macCheckpoint(secret, b)) {
		return nil
	}
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil
	}
	c := new(checkpoint)
	head, b := b[k:k+int(n)], b[k+int(n):]
	if json.Unmarshal(head, &c.checkpointHead) != nil || c.Version != checkpointVersion || c.Store != store.ID() || c.Session != session ||
		len(b) != c.Places+c.IDs+c.State || min(c.Places, c.IDs, c.State) < 0 {
		return nil
	}
	c.ids, c.state = schema.Table(b[c.Places:c.Places+c.IDs]), b[c.Places+c.IDs:]
	return c.readPlaces(b[:c.Places])
}

func (c *checkpoint) readPlaces(b []byte) *checkpoint {
	all := make([]uint32, 0, len(b)/4)
	for len(b) > 0 {
		if len(b) < 32 {
			return nil
		}
		s := stretch{at: c.count, seq: binary.LittleEndian.Uint64(b), epoch: binary.LittleEndian.Uint64(b[8:]), offset: int64(binary.LittleEndian.Uint64(b[16:]))}
		n := binary.LittleEndian.Uint64(b[24:])
		if b = b[32:]; n == 0 || n > uint64(len(b)/4) {
			return nil
		}
		from := len(all)
		for i := range int(n) {
			all = append(all, binary.LittleEndian.Uint32(b[4*i:]))
		}
		s.behind = all[from:len(all):len(all)]
		c.list, c.count, b = append(c.list, s), c.count+uint32(n), b[4*n:]
	}
	return c
}

// places are those of the events covered. What is added to them does not change
// the checkpoint.
func (c *checkpoint) places() places {
	return places{list: slices.Clone(c.list), n: c.count, old: c.ids}
}

// A start is where a reading may begin, in place of the first segment.
type start struct {
	*checkpoint
	load func([]byte) (State, error)
	then func(last *schema.Event) // called before the reading begins there
}

// begin gives the number of the segment, from 0, in which the reading begins:
// that of the checkpoint, if it is one of this log.
func (s *Scan) begin(ctx context.Context) int {
	c := s.opt.from
	if c == nil || c.checkpoint == nil || s.err != nil || s.listed > 0 || len(s.Repairs) > 0 || len(c.Segments) == 0 || len(c.Segments) > len(s.segments) {
		return 0
	}
	for i, is := range c.Segments {
		g, last := s.segments[i], i == len(c.Segments)-1
		if g.epoch != is.Epoch || g.sealed != is.Counts || !last && g.fileSize() != is.Size || is.Counts && (g.headerErr != nil || g.sealLine == 0 || !g.sealFits) {
			return 0
		}
	}
	g := s.segments[len(c.Segments)-1]
	if !g.sealed || g.void || g.unseen || c.End > g.counts() || g.tail != nil && g.tail.From < c.End {
		return 0
	}
	r, err := s.lines(ctx, g.epoch, c.Offset, c.End)
	if err != nil {
		return 0 // whoever reads all will see
	}
	defer r.Close()
	r.quick = true
	var e schema.Event
	if !r.next() || !r.whole || r.next0 != c.End || r.decode(&e) != nil || e.Session != s.session || e.Head() != c.Head {
		return 0
	}
	state, err := c.load(c.state)
	if err != nil {
		return 0
	}
	s.opt.State, s.begun = state, c.checkpoint
	s.Events, s.Head, s.last, s.sum, s.time, s.durable = int(c.count), c.Head, c.Head.Seq, c.Head.Sum, e.Time, max(s.durable, c.Head.Seq)
	g.end, g.endLine = c.End, c.Line
	c.then(&e)
	return len(c.Segments) - 1
}
