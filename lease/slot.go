package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"steno/schema"
)

// A Slot is a segment that this process has claimed and may extend until it
// has lost. Its methods are for one goroutine at a time.
type Slot struct {
	dir   *Dir
	epoch uint64
	name  string
	after string   // name of the successor's slot
	file  *os.File // locked; kept reachable, since a collected file would drop the lock
	node  node
	seen  unix.Stat_t // of the last look, kept so that a check makes no garbage
	fresh bool        // the seal is not written yet
	keeps bool        // its folder stays open
	lane  *Lane       // nil if nobody beats for it
	log   *Log        // nil if each append syncs the segment
	dead  error       // why it takes no more writes

	// The keeper of the log syncs the segment beside its appends.
	size    atomic.Int64 // of what we have written
	synced  atomic.Int64 // up to here the segment is durable by itself
	syncing sync.Mutex   // of what follows
	failed  error        // of a sync: nobody knows any more what the disk has
	closed  bool

	blobsNamed bool            // the folder of blobs is synced in that of the session
	doubtful   map[string]bool // names of blobs whose sync failed
}

// Claim takes the free slot epoch: from the instant it has its name the
// segment is complete, locked, and says whose it is. header is the claim line
// with its newline. AlreadyExists means that another was faster. A folder that
// is on a file system on which locks and names prove nothing is
// LeaseStoreUnsupported.
func (d *Dir) Claim(epoch uint64, header []byte) (*Slot, error) { return d.claim(epoch, header, 0) }

func (d *Dir) claim(epoch uint64, header []byte, room int64) (*Slot, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	if err := supported(d.self); err != nil {
		return nil, err
	}
	if err := d.Own(); err != nil {
		return nil, err
	}
	tmp := ".claim-" + ulid.Make().String()
	f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, writeFailed(d.name, "the claim cannot be made", err)
	}
	s := &Slot{dir: d, epoch: epoch, name: segmentName(epoch), after: segmentName(epoch + 1), file: f, fresh: true}
	fail := func(err error) (*Slot, error) {
		_ = d.root.Remove(tmp) // a leftover is swept by the next holder
		s.close()
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil { // whatever the umask says
		return fail(writeFailed(d.name, "the claim's mode cannot be set", err))
	}
	if ok, err := tryLock(f, exclusive); err != nil {
		return fail(schema.Errorf(schema.LeaseStoreUnsupported, "a new file cannot be locked here").With("session", d.name).Cause(err))
	} else if !ok { // a Sweep is looking at the file, which is not locked yet
		return fail(taken(d.name, epoch))
	}
	if err := s.write(header); err != nil {
		return fail(err)
	}
	// A file system that cannot set room aside says so, and that is all right.
	if err := reserve(f, int64(len(header)), room); IsFull(err) {
		return fail(writeFailed(d.name, "there is no room for what follows the claim", err))
	}
	if err := s.sync(f, f.Sync); err != nil {
		return fail(err)
	}
	s.synced.Store(s.size.Load())
	if err := publish(d, tmp, s.name); err != nil {
		// Where the claim itself is gone, a Sweep has found it in the instant
		// before it was locked: another has sealed a slot meanwhile.
		if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
			return fail(taken(d.name, epoch))
		}
		return fail(writeFailed(d.name, "the claim cannot be published", err))
	}
	fi, err := f.Stat()
	if err != nil {
		return fail(readFailed(d.name, err))
	}
	s.node = nodeOf(fi)
	d.faults.at("claimed")
	return s, nil
}

func taken(session string, epoch uint64) error {
	return schema.Errorf(schema.AlreadyExists, "another process has claimed epoch %d of session %s", epoch, session).
		With("session", session).With("epoch", epoch)
}

// Settle makes what stands in segment epoch durable, and the page cache tell
// the truth about it: it notes the size, syncs the file, and drops its clean
// pages, since after a failed write-back the cache shows bytes that are not on
// the disk while the next sync answers success (Rebello et al., ATC 2020). A
// claimant reads no further than the size that Settle returns.
func (d *Dir) Settle(epoch uint64) (size int64, err error) {
	f, err := d.OpenSegment(epoch)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, readFailed(d.name, err)
	}
	if err := d.faults.sync(f, f.Sync); err != nil {
		return 0, schema.Errorf(schema.SyncFailed, "segment %06d of session %s cannot be synced: %s", epoch, d.name, Cause(err)).
			With("session", d.name).With("segment", epoch).Cause(err)
	}
	if err := d.faults.drop(f); err != nil {
		return 0, readFailed(d.name, err)
	}
	return fi.Size(), nil
}

