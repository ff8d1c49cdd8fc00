package journal

import (
	"context"
	"io"
	"iter"

	"steno/lease"
	"steno/schema"
)

// A Store keeps the segments of many sessions. It never looks inside a line.
// Its methods may be called from many goroutines. Its errors have kinds:
// NotFound for a session or segment that is not there, LogReadFailed,
// UnsafeStatePath.
type Store interface {
	// ID is the store's own id, a ULID. Executors of one service must share
	// one store, and this is how they know.
	ID() string

	// Secret is what the keyed hashes in the store's records are made with: 32
	// bytes, the same for all who share the store, for good. It belongs in no
	// record, no answer and no export. NotFound: the store has none, which it
	// gets when it is opened to be written; UnsafeStatePath: others may know it.
	Secret() ([]byte, error)

	// KeepPolicy keeps a policy document under its [PolicyHash], durably; what is
	// kept already is not written again. LogWriteFailed. Policy gives it back;
	// NotFound: there is none with that hash.
	KeepPolicy(text []byte) error
	Policy(hash string) ([]byte, error)

	// Writable tries whether the store can be written now; LogWriteFailed says
	// why not. It costs a write and a sync, and leaves nothing.
	Writable(ctx context.Context) error

	// Sessions yields the ids of all sessions, in order, without reading them.
	Sessions(ctx context.Context) iter.Seq2[string, error]

	// Segments lists the segments of a session with the sizes they have now,
	// oldest first.
	Segments(ctx context.Context, session string) ([]lease.Segment, error)

	// Read reads a segment from an offset. Whoever reads a segment that is
	// still written stops at the size that Segments gave.
	Read(ctx context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error)

	// Blob reads a blob of a session, as it was before it was packed. size is
	// its length as far as that is known without reading it, -1 otherwise.
	// Nothing is checked here: [OpenBlob] does.
	Blob(ctx context.Context, session, sha256 string) (r io.ReadCloser, size int64, err error)

	// Lease says who writes a session, as far as that can be said without
	// waiting; see lease.Observe. A session that was removed is the NotFound of
	// lease.Status.Gone.
	Lease(ctx context.Context, session string) (lease.Status, error)

	// Tail gives what the commit log of the holder that wrote a segment has of
	// it, where the segment itself does not; nil if it has nothing more. Of the
	// segment only the first size bytes are believed, all if size is negative.
	Tail(ctx context.Context, session string, epoch uint64, holder string, size int64) (*lease.Tail, error)

	// Missing says what is known to be gone of a session beside the segments that
	// the seals name; sealed is the newest segment with a seal, 0 for none. nil if
	// nothing is known to be. Otherwise CorruptLogLine, or
	// UnsupportedSchemaVersion, with the number of a segment, if that is known, in
	// details.segment.
	Missing(ctx context.Context, session string, sealed uint64) error

	// Checkpoint gives what KeepCheckpoint has kept of a session, nil if that is
	// nothing. It may be anything by now: whoever uses it checks it. KeepCheckpoint
	// keeps b in the place of what was kept before, and first makes sure that what
	// segment epoch holds is durable there. b itself need not outlast a power cut. Only
	// the session's holder keeps one.
	Checkpoint(ctx context.Context, session string) ([]byte, error)
	KeepCheckpoint(ctx context.Context, session string, epoch uint64, b []byte) error

	// Claim takes the free slot epoch for this process; header is the claim
	// line with its newline. Epoch 1 makes the session. AlreadyExists means
	// that another was faster.
	Claim(ctx context.Context, session string, epoch uint64, header []byte) (Writer, error)

	// Create makes a session of entries, which stand behind its session_started,
	// and releases it: all of it or nothing. It appears under its name once it is
	// whole and durable. An error that entries gives ends it, and so does what
	// [Journal.Append] refuses. AlreadyExists: the name is taken. LogWriteFailed,
	// SyncFailed: the disk; where details.outcome is unknown the session may be
	// there.
	Create(ctx context.Context, session string, opt Options, entries iter.Seq2[Entry, error]) (schema.Head, error)
}

// A Writer extends the segment it has claimed. It is for one goroutine at a
// time. After any error of Append, and no other, nothing more is appended to it.
type Writer interface {
	// Settle makes durable what stands in segment epoch, and the store tell
	// the truth about it. It returns the size up to which a claimant may read.
	Settle(ctx context.Context, epoch uint64) (size int64, err error)

	// Put makes a blob durable, before the line that names it; one that is
	// there is made sure of. An error stores nothing that counts, and the
	// writer goes on: LogWriteFailed, UnsafeStatePath.
	Put(ctx context.Context, blob *schema.Blob) error

	// Carry puts whole lines of the epoch before between the claim and the seal,
	// and makes them durable. Like an append it ends the writer if it fails.
	Carry(ctx context.Context, lines []byte) error

	// Append stores whole lines, all or none as far as anyone is told, and
	// returns after they are durable and the successor check has passed. last
	// says that nothing will follow.
	Append(ctx context.Context, lines []byte, last bool) (Outcome, error)

	// Next claims the slot after this one for the same process, in the place
	// where this one is held, also after an error of Append; header is as in
	// [Store.Claim], room how many bytes will follow it soon, if the store can
	// set them aside. This writer stays, with its lock, until its Release.
	// AlreadyExists means that another was faster, SessionWriterLost that the
	// place is no longer where it was.
	Next(ctx context.Context, header []byte, room int64) (Writer, error)

	// Release gives the slot back. It writes nothing.
	Release() error
}

// An Outcome is what is known of the lines of an append.
type Outcome int

const (
	Unknown   Outcome = iota // they may be in the log; the next holder's seal decides
	Stored                   // they are, and no successor had been there afterwards
	NotStored                // they are not
)

func (o Outcome) String() string {
	return [...]string{"unknown", "stored", "not_stored"}[o]
}
