// Package lease decides who may extend a session: at most one writer at a
// time, across processes, kills, pauses and wake-ups.
//
// A session is a folder, a segment of its log is a file in it, and the number
// of a segment is the epoch of the writer that made it. To become the writer a
// process claims the next number: it makes the file complete, locked and under
// a temporary name, and renames it to the free slot, which only one can do.
// Only then does it read what counts of the segments before, and says so in
// its seal. After every write and sync, and before anybody is told, a writer
// checks that its successor's slot is still free. So whatever was acknowledged
// was complete before the next claim, and is inside what the claimant reads.
//
// Locks decide only when to try; the order of claim, read, seal and of write,
// sync, check decides who did. The order follows Apache BookKeeper's fencing:
// fence first, read second.
//
// This package owns the slots, the probe of a lock and the states that follow
// from them. What stands in a segment is the business of package journal,
// which drives the steps.
//
// # States
//
// Available: no segment, or the newest ends in writer_released and its lock is
// free. Active: the newest segment's lock is held. Stale: the lock is free and
// nothing was released, so the holder is dead. Ambiguous: the newest claim
// cannot be read. Lost is what a writer learns about itself from [Slot.Check].
package lease

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"steno/schema"
)

// A State is what an observer can say about the writer of a session. States
// are derived at the moment of asking; none is stored.
type State string

const (
	Available State = "available"
	Active    State = "active"
	Stale     State = "stale"
	Ambiguous State = "ambiguous"
	Lost      State = "lost"
)

// Status is a State with its evidence.
type Status struct {
	State  State
	Epoch  uint64         // of the newest segment, 0 for none
	Holder *schema.Holder // whom the newest claim names; nil without a readable claim
	// Kind is what an acquisition would be answered with, "" where it would be
	// granted in the usual way.
	Kind schema.Kind
}

// Err is the refusal that belongs to a status, nil where a writer may go on.
func (s Status) Err(session string) error {
	var e *schema.Error
	switch s.State {
	case Active:
		e = schema.Errorf(schema.SessionWriterActive, "another process holds session %s", session)
	case Ambiguous:
		e = schema.Errorf(schema.SessionWriterAmbiguous, "nobody can tell whether session %s has a living writer", session)
	case Lost:
		e = schema.Errorf(schema.SessionWriterLost, "this process no longer holds session %s", session)
	default:
		return nil
	}
	e.With("session", session).With("epoch", s.Epoch)
	if h := s.Holder; h != nil {
		e.With("holder", h.ID).With("host", h.Host).With("pid", h.PID).With("program", h.Program)
	}
	return e
}

// Faults lets a test put itself between steno and the kernel, or leave a step
// of the protocol out to see that the tests notice. The zero value is the
// product; nothing outside tests sets a field.
type Faults struct {
	Write func(f *os.File, b []byte) (int, error) // instead of f.Write
	Sync  func(f *os.File) error                  // instead of every sync, of a segment and of a folder
	Check func(real func() error) error           // around the successor check
	At    func(point string)                      // called between the steps: listed, claimed, written, synced, checked
}

func (f *Faults) at(point string) {
	if f != nil && f.At != nil {
		f.At(point)
	}
}

func (f *Faults) sync(file *os.File, real func() error) error {
	if f != nil && f.Sync != nil {
		return f.Sync(file)
	}
	return real()
}

// A Segment is a slot that is taken.
type Segment struct {
	Epoch uint64
	Size  int64 // bytes at the moment of the listing
}

// Dir is the folder of one session, held open: what happens to its path later
// does not lead its users astray. It may be used from many goroutines.
type Dir struct {
	parent *os.Root
	name   string
	root   *os.Root
	self   *os.File // the folder itself, for its descriptor and its sync
	info   os.FileInfo
	faults *Faults
}

// Open opens the folder of a session: NotFound if there is none,
// UnsafeStatePath if it is no folder of ours. faults may be nil.
func Open(parent *os.Root, session string, faults *Faults) (*Dir, error) {
	fi, err := parent.Lstat(session)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, schema.Errorf(schema.NotFound, "there is no session %s", session).With("session", session)
	}
	if err != nil {
		return nil, readFailed(session, err)
	}
	if !fi.IsDir() {
		return nil, unsafePath(session, "the session's place is taken by something that is no folder")
	}
	root, err := parent.OpenRoot(session)
	if err != nil {
		return nil, readFailed(session, err)
	}
	d := &Dir{parent: parent, name: session, root: root, faults: faults}
	if d.self, err = root.Open("."); err == nil {
		d.info, err = d.self.Stat()
	}
	if err != nil {
		d.Close()
		return nil, readFailed(session, err)
	}
	if !os.SameFile(fi, d.info) || d.info.Mode().Perm()&0o022 != 0 {
		d.Close()
		return nil, unsafePath(session, "the session's folder is a link or may be written by others")
	}
	return d, nil
}

// Close closes the folder. Slots that were claimed in it stay open.
func (d *Dir) Close() error {
	err := d.root.Close()
	if d.self != nil {
		err = errors.Join(err, d.self.Close())
	}
	return err
}

func segmentName(epoch uint64) string { return fmt.Sprintf("%06d.jsonl", epoch) }

// Segments lists the taken slots, lowest first. Files with other names are not
// looked at. A slot that holds no plain file of ours is UnsafeStatePath.
func (d *Dir) Segments() ([]Segment, error) {
	f, err := d.root.Open(".") // an own handle, since reading a folder moves its position
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	var epochs []uint64
	for _, name := range names {
		if epoch, ok := parseName(name); ok {
			epochs = append(epochs, epoch)
		}
	}
	// Sizes are noted newest first. The other way round a claimant could note
	// the size of a segment, and seal, between two looks of ours: its seal
	// would then pin more than we had seen.
	slices.Sort(epochs)
	var out []Segment
	for _, epoch := range slices.Backward(epochs) {
		fi, err := d.root.Lstat(segmentName(epoch))
		if err != nil {
			return nil, readFailed(d.name, err)
		}
		if why := d.foreign(fi); why != "" {
			return nil, unsafePath(d.name, fmt.Sprintf("segment %06d %s", epoch, why)).With("segment", epoch)
		}
		out = append(out, Segment{epoch, fi.Size()})
		d.faults.at("listed")
	}
	slices.Reverse(out)
	return out, nil
}

