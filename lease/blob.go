package lease

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// Blobs lie beside the segments, in a folder of their session. They are named
// by the hash of what they hold, which is the business of package journal; here
// they are files that must be ours, and durable before anything names them.
const (
	blobFolder = "blobs"
	blobTemp   = ".blob-"    // one on its way, or what a dead writer left of it
	blobAside  = ".damaged-" // one that did not hold what its name says, or what is to take its place
)

// OpenBlob opens a blob for reading, by its file name, as OpenSegment does:
// NotFound, or UnsafeStatePath for what is no plain file of ours.
func (d *Dir) OpenBlob(name string) (*os.File, error) {
	b, err := d.blobs()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return d.openBlob(b, name)
}

func (d *Dir) openBlob(b *os.Root, name string) (*os.File, error) {
	before, err := b.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noBlob(d.name, name)
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	if why := d.foreign(before); why != "" {
		return nil, unsafePath(d.name, fmt.Sprintf("blob %s %s", name, why))
	}
	f, err := b.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if errors.Is(err, fs.ErrNotExist) { // packed in between
		return nil, noBlob(d.name, name)
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	after, err := f.Stat()
	if err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, unsafePath(d.name, fmt.Sprintf("blob %s was replaced while it was opened", name))
	}
	return f, nil
}

func noBlob(session, name string) error {
	return schema.Errorf(schema.NotFound, "session %s has no blob %s", session, name).With("session", session)
}

// blobs opens the folder of the blobs, through the folder that is held open.
func (d *Dir) blobs() (*os.Root, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	fi, err := d.root.Lstat(blobFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noBlob(d.name, "at all")
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	unsafe := unsafePath(d.name, "the place of its blobs is no folder of ours, or may be written by others")
	if !fi.IsDir() {
		return nil, unsafe
	}
	b, err := d.root.OpenRoot(blobFolder)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	now, err := b.Stat(".")
	_, uid := inode(fi)
	if _, dirUID := inode(d.info); err != nil || !os.SameFile(fi, now) || now.Mode().Perm()&0o022 != 0 || uid != dirUID {
		b.Close()
		return nil, unsafe
	}
	return b, nil
}

// blobFailed says that a blob is not stored. Nothing names it yet, so the slot
// goes on.
func (s *Slot) blobFailed(what string, err error) error {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e.With("outcome", "not_stored")
	}
	return schema.AsError(writeFailed(s.dir.name, what, err)).With("outcome", "not_stored").With("epoch", s.epoch)
}

