package journal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	"steno/lease"
	"steno/schema"
)

const archiveFolder = "archive"

// archives remembers what stands in the archives that were read last.
type archives struct {
	mu     sync.Mutex
	recent []known
}

type known struct {
	session string
	*index
}

const maxRecent = 8

func (a *archives) find(session string, fi os.FileInfo) *index {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, k := range a.recent {
		if k.session == session && os.SameFile(k.info, fi) && k.info.Size() == fi.Size() && k.info.ModTime().Equal(fi.ModTime()) {
			a.recent = slices.Insert(slices.Delete(a.recent, i, i+1), 0, k)
			return k.index
		}
	}
	return nil
}

func (a *archives) keep(session string, x *index) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent = slices.DeleteFunc(a.recent, func(k known) bool { return k.session == session })
	a.recent = slices.Insert(a.recent, 0, known{session, x})
	a.recent = a.recent[:min(len(a.recent), maxRecent)]
}

// archive opens the archive of a session; nil if there is none. What is wrong
// with it is an error that isFault, a failure of the disk is LogReadFailed.
func (f *Files) archive(session string) (*os.File, *index, error) {
	file, err := f.openArchive(session, session+archiveExt)
	if file == nil || err != nil {
		return nil, nil, err
	}
	x, err := f.index(file, session)
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, x, nil
}

// index reads what stands in an archive that is open.
func (f *Files) index(file *os.File, session string) (*index, error) {
	fi, err := file.Stat()
	if err != nil {
		return nil, archiveFailed(session, err)
	}
	x := f.archives.find(session, fi)
	if x == nil {
		if x, err = readIndex(file, fi.Size(), session); err != nil {
			return nil, archiveFailed(session, err)
		}
		x.info = fi
		f.archives.keep(session, x)
	}
	return x, nil
}

// openArchive opens a file in the folder of archives; nil if there is none. It
// is judged like a segment: a regular file with one name, ours, that nobody else
// may write.
func (f *Files) openArchive(session, name string) (*os.File, error) {
	dir, err := f.archiveDir()
	if dir == nil || err != nil {
		if err != nil {
			err = archiveFailed(session, err)
		}
		return nil, err
	}
	defer dir.Close()
	file, err := openOurs(dir, name)
	if err != nil {
		return nil, archiveFailed(session, err)
	}
	return file, nil
}

// openOurs opens a plain file of ours; nil if there is none.
func openOurs(dir *os.Root, name string) (*os.File, error) {
	before, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if why := lease.Foreign(dir, before); why != "" {
		return nil, fault("it " + why)
	}
	file, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a FIFO
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if after, err := file.Stat(); err != nil || !os.SameFile(before, after) {
		file.Close()
		if err == nil { // a packer has replaced it
			return openOurs(dir, name)
		}
		return nil, err
	}
	return file, nil
}

// archiveDir opens the folder of archives; nil if there is none.
func (f *Files) archiveDir() (*os.Root, error) {
	before, err := f.root.Lstat(archiveFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, fault("its folder is none")
	}
	dir, err := f.root.OpenRoot(archiveFolder)
	if err != nil {
		return nil, err
	}
	now, err := dir.Stat(".")
	if err != nil || !os.SameFile(before, now) || now.Mode().Perm()&0o022 != 0 {
		dir.Close()
		if err == nil {
			err = fault("its folder may be written by others")
		}
		return nil, err
	}
	return dir, nil
}

// archiveFailed gives what is wrong with an archive its kind. It is a part of
// the log that is gone, unless a newer version can read it, or the disk fails.
func archiveFailed(session string, err error) error {
	var e *schema.Error
	why := fault("")
	switch {
	case errors.Is(err, errNewer):
		e = schema.Errorf(schema.UnsupportedSchemaVersion, "the archive of session %s is of a newer version", session)
	case errors.As(err, &why):
		e = damagedArchive(session, string(why))
	case errors.Is(err, errFrame):
		e = damagedArchive(session, "a header in it is damaged")
	default:
		e = schema.Errorf(schema.LogReadFailed, "the archive of session %s cannot be read: %s", session, plain(err))
	}
	return e.With("session", session).With("archive", archiveFolder+"/"+session+archiveExt).Cause(err)
}

func damagedArchive(session, why string) *schema.Error {
	e := schema.Errorf(schema.CorruptLogLine, "the archive of session %s cannot be used: %s", session, why)
	return e.With("reason", string(schema.SegmentMissing)).
		With("next", "restore "+archiveFolder+"/"+session+archiveExt+" from a copy; or leave out what was in it: steno repair "+session)
}

// isFault reports whether an error of archive is about the archive and not
// about the disk.
func isFault(err error) bool {
	return errors.Is(err, schema.CorruptLogLine) || errors.Is(err, schema.UnsupportedSchemaVersion)
}

