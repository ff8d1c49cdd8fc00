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
// All are derived, by [Evidence.Status], at the moment of asking; none is stored.
//
//   - available: no segment, or the newest ends in writer_released and its lock
//     is free.
//   - active: the newest segment's lock is held and its holder beats.
//   - stale: the lock is free and nothing was released, or the newest claim was
//     never sealed. The kernel frees the lock of a process that has ended, so the
//     holder is dead; nobody waits for a time to run out.
//   - ambiguous: the lock is held and the holder has not beaten for [Window]; or
//     the newest claim is held and not sealed; or it cannot be read; or its
//     holder is on another machine and the storage's locks do not reach there.
//     Force is safe then, and a person's act.
//   - lost: what a writer learns about itself from [Slot.Check].
//
// A process beats every [Interval], in one file for all its sessions, while its
// appends move. The age of a beat counts where its clock is ours, that of the
// same boot and time namespace. Elsewhere, and where there is no beat, the
// holder is watched for Window on the observer's own steady clock: until then
// the state is undecided, which [Observe] waits for.
//
// No decision reads wall time, a file's times, or a process id.
//
// # The commit log
//
// The slots of a process share a [Log], beside its beat: a line is written into
// its segment, then into the log, and the sync of the log makes it durable for
// all that wait. Segments are synced in the background. Where one has lost
// something, [Dir.Tail] gives it from the log, to a reader and to whoever takes
// over, who copies it by [Slot.Carry]. The seal and the last line are durable in
// the segment itself. A log goes only once what it has stands in its segments,
// on the disk, or behind the seal of the newest writer.
//
// # The hard cases
//
// A process that is stopped, or whose disk does not answer, keeps its lock and
// is ambiguous after the window; when it wakes up, its next append is as good as
// ever if nobody took the session, and ends in lost otherwise. A machine that
// sleeps accuses nobody, since the clock of beats stands still with it. Locks
// are seen across PID, user and mount namespaces, beats across time namespaces.
// A child of a holder does not inherit its locks (they are closed on exec).
// A folder or segment that is moved, deleted, replaced or written by others
// ends its writer in lost.
//
// Two overlay mounts over one lower folder are two stores: their files, and so
// their locks, are not the same, and nothing here can notice it. Keep a store on
// one mount that all who share it see. NFS, SMB, 9p and other file systems of
// the network, those of clusters, and every FUSE, are refused
// (LeaseStoreUnsupported).
package lease

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"steno/schema"
)

// Faults lets a test put itself between steno and the kernel, or leave a step
// of the protocol out to see that the tests notice. The zero value is the
// product; nothing outside tests sets a field.
type Faults struct {
	Write func(f *os.File, b []byte) (int, error) // instead of f.Write
	Sync  func(f *os.File) error                  // instead of every sync, of a segment and of a folder
	Drop  func(f *os.File) error                  // instead of dropping the pages of a file
	Check func(real func() error) error           // around the successor check
	At    func(point string)                      // called between the steps: listed, claimed, written, synced, checked

	LogSize int64 // of every file of a commit log, instead of what the product takes
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

func (f *Faults) drop(file *os.File) error {
	if f != nil && f.Drop != nil {
		return f.Drop(file)
	}
	return dropPages(file)
}

// Supported is LeaseStoreUnsupported where a folder is on a file system on
// which locks and names prove nothing: better asked before anything is made.
func Supported(folder *os.Root) error {
	f, err := folder.Open(".")
	if err != nil {
		return schema.Errorf(schema.LeaseStoreUnsupported, "the file system cannot be identified").Cause(err)
	}
	defer f.Close()
	return supported(f)
}

// Written writes all of b, or says why not.
func (f *Faults) Written(file *os.File, b []byte) (n int, err error) {
	if f != nil && f.Write != nil {
		n, err = f.Write(file, b)
	} else {
		n, err = file.Write(b)
	}
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return n, err
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
	path   string // whole, as it was when it was opened
	info   os.FileInfo
	node   node
	faults *Faults

	mu    sync.Mutex // guards the rest, but for what a user of an open folder reads
	users int        // between enter and leave
	lean  bool       // it is open only while it has users
	root  *os.Root
	self  *os.File // the folder itself, for its descriptor and its sync
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
	d := &Dir{parent: parent, name: session, path: filepath.Join(parent.Name(), session), faults: faults}
	if d.info, err = d.open(); err != nil {
		return nil, err
	}
	d.node = nodeOf(d.info)
	if !os.SameFile(fi, d.info) || d.info.Mode().Perm()&0o022 != 0 {
		d.Close()
		return nil, unsafePath(session, "the session's folder is a link or may be written by others")
	}
	return d, nil
}

// fd is the folder's descriptor.
func (d *Dir) fd() int { return int(d.self.Fd()) }

// Session is the session whose folder it is.
func (d *Dir) Session() string { return d.name }

// Close closes the folder. Slots that were claimed in it stay open.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lean = false
	return d.letGo()
}

// Endings of the names in a session's folder that have a number.
const (
	segmentExt  = ".jsonl"
	archivedExt = ".archived"
)

func segmentName(epoch uint64) string { return numbered(epoch, segmentExt) }

func numbered(epoch uint64, ext string) string { return fmt.Sprintf("%06d%s", epoch, ext) }