// Settle is [Dir.Settle], as a part of an append.
func (s *Slot) Settle(epoch uint64) (size int64, err error) {
	s.lane.begin()
	defer s.lane.end()
	return s.dir.Settle(epoch)
}

// Append writes whole lines, makes them durable and checks. nil means that they
// are durable, in the segment or in the commit log, and that no successor
// existed afterwards, so they will be inside whatever seal comes next. The first
// append, which is the seal, and the last are durable in the segment itself.
// SessionWriterLost, LogWriteFailed and SyncFailed end the slot: nothing is ever
// retried on it, since after a failed write or sync nobody knows what the disk
// has. details.outcome says whether the lines may be there.
func (s *Slot) Append(lines []byte, last bool) error {
	if s.dead != nil {
		return s.dead
	}
	s.lane.begin()
	s.dead = s.append(lines, last)
	s.lane.end()
	return s.dead
}

// Carry puts lines of the epoch before between the claim and the seal, and syncs
// them: they must not be missing where the seal is there.
func (s *Slot) Carry(lines []byte) error {
	if s.dead != nil {
		return s.dead
	}
	s.lane.begin()
	defer s.lane.end()
	if s.dead = s.write(lines); s.dead == nil {
		s.dead = s.settle()
	}
	return s.dead
}

// BeatIn makes the appends of this slot, and their parts, those of a lane, which
// the caller ends. With logged they share the commit log of its holder.
func (s *Slot) BeatIn(l *Lane, logged bool) {
	if s.lane = l; logged {
		s.log = l.commitLog(s.dir)
	}
}

func (s *Slot) append(lines []byte, last bool) error {
	if err := s.syncError(); err != nil { // in the background
		return err.With("outcome", "not_stored")
	}
	if s.fresh {
		// The first line after the claim is the seal. Before a byte of it can
		// be on the disk, the names there must be durable: the file's own, the
		// folder's, which whoever made it may not have lived to see, and those
		// of the segments that the seal is about to name. A power cut that left
		// the seal and not what it pins would look like damage.
		if err := s.syncNames(); err != nil {
			return err
		}
	}
	// Behind a last line nobody looks into the log: where that has reached the
	// disk, all before it must be there.
	if last {
		if err := s.settle(); err != nil {
			return schema.AsError(err).With("outcome", "not_stored")
		}
	}
	at := s.size.Load()
	if err := s.write(lines); err != nil {
		return err
	}
	s.dir.faults.at("written")
	logged := s.log != nil && !s.fresh && !last && len(lines) <= maxRecord && s.size.Load()-s.synced.Load() <= maxUnsynced
	if logged && s.log.append(s, at, lines) != nil {
		logged = false
	}
	if !logged {
		if err := s.settle(); err != nil {
			return err
		}
	}
	if s.fresh {
		s.fresh = false
	}
	s.dir.faults.at("synced")
	if err := s.checked(logged); err != nil {
		return err
	}
	s.dir.faults.at("checked")
	return nil
}

// settle makes durable in the segment what was written there. After a sync that
// failed it fails for ever.
func (s *Slot) settle() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	size := s.size.Load()
	switch {
	case s.failed != nil:
		return s.syncFailed(s.failed)
	case s.synced.Load() >= size:
		return nil
	case s.closed:
		return s.lost("this writer is closed")
	}
	// The seal's sync stores all of the inode, a later one what was added.
	sync := func() error { return dataSync(s.file) }
	if s.fresh {
		sync = s.file.Sync
	}
	if s.failed = s.dir.faults.sync(s.file, sync); s.failed != nil {
		return s.syncFailed(s.failed)
	}
	s.synced.Store(size)
	return nil
}

// syncError is what a sync in the background has failed with.
func (s *Slot) syncError() *schema.Error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.failed == nil {
		return nil
	}
	return s.syncFailed(s.failed)
}

func (s *Slot) write(b []byte) error {
	n, err := s.dir.faults.Written(s.file, b)
	if err == nil {
		s.size.Add(int64(n))
		return nil
	}
	outcome := "unknown" // of what was stored in part only the next holder's reading decides
	if n <= 0 {
		outcome = "not_stored"
	}
	return schema.AsError(writeFailed(s.dir.name, "a write failed", err)).With("outcome", outcome).With("epoch", s.epoch)
}

