package journal

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// blobs looks at the blobs that an event names, or reads them with opt.Blobs.
// folded is the event as the state is to see it: with a patch in its place, and
// without it where it cannot be had. Each blob is looked at once, as long as
// there are not too many to remember.
func (s *Scan) blobs(ctx context.Context, e *schema.Event) (folded *schema.Event, lack []error) {
	refs, err := e.Fields(&s.fields).Refs()
	if err != nil || len(refs) == 0 {
		return e, nil // the fold says what is wrong
	}
	for _, b := range refs {
		sum, _ := schema.ParseSum(b.SHA256) // Refs has found it sound
		key := blobKey{sum, b.Bytes}
		seen, known := s.seen[key]
		if !known {
			if seen = s.blob(ctx, b.Ref); s.err != nil {
				return e, nil
			}
			if len(s.seen) < maxSeen && (seen == nil || s.wrong < maxWrong) {
				s.seen[key] = seen
				if seen != nil {
					s.wrong++
				}
			}
		}
		if seen != nil {
			lack = append(lack, seen)
		}
	}
	patch := slices.IndexFunc(refs, func(b schema.Blob) bool { return b.Key == "patch" })
	if e.Type != schema.TypeStateChanged || s.opt.State == nil || patch < 0 || refs[patch].Bytes > schema.MaxPatch {
		return e, lack // the fold refuses what is too large
	}
	whole := *e
	whole.Data, err = schema.PutBack(e.Data, func(b schema.Blob) (jsontext.Value, error) {
		if b.Key != "patch" { // it may have any size, and the fold does not look
			return jsontext.Value("null"), nil
		}
		return wholeBlob(ctx, s.store, s.session, b)
	})
	if err == nil {
		return &whole, lack
	}
	if !errors.Is(err, schema.CorruptLogLine) {
		s.fail(err)
		return e, nil
	}
	whole.Data = nil
	if lack == nil { // what was read for the fold was not looked at before
		lack = []error{err}
	}
	return &whole, lack
}

// maxSeen bounds the memory that a scan takes for the blobs it has looked at,
// maxWrong for those of them that something is wrong with.
const (
	maxSeen  = 1 << 16
	maxWrong = 1 << 12
)

// A blobKey is what a reference says of the bytes of its blob.
type blobKey struct {
	sum   schema.Sum
	bytes int64
}

// blob looks at a blob, or reads it; nil if nothing is wrong with it.
func (s *Scan) blob(ctx context.Context, ref schema.Ref) error {
	var r io.ReadCloser
	var err error
	if s.opt.Blobs {
		r, err = OpenBlob(ctx, s.store, s.session, ref)
	} else {
		r, _, err = lookAtBlob(ctx, s.store, s.session, ref)
	}
	if err == nil {
		if s.opt.Blobs {
			_, err = io.Copy(io.Discard, r)
		}
		err = errors.Join(err, r.Close())
	}
	if err != nil && !errors.Is(err, schema.CorruptLogLine) {
		s.fail(err)
		return nil
	}
	return err
}

// foundBlobs names what is wrong with the blobs of a line, in one finding: of
// the first that no repair lists, if there is one.
func (s *Scan) foundBlobs(ctx context.Context, g *segment, r *lineReader, e *schema.Event, lack []error) {
	f := r.finding(g)
	f.Kind = schema.CorruptLogLine
	if s.above(ctx, g, r.offset, e.Seq) {
		f.Kind = schema.TailSuspect
	}
	named := false
	for i := range 2 * len(lack) { // once more for those that are listed, if all are
		d := schema.AsError(lack[i%len(lack)])
		reason, _ := d.Details["reason"].(string)
		s.blobAt, _ = d.Details["sha256"].(string)
		one := f
		one.Reason, one.Detail = schema.Reason(reason), d.Message
		switch listed := s.skipped(ctx, &one) != nil; {
		case named && i >= len(lack):
			return
		case !named && (!listed || i >= len(lack)):
			named = true
			s.found(ctx, one, one.Reason, false)
		case !listed && s.opt.plan != nil:
			s.opt.plan.add(s, one, s.placeOf(ctx, &one))
		}
	}
}
