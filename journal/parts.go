package journal

import (
	"context"
	"io"

	"steno/lease"
	"steno/schema"
)

// A Part is a file of a session as it is at a moment: a segment, or a blob as it
// is stored.
type Part struct {
	Epoch uint64 // of a segment; 0 of a blob
	Name  string // in the session's folder: 000001.jsonl, blobs/<sha256> or blobs/<sha256>.zst
	Size  int64  // of what counts of it now: a segment may grow
	open  func() (io.ReadCloser, error)
}

// Open reads a part; whoever reads it stops at its Size. LogReadFailed, NotFound
// if somebody has removed it.
func (p Part) Open() (io.ReadCloser, error) { return p.open() }

// Parts are the files of a session, packed or not: its segments by epoch, then
// its blobs by name. Of a segment that is being written its whole lines count;
// what the commit log of a dead writer has of it is laid over it. It takes no
// lease and changes nothing. NotFound, LogReadFailed; CorruptLogLine for a
// session of which it is known that parts are gone.
func (f *Files) Parts(ctx context.Context, session string) ([]Part, error) {
	x := Exported{Session: session}
	members, err := f.snapshot(ctx, &x)
	if err != nil {
		return nil, err
	}
	if x.Removed {
		return nil, schema.Errorf(schema.NotFound, "session %s was removed", session).With("session", session).With("removed", true).Cause(lease.ErrRemoved)
	}
	parts := make([]Part, len(members))
	for i, m := range members {
		parts[i] = Part{m.epoch, m.path(), m.size, m.open}
	}
	return parts, nil
}