func (s *Slot) sync(f *os.File, real func() error) error {
	if err := s.dir.faults.sync(f, real); err != nil {
		return s.syncFailed(err)
	}
	return nil
}

func (s *Slot) syncFailed(err error) *schema.Error {
	return schema.Errorf(schema.SyncFailed, "session %s: a sync failed: %s", s.dir.name, Cause(err)).
		With("session", s.dir.name).With("epoch", s.epoch).With("outcome", "unknown").Cause(err)
}

func (s *Slot) syncNames() error {
	if err := s.dir.enter(); err != nil {
		return err
	}
	defer s.dir.leave()
	if err := s.sync(s.dir.self, s.dir.self.Sync); err != nil {
		return err
	}
	parent, err := s.dir.parent.Open(".")
	if err != nil {
		return s.syncFailed(err)
	}
	defer parent.Close()
	return s.sync(parent, parent.Sync)
}

// Check is the successor check: nobody has claimed the next slot, the file at
// our name is ours and as long as what we wrote, and the path of the session's
// folder still leads to the folder that we hold, which it does not where the
// session or the store was moved or deleted. The slots are looked for in the
// folder of the claim, never by path alone, since after a move the path of a
// superseded writer looks free. A check that cannot be made counts as lost.
func (s *Slot) Check() error { return s.checked(false) }

// checked is Check. logged says that the commit log has just looked at what is
// above the session's folder.
func (s *Slot) checked(logged bool) error {
	if f := s.dir.faults; f != nil && f.Check != nil {
		return f.Check(func() error { return s.check(logged) })
	}
	return s.check(logged)
}

func (s *Slot) check(logged bool) error {
	folder, err := s.view()
	if err != nil {
		return s.lost("the session's folder is no longer at its name, or cannot be opened: " + Cause(err))
	}
	defer folder.close()
	if err := s.lookAt(folder.fd, folder.prefix+s.after); err != unix.ENOENT {
		if err != nil {
			return s.lost("the successor's slot cannot be looked at: " + Cause(err))
		}
		return s.lost(fmt.Sprintf("epoch %d has been claimed by another writer", s.epoch+1))
	}
	size, err := s.inPlace(folder)
	if err == nil && !folder.opened {
		err = s.onPath(logged)
	}
	if err != nil {
		return err
	}
	if size != s.size.Load() {
		return s.lost("somebody else has changed the segment")
	}
	return nil
}

// Sweep removes temporary claims of processes that died before they had a
// slot, and blobs and checkpoints that died with their writer. They were never part of a log.
// One whose lock is held belongs to somebody who lives, and stays.
func (s *Slot) Sweep() {
	defer s.rest()
	if s.dir.enter() != nil {
		return
	}
	defer s.dir.leave()
	s.sweep(s.dir.root, ".claim-")
	s.sweep(s.dir.root, checkpointTemp)
	if b, err := s.dir.blobs(); err == nil {
		s.sweep(b, blobTemp)
		b.Close()
	}
}

func (s *Slot) sweep(dir *os.Root, prefix string) {
	f, err := dir.Open(".")
	if err != nil {
		return // the leftovers harm nobody; the next holder tries again
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		// What is no plain file of ours is left alone: to lock a FIFO would hang.
		if fi, err := dir.Lstat(name); err != nil || s.dir.foreign(fi) != "" {
			continue
		}
		t, err := dir.OpenFile(name, os.O_RDONLY|openNonblock, 0)
		if err != nil {
			continue
		}
		if ok, err := tryLock(t, shared); err == nil && ok {
			_ = dir.Remove(name)
		}
		t.Close()
	}
}

// Close gives the lock back. It writes nothing: without a writer_released
// before it the session is stale from now on.
func (s *Slot) Close() error {
	if s.dead == nil {
		s.dead = schema.Errorf(schema.SessionWriterLost, "session %s: this writer is closed", s.dir.name).With("session", s.dir.name)
	}
	if s.log != nil {
		_ = s.settle() // what cannot be stays in the log
	}
	return s.close()
}

func (s *Slot) close() error {
	s.syncing.Lock()
	s.closed = true
	s.forget()
	defer s.syncing.Unlock()
	// Closing alone leaves the lock with a process that is being started at this
	// moment and still has our descriptors: whoever asks would meet a live writer.
	_ = unlock(s.file)
	return s.file.Close()
}