func parseName(name string) (epoch uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".jsonl")
	if !ok || len(digits) < 6 || len(digits) > 12 {
		return 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		epoch = 10*epoch + uint64(c-'0')
	}
	return epoch, epoch > 0 && segmentName(epoch) == name
}

// OpenSegment opens a segment for reading. It never follows a link and never
// hangs on a FIFO; what is no plain file of ours is UnsafeStatePath.
func (d *Dir) OpenSegment(epoch uint64) (*os.File, error) {
	name := segmentName(epoch)
	before, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, schema.Errorf(schema.NotFound, "session %s has no segment %06d", d.name, epoch).
			With("session", d.name).With("segment", epoch)
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	if why := d.foreign(before); why != "" {
		return nil, unsafePath(d.name, fmt.Sprintf("segment %06d %s", epoch, why)).With("segment", epoch)
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	after, err := f.Stat()
	if err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, unsafePath(d.name, fmt.Sprintf("segment %06d was replaced while it was opened", epoch)).With("segment", epoch)
	}
	return f, nil
}

// foreign says why a file is not a plain file of ours, "" if it is one. A
// second name is allowed for the moment in which a kernel without
// RENAME_NOREPLACE publishes a claim by a link.
func (d *Dir) foreign(fi os.FileInfo) string {
	links, uid := inode(fi)
	_, dirUID := inode(d.info)
	switch {
	case !fi.Mode().IsRegular():
		return "is no regular file"
	case links > maxLinks:
		return "has a second name"
	case uid != dirUID:
		return "belongs to another user than its folder"
	case fi.Mode().Perm()&0o022 != 0:
		return "may be written by others"
	}
	return ""
}

// Held reports whether a living process holds the lock of a segment. The probe
// takes a shared lock for an instant; it creates and changes nothing, and
// works on read-only media.
func (d *Dir) Held(epoch uint64) (bool, error) {
	f, err := d.OpenSegment(epoch)
	if err != nil {
		return false, err
	}
	defer f.Close()
	l, err := lockOf(f, d)
	if err != nil {
		return false, err
	}
	ok, err := l.TryRLock()
	if err != nil {
		return false, readFailed(d.name, err)
	}
	return !ok, l.Close()
}

// tailBytes is enough to hold a whole writer_released line.
const tailBytes = 64 << 10

// Status looks at the newest segment. It needs no lease and changes nothing.
func (d *Dir) Status() (Status, error) {
	segments, err := d.Segments()
	if err != nil {
		return Status{}, err
	}
	if len(segments) == 0 {
		return Status{State: Available}, nil
	}
	s := Status{Epoch: segments[len(segments)-1].Epoch}
	// The lock is probed before the end is read: a writer that releases in
	// between is then seen as active or as available, never as dead.
	held, err := d.Held(s.Epoch)
	if err != nil {
		return Status{}, err
	}
	claim, released, err := d.ends(s.Epoch)
	if err != nil {
		return Status{}, err
	}
	if claim != nil {
		s.Holder = &claim.Holder
	}
	switch {
	case held:
		s.State, s.Kind = Active, schema.SessionWriterActive
	case claim == nil:
		s.State, s.Kind = Ambiguous, schema.SessionWriterAmbiguous
	case released:
		s.State = Available
	default:
		s.State, s.Kind = Stale, schema.SessionWriterStale
	}
	return s, nil
}

// ends reads the first line of a segment, nil if it is no claim, and says
// whether its last line is a writer_released.
func (d *Dir) ends(epoch uint64) (claim *schema.Claim, released bool, err error) {
	f, err := d.OpenSegment(epoch)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, false, readFailed(d.name, err)
	}
	buf := make([]byte, min(tailBytes, fi.Size()))
	if _, err := f.ReadAt(buf, 0); err != nil && err != io.EOF {
		return nil, false, readFailed(d.name, err)
	}
	if i := bytes.IndexByte(buf, '\n'); i >= 0 {
		if c, err := schema.DecodeClaim(buf[:i], d.name, epoch); err == nil {
			claim = &c
		}
	}
	if _, err := f.ReadAt(buf, fi.Size()-int64(len(buf))); err != nil && err != io.EOF {
		return nil, false, readFailed(d.name, err)
	}
	if body, ok := bytes.CutSuffix(buf, []byte("\n")); ok {
		var e schema.Event
		last := body[bytes.LastIndexByte(body, '\n')+1:]
		released = e.Decode(last) == nil && e.Session == d.name && e.Epoch == epoch && e.Type == schema.TypeWriterReleased
	}
	return claim, released, nil
}

func readFailed(session string, err error) error {
	return schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", session, cause(err)).
		With("session", session).Cause(err)
}

func writeFailed(session, what string, err error) error {
	return schema.Errorf(schema.LogWriteFailed, "session %s cannot be written: %s: %s", session, what, cause(err)).
		With("session", session).With("cause", cause(err)).Cause(err)
}

// unsafePath does not tell where a link leads: that may be the secret.
func unsafePath(session, why string) *schema.Error {
	return schema.Errorf(schema.UnsafeStatePath, "session %s: %s", session, why).With("session", session)
}

// cause is the plain reason of a file error, without the path in it.
func cause(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}
