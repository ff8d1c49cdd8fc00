package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"

	"steno/lease"
	"steno/schema"
)

// lay lays what the commit log of its holder has over the newest sealed segment.
// To no other it adds anything: a durable seal is final.
func (s *Scan) lay(ctx context.Context) (err error) {
	g := s.open
	if g == nil || s.opt.own || g.holder == "" || s.Lease.Released && s.Lease.Epoch == g.epoch {
		return nil
	}
	size, noted := s.opt.sizes[g.epoch]
	if !noted {
		size = -1
	}
	g.tail, err = s.store.Tail(ctx, s.session, g.epoch, g.holder, size)
	if !noted && errors.Is(err, fs.ErrPermission) { // whoever may only read sees what the segment has
		g.unseen, err = true, nil
	}
	if g.tail != nil {
		g.size = g.tail.End()
	}
	return err
}

// overlooked says that there may be more behind a segment.
func (s *Scan) overlooked(ctx context.Context, g *segment) {
	nothing := sha256.Sum256(nil)
	s.found(ctx, schema.Finding{Segment: g.epoch, Offset: g.size, SHA256: hex.EncodeToString(nothing[:]),
		Detail: "the commit log of its holder may not be read by this user: after a power cut it may have lines that the segment has not; look again as a user who may read the folder holders"},
		schema.LogReadFailed, false)
}

// fileSize is the size of the segment's file, as far as it was looked at.
func (g *segment) fileSize() int64 {
	if g.tail != nil {
		return g.tail.Size
	}
	return g.size
}

// from opens a segment for reading from an offset on.
func (s *Scan) from(ctx context.Context, epoch uint64, offset int64) (io.ReadCloser, error) {
	if g := s.byEpoch[epoch]; g != nil && g.tail != nil {
		return readUnder(ctx, s.store, s.session, epoch, g.tail, offset)
	}
	return s.store.Read(ctx, s.session, epoch, offset)
}

// readUnder reads a segment with a tail laid over it.
func readUnder(ctx context.Context, store Store, session string, epoch uint64, t *lease.Tail, offset int64) (io.ReadCloser, error) {
	end := t.From + int64(len(t.Data))
	before, err := store.Read(ctx, session, epoch, min(offset, t.From))
	if err != nil {
		return nil, err
	}
	behind, err := store.Read(ctx, session, epoch, max(offset, end))
	if err != nil {
		before.Close()
		return nil, err
	}
	r := io.MultiReader(io.LimitReader(before, t.From-min(offset, t.From)),
		bytes.NewReader(t.Data[min(max(0, offset-t.From), int64(len(t.Data))):]), io.LimitReader(behind, max(0, t.Size-max(offset, end))))
	return &laid{r, before, behind}, nil
}

type laid struct {
	io.Reader
	before, behind io.Closer
}

func (l *laid) Close() error { return errors.Join(l.before.Close(), l.behind.Close()) }

// replaced names the bytes that stand in a segment where the commit log has the
// lines: they never reached the disk as they were written.
func (s *Scan) replaced(ctx context.Context, g *segment) {
	n := min(g.tail.Size, g.tail.From+int64(len(g.tail.Data))) - g.tail.From
	if n <= 0 {
		return
	}
	r, err := s.store.Read(ctx, s.session, g.epoch, g.tail.From)
	if err != nil {
		s.fail(err)
		return
	}
	defer r.Close()
	h := sha256.New()
	if n, err = io.Copy(h, io.LimitReader(r, n)); err != nil {
		s.fail(schema.Errorf(schema.LogReadFailed, "a segment cannot be read: %s", plain(err)).Cause(err))
		return
	}
	s.found(ctx, schema.Finding{Segment: g.epoch, Line: g.tailLine, Offset: g.tail.From, Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil)),
		Detail: "the segment lost these bytes; the commit log of its holder has the lines"}, schema.TornTail, false)
}

// A carried is lines that the commit log has and their segment does not. Nobody
// writes into a segment of another, so whoever seals the next one copies them
// there, between its claim and its seal.
type carried struct {
	from  int64 // where they would stand in their segment
	lines []byte
	count int
	seq   uint64     // of the event before them
	sum   schema.Sum // of that event
}

// carriedOf gives the lines of a segment from where its tail begins up to end.
func (j *Journal) carriedOf(ctx context.Context, epoch uint64, t *lease.Tail, end int64) (*carried, error) {
	if t == nil || end <= t.From {
		return nil, nil
	}
	r, err := readUnder(ctx, j.store, j.session, epoch, t, t.From)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	c := &carried{from: t.From, lines: make([]byte, end-t.From)}
	if _, err := io.ReadFull(r, c.lines); err != nil {
		return nil, schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", j.session, plain(err)).With("session", j.session).Cause(err)
	}
	c.count = bytes.Count(c.lines, []byte{'\n'})
	var e schema.Event
	first, _, _ := bytes.Cut(c.lines, []byte{'\n'})
	if err := e.Decode(first); err != nil || e.Seq == 0 {
		return nil, schema.Errorf(schema.CorruptLogLine, "the commit log has no event for segment %06d at byte %d of session %s", epoch, t.From, j.session).
			With("session", j.session).With("segment", epoch).With("offset", t.From).Cause(err)
	}
	c.seq, c.sum = e.Seq-1, e.Prev
	return c, nil
}

// name puts what was carried into the seal that names it.
func (c *carried) name(seal *schema.Seal) {
	if c == nil {
		return
	}
	seal.Carried = c.count
	seal.Previous.Len, seal.Previous.Seq, seal.Previous.Sum = &c.from, c.seq, c.sum
}

func (c *carried) size() int64 {
	if c == nil {
		return 0
	}
	return int64(len(c.lines))
}

// move notes that what was carried stands in another segment now, from an offset
// on. The events are the last of the log. The caller holds mu, or is alone.
func (j *Journal) move(c *carried, from uint64, to place) {
	if c == nil {
		return
	}
	j.places.move(place{from, c.from}, to)
}