// Segments lists the taken slots, lowest first. Files with other names are not
// looked at. A slot that holds no plain file of ours is UnsafeStatePath.
func (d *Dir) Segments() ([]Segment, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	epochs, err := d.numbers(segmentExt)
	if err != nil {
		return nil, err
	}
	// Sizes are noted newest first. The other way round a claimant could note
	// the size of a segment, and seal, between two looks of ours: its seal
	// would then pin more than we had seen.
	var out []Segment
	for _, epoch := range slices.Backward(epochs) {
		fi, err := d.root.Lstat(segmentName(epoch))
		if errors.Is(err, fs.ErrNotExist) {
			continue // packed, since the names were read
		}
		if err != nil {
			return nil, readFailed(d.name, err)
		}
		if why := d.foreign(fi); why != "" {
			return nil, d.unsafeSegment(epoch, why)
		}
		out = append(out, Segment{epoch, fi.Size()})
		d.faults.at("listed")
	}
	slices.Reverse(out)
	return out, nil
}

// numbers are those of the names with an ending, lowest first. The folder is
// open.
func (d *Dir) numbers(ext string) (epochs []uint64, err error) {
	f, err := d.root.Open(".") // an own handle, since reading a folder moves its position
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	for _, name := range names {
		if epoch, ok := parseName(name, ext); ok {
			epochs = append(epochs, epoch)
		}
	}
	slices.Sort(epochs)
	return epochs, nil
}

func parseName(name, ext string) (epoch uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ext)
	if !ok || len(digits) < 6 || len(digits) > 12 {
		return 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		epoch = 10*epoch + uint64(c-'0')
	}
	return epoch, epoch > 0 && numbered(epoch, ext) == name
}

// OpenSegment opens a segment for reading. It never follows a link and never
// hangs on a FIFO; what is no plain file of ours is UnsafeStatePath.
func (d *Dir) OpenSegment(epoch uint64) (*os.File, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	name := segmentName(epoch)
	before, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noSegment(d.name, epoch)
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	if why := d.foreign(before); why != "" {
		return nil, d.unsafeSegment(epoch, why)
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if errors.Is(err, fs.ErrNotExist) { // packed in between
		return nil, noSegment(d.name, epoch)
	}
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

func noSegment(session string, epoch uint64) error {
	return schema.Errorf(schema.NotFound, "session %s has no segment %06d", session, epoch).
		With("session", session).With("segment", epoch)
}

// Foreign says why a file in a folder is not a plain file of ours, "" if it is
// one.
func Foreign(dir *os.Root, fi os.FileInfo) string {
	at, err := dir.Stat(".")
	if err != nil {
		return "is in a folder that cannot be looked at"
	}
	return foreign(fi, at)
}

func (d *Dir) foreign(fi os.FileInfo) string { return foreign(fi, d.info) }

// foreign says why a file is not a plain file of ours, "" if it is one; dir is
// the folder it is in. A second name is allowed for the moment in which a kernel
// without RENAME_NOREPLACE publishes a claim by a link.
func foreign(fi, dir os.FileInfo) string {
	links, uid := inode(fi)
	_, dirUID := inode(dir)
	switch {
	case !fi.Mode().IsRegular():
		return "is no regular file"
	case links > maxLinks:
		return "has a second name"
	case uid != dirUID:
		return ofAnother
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
	ok, err := tryLock(f, shared)
	if err != nil {
		return false, readFailed(d.name, err)
	}
	return !ok, nil
}

// Status gathers the evidence about the newest segment and decides. It needs no
// lease, changes nothing, works on read-only media, and waits for nothing.
// holders are those of the store; nil looks at no beat.
func (d *Dir) Status(holders *Holders) (Status, error) {
	if err := d.enter(); err != nil {
		return Status{}, err
	}
	defer d.leave()
	segments, err := d.Segments()
	if err != nil {
		return Status{}, err
	}
	if len(segments) == 0 {
		return Evidence{}.Status(), nil
	}
	epoch := segments[len(segments)-1].Epoch
	// The lock is probed before the segment is read: a writer that releases in
	// between is then seen as active or as available, never as dead.
	held, err := d.Held(epoch)
	if err != nil {
		return Status{}, err
	}
	e, err := d.evidence(epoch)
	if err != nil {
		return Status{}, err
	}
	e.Held, e.Untrusted, e.Host = held, supported(d.self) != nil, hostname()
	if e.Holder != nil && (e.Held || !e.Released) {
		e.Beat = holders.Beat(e.Holder.ID)
	}
	e.Here = here() // after the beat, which is then never from the future
	return e.Status(), nil
}

func (d *Dir) evidence(epoch uint64) (Evidence, error) {
	f, err := d.OpenSegment(epoch)
	if err != nil {
		return Evidence{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Evidence{}, readFailed(d.name, err)
	}
	e, err := ReadSegment(d.name, epoch, f, fi.Size())
	if err != nil {
		return Evidence{}, readFailed(d.name, err)
	}
	return e, nil
}

func readFailed(session string, err error) error {
	return schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", session, Cause(err)).
		With("session", session).Cause(err)
}

func writeFailed(session, what string, err error) error {
	return schema.Errorf(schema.LogWriteFailed, "session %s cannot be written: %s: %s", session, what, Cause(err)).
		With("session", session).With("cause", Cause(err)).Cause(err)
}

// unsafePath does not tell where a link leads: that may be the secret.
func unsafePath(session, why string) *schema.Error {
	return schema.Errorf(schema.UnsafeStatePath, "session %s: %s", session, why).With("session", session)
}

// Cause is the plain reason of a file error, without the path in it.
func Cause(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}