// withArchived puts the segments that lie in the archive in front of those in
// the folder. What lies there beside or above a segment of the folder is a
// copy, and does not count. An archive that cannot be used has none: a seal
// names what is missing then, and Read says why.
func (f *Files) withArchived(session string, list []lease.Segment) ([]lease.Segment, error) {
	file, x, err := f.archive(session)
	if isFault(err) || file == nil && err == nil {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	file.Close()
	all := make([]lease.Segment, 0, len(list)+len(x.segments))
	top := newest(list)
	for _, p := range x.segments {
		if top > 0 && p.epoch >= top {
			break
		}
		for len(list) > 0 && list[0].Epoch < p.epoch {
			all, list = append(all, list[0]), list[1:]
		}
		if len(list) == 0 || list[0].Epoch > p.epoch {
			all = append(all, lease.Segment{Epoch: p.epoch, Size: p.size})
		}
	}
	return append(all, list...), nil
}

// readArchived reads a segment that is not in its session's folder.
func (f *Files) readArchived(session string, epoch uint64, notThere error) (*packedFile, error) {
	file, x, err := f.archive(session)
	if err != nil {
		if isFault(err) {
			e := schema.AsError(err)
			e.Message = schema.AsError(notThere).Message + ", and " + e.Message
		}
		return nil, err
	}
	if file == nil {
		return nil, notThere
	}
	p, ok := x.segment(epoch)
	if !ok {
		file.Close()
		return nil, notThere
	}
	return x.open(file, p, true), nil
}

// blobArchived opens a blob that is not in its session's folder, packed or not.
func (f *Files) blobArchived(session, sha256 string, notThere error) (io.ReadCloser, int64, error) {
	file, x, err := f.archive(session)
	if errors.Is(err, schema.CorruptLogLine) || errors.Is(err, schema.UnsupportedSchemaVersion) {
		e := schema.Errorf(schema.CorruptLogLine, "blob %s is not in its folder, and %s", sha256, schema.AsError(err).Message)
		return nil, 0, e.With("session", session).With("reason", string(schema.BlobMissing)).With("sha256", sha256).Cause(err)
	}
	if err != nil {
		return nil, 0, err
	}
	if file == nil {
		return nil, 0, notThere
	}
	for _, name := range []string{sha256, sha256 + packedExt} {
		if p, ok := x.blob(name); ok {
			return blobFile(session, name, x.open(file, p, false), p.size)
		}
	}
	file.Close()
	return nil, 0, notThere
}

// leaseArchived is the lease of a session whose folder has no segment left, as
// the copy of the newest one in the archive has it: nobody can hold that one.
func (f *Files) leaseArchived(session string, st lease.Status) (lease.Status, error) {
	file, x, err := f.archive(session)
	if err != nil || file == nil || len(x.segments) == 0 {
		if isFault(err) {
			err = nil // as it is for Segments
		}
		return st, err
	}
	defer file.Close()
	last := x.segments[len(x.segments)-1]
	e, err := lease.ReadSegment(session, last.epoch, x.open(file, last, true), last.size)
	if err != nil {
		return st, archiveFailed(session, err)
	}
	e.Here, e.Host = st.Here, st.Host
	return e.Status(), nil
}

// whyMissing names a segment that a later seal names and that is not there.
func (s *Scan) whyMissing(ctx context.Context, f schema.Finding) {
	r, err := s.store.Read(ctx, s.session, f.Segment, 0)
	switch {
	case err == nil: // it has come back meanwhile; what was read was read without it
		r.Close()
	case isFault(err):
		f = told(f, err)
	case !errors.Is(err, schema.NotFound):
		s.fail(err)
		return
	}
	s.found(ctx, f, reasonOf(err), true)
}

// removed is NotFound where what counts ends in the removal of the session,
// whatever was claimed above it.
func (s *Scan) removed(ctx context.Context, surveyed error) error {
	g := s.open
	if surveyed != nil {
		return surveyed
	}
	if g == nil || s.opt.below == 0 && s.Lease.Epoch == g.epoch {
		return nil // the lease has told
	}
	r, err := s.store.Read(ctx, s.session, g.epoch, max(0, g.size-removedWithin))
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, min(g.size, removedWithin)))
	if err != nil {
		return schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", s.session, plain(err)).With("session", s.session).Cause(err)
	}
	e, err := lease.ReadSegment(s.session, g.epoch, bytes.NewReader(b), int64(len(b))) // of its end
	return errors.Join(err, e.Status().Gone(s.session))
}

// removedWithin is more than a writer_released has that removes.
const removedWithin = 32 << 10

// noArchive refuses to make a session whose archive is there: it would be
// another history under the same id.
func (f *Files) noArchive(session string) error {
	file, err := f.openArchive(session, session+archiveExt)
	if file == nil && (err == nil || !isFault(err)) {
		return err
	}
	if file != nil {
		file.Close()
	}
	return schema.Errorf(schema.AlreadyExists, "session %s has an archive", session).With("session", session).Cause(err).
		With("next", "run: steno verify "+session)
}