// WriteBlob stores what write writes as blob name: under a temporary name,
// synced, then renamed, and the name synced. When it returns nil a line may
// name the blob. A failure, LogWriteFailed or UnsafeStatePath, leaves nothing
// behind that counts, and the slot takes appends as before. A damaged file
// that has the name is set aside in the same step.
//
// The name is never without a file from then on, and never taken away again,
// whatever fails: another writer, who has forced this one out, may have found
// the blob there and told somebody.
func (s *Slot) WriteBlob(name string, damaged bool, write func(io.Writer) error) error {
	if s.dead != nil {
		return s.dead
	}
	s.lane.begin() // it is a part of an append
	defer s.lane.end()
	if err := s.dir.enter(); err != nil {
		return s.blobFailed("", err)
	}
	defer s.dir.leave()
	if err := s.dir.root.Mkdir(blobFolder, 0o700); err == nil {
		if err := s.dir.root.Chmod(blobFolder, 0o700); err != nil { // whatever the umask says
			return s.blobFailed("the mode of the folder of blobs cannot be set", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return s.blobFailed("the folder of blobs cannot be made", err)
	}
	b, err := s.dir.blobs()
	if err != nil {
		return s.blobFailed("the folder of blobs cannot be opened", err)
	}
	defer b.Close()
	for try := 0; ; try++ {
		// A Sweep that was begun for an earlier slot may find a temporary file
		// in the instant before it is locked.
		err := s.writeBlob(b, name, damaged, write)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || try == 2 {
			return err
		}
	}
}

func (s *Slot) writeBlob(b *os.Root, name string, damaged bool, write func(io.Writer) error) error {
	tmp := blobTemp + ulid.Make().String()
	if damaged { // it has this name from the exchange on, and nobody sweeps that
		tmp = blobAside + ulid.Make().String()
	}
	f, err := b.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return s.blobFailed("a blob cannot be made", err)
	}
	defer f.Close()
	fail := func(what string, err error) error {
		_ = b.Remove(tmp) // a leftover is swept by the next holder
		return s.blobFailed(what, err)
	}
	if err := f.Chmod(0o600); err != nil {
		return fail("a blob's mode cannot be set", err)
	}
	if _, err := tryLock(f, exclusive); err != nil { // not got, a Sweep is looking; the rename tells what it did
		return fail("a blob cannot be locked", err)
	}
	if err := write(&blobWriter{slot: s, f: f}); err != nil {
		return fail("a blob cannot be written", err)
	}
	if err := s.dir.faults.sync(f, f.Sync); err != nil {
		return fail("a blob cannot be synced", err)
	}
	give := b.Rename
	if damaged {
		give = func(tmp, name string) error { return setAside(b, tmp, name, exchange) }
	}
	if err := give(tmp, name); err != nil {
		return fail("a blob cannot be given its name", err)
	}
	if err := s.syncBlobNames(b, name); err != nil {
		return s.blobFailed("the folder of blobs cannot be synced", err)
	}
	// What a line names must be where its readers look.
	info, err := f.Stat()
	if err != nil {
		return s.blobFailed("a blob cannot be looked at", err)
	}
	there, err := s.dir.OpenBlob(name)
	if err != nil {
		return s.blobFailed("a blob cannot be found again", err)
	}
	defer there.Close()
	if again, err := there.Stat(); err != nil || !os.SameFile(info, again) {
		return s.blobFailed("", unsafePath(s.dir.name, "a blob was replaced while it was written"))
	}
	return nil
}

// setAside gives a file the name of a damaged one, which stays: in one step or,
// where nothing can be exchanged, under a second name that it has before.
func setAside(b *os.Root, tmp, name string, exchange func(b *os.Root, tmp, name string) error) error {
	if exchange(b, tmp, name) == nil {
		return nil
	}
	aside := blobAside + ulid.Make().String()
	if err := b.Link(name, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := b.Rename(tmp, name)
	if err != nil {
		_ = b.Remove(aside) // with two names it would be none of ours
	}
	return err
}

// syncBlobNames makes the names of blobs durable, and that of their folder,
// which whoever made it may not have lived to see. After a sync that failed the
// next one may answer success and have stored nothing, so the name that it was
// for is not trusted any more until it has been given anew.
func (s *Slot) syncBlobNames(b *os.Root, name string) (err error) {
	if s.doubtful == nil {
		s.doubtful = map[string]bool{}
	}
	s.doubtful[name] = true
	defer func() {
		if err == nil {
			delete(s.doubtful, name)
		}
	}()
	d, err := b.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := s.dir.faults.sync(d, d.Sync); err != nil || s.blobsNamed {
		return err
	}
	if err := s.dir.faults.sync(s.dir.self, s.dir.self.Sync); err != nil {
		return err
	}
	s.blobsNamed = true
	return nil
}

// SettleBlob makes a blob durable that is there already, and the page cache
// tell the truth about it, and has it read by read, which says whether it holds
// what its name says, closes it, and writes to seen what it has read. NotFound:
// it is not there, or must be written again to be sure of it.
func (s *Slot) SettleBlob(name string, read func(f *os.File, seen io.Writer) error) error {
	if s.dead != nil {
		return s.dead
	}
	s.lane.begin()
	defer s.lane.end()
	if err := s.dir.enter(); err != nil {
		return s.blobFailed("", err)
	}
	defer s.dir.leave()
	f, err := s.settleBlob(name)
	if err != nil {
		return err
	}
	return read(f, moves{s.lane})
}

// moves is a lane that moves with all that is written to it.
type moves struct{ lane *Lane }

func (m moves) Write(b []byte) (int, error) {
	m.lane.move()
	return len(b), nil
}

func (s *Slot) settleBlob(name string) (*os.File, error) {
	b, err := s.dir.blobs()
	if err != nil {
		return nil, s.blobFailed("the folder of blobs cannot be opened", err)
	}
	defer b.Close()
	f, err := s.dir.openBlob(b, name)
	if err != nil {
		return nil, s.blobFailed("a blob cannot be opened", err)
	}
	if s.doubtful[name] {
		f.Close()
		return nil, noBlob(s.dir.name, name)
	}
	err = s.dir.faults.sync(f, f.Sync)
	if err == nil {
		err = s.dir.faults.drop(f)
	}
	if err == nil {
		err = s.syncBlobNames(b, name)
	}
	if err != nil {
		f.Close()
		return nil, s.blobFailed("a blob that is there cannot be synced", err)
	}
	return f, nil
}

// A blobWriter writes a blob's file. It syncs now and then, so that the last
// sync of a large one does not take as long as if nothing moved.
type blobWriter struct {
	slot     *Slot
	f        *os.File
	unsynced int
}

const blobStep = 16 << 20

func (w *blobWriter) Write(b []byte) (int, error) {
	n, err := w.slot.dir.faults.Written(w.f, b)
	w.slot.lane.move()
	if w.unsynced += n; err == nil && w.unsynced >= blobStep {
		w.unsynced = 0
		err = w.slot.dir.faults.sync(w.f, w.f.Sync)
		w.slot.lane.move()
	}
	return n, err
}
