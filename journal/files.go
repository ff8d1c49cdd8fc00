package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"github.com/oklog/ulid/v2"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steno/lease"
	"steno/schema"
)

// Files is the store on a local disk: a folder per session under
// <dir>/sessions, a file per segment, and for what was packed of a session one
// file under <dir>/archive. It may be used from many goroutines, and
// by many processes at once.
type Files struct {
	root      *os.Root // <dir>
	sessions  *os.Root // <dir>/sessions
	place     os.FileInfo
	id        string
	caseBlind bool // the file system takes two spellings for one name
	holders   *lease.Holders
	plain     bool // no commit log
	archives  *archives
	faults    *lease.Faults
}

// OpenFiles opens the store in dir. With create it makes what is missing and
// checks that the store can be written; without, a folder that holds no store
// is NotFound and nothing on disk changes.
func OpenFiles(dir string, create bool) (*Files, error) {
	// Writers look for the store by its path, wherever the process goes.
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, schema.Errorf(schema.LogReadFailed, "the store's folder cannot be found").Cause(err)
	}
	if create {
		if err := makeDir(dir, syncDir); err != nil {
			return nil, schema.Errorf(schema.LogWriteFailed, "the store's folder %s cannot be made: %s", dir, plain(err)).Cause(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, schema.Errorf(schema.NotFound, "there is no store at %s", dir).
			With("next", "name the store with --dir, or make one with: steno serve")
	}
	if err != nil {
		return nil, schema.Errorf(schema.LogReadFailed, "the store's folder %s cannot be opened: %s", dir, plain(err)).Cause(err)
	}
	f := &Files{root: root, holders: lease.NewHolders(root), archives: &archives{}}
	if err := f.open(create); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// makeDir makes the folder of a store, and those above it that are missing,
// and their names durable: a power cut that took the folder's name would take
// every session with it.
func makeDir(dir string, sync func(dir string) error) error {
	parents := []string{filepath.Dir(filepath.Clean(dir))}
	for d := parents[0]; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		parents = append(parents, filepath.Dir(d))
	}
	_, err := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err != nil { // ours from the beginning; a folder that was there keeps its mode
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	for _, d := range parents {
		// A folder that may be passed and not read cannot be synced.
		if err := sync(d); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ours refuses a folder that others may write: whoever can, can put their log
// in place of ours.
func ours(dir *os.Root) error {
	if fi, err := dir.Stat("."); err != nil || fi.Mode().Perm()&0o022 != 0 {
		return schema.Errorf(schema.UnsafeStatePath, "a folder of the store may be written by others").
			With("next", "run: chmod 700 on the store's folder and on sessions in it, or use another --dir")
	}
	return nil
}

func (f *Files) open(create bool) (err error) {
	if err := ours(f.root); err != nil {
		return err // before anything is made in it
	}
	if create {
		if err := lease.Supported(f.root); err != nil {
			return err
		}
		if err := f.owned(); err != nil {
			return err
		}
		if err := f.prepare(); err != nil {
			return err
		}
	}
	if f.sessions, err = f.root.OpenRoot("sessions"); errors.Is(err, fs.ErrNotExist) {
		return schema.Errorf(schema.NotFound, "there is no store at %s", f.root.Name()).
			With("next", "name the store with --dir, or make one with: steno serve")
	} else if err != nil {
		return schema.Errorf(schema.LogReadFailed, "the store cannot be opened: %s", plain(err)).Cause(err)
	}
	if err := ours(f.sessions); err != nil {
		return err
	}
	if create {
		if err := lease.Supported(f.sessions); err != nil {
			return err
		}
		if err := f.owned(); err != nil {
			return err
		}
	}
	if f.place, err = f.sessions.Stat("."); err != nil {
		return schema.Errorf(schema.LogReadFailed, "the store cannot be opened: %s", plain(err)).Cause(err)
	}
	b, err := f.readOwn("store", "the store's id", 2*ulid.EncodedSize, 0o022)
	if err != nil {
		return err
	}
	id, err := schema.ParseID(strings.TrimSuffix(string(b), "\n"))
	if err != nil {
		return schema.Errorf(schema.InvalidConfig, "the file that holds the store's id holds something else")
	}
	f.id = id.String()
	if create {
		f.sweep()
	}
	_, err = f.root.Lstat("SESSIONS")
	f.caseBlind = err == nil
	return nil
}

// owned refuses a store of another user than the one whose files would be made.
func (f *Files) owned() error {
	err := lease.Own(f.root, "the store at "+f.Dir())
	if err == nil && f.sessions != nil {
		err = lease.Own(f.sessions, "the folder sessions of the store at "+f.Dir())
	}
	return err
}

// prepare makes the store's folders, its id and its secret, each only if it is
// missing, and tries whether it can be written: that is better known before a
// session id is handed out than at the first call.
func (f *Files) prepare() error {
	failed := func(what string, err error) error {
		return schema.Errorf(schema.LogWriteFailed, "the store cannot be written: %s: %s", what, plain(err)).
			With("outcome", NotStored.String()).Cause(err)
	}
	if err := f.root.Mkdir("sessions", 0o700); err == nil {
		err = f.root.Chmod("sessions", 0o700)
		if err != nil {
			return failed("a mode cannot be set", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return failed("its folders cannot be made", err)
	}
	if err := f.lay("store", []byte(NewID().String()+"\n")); err != nil {
		return failed("its id cannot be written", err)
	}
	if err := f.makeSecret(); err != nil {
		return failed("its secret cannot be written", err)
	}
	d, err := f.root.Open(".")
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return failed("its folder cannot be synced", err)
	}
	return nil
}

// WithFaults returns the same store with a test between it and the kernel.
func (f *Files) WithFaults(faults *lease.Faults) *Files {
	c := *f
	c.faults = faults
	return &c
}

// WithoutLog returns the same store, whose writers sync the segment at each
// append instead of a commit log that all share. Readers look into the logs of
// others all the same.
func (f *Files) WithoutLog() *Files {
	c := *f
	c.plain = true
	return &c
}

// Close closes the store and ends the beat of its writers, which stay open.
func (f *Files) Close() error {
	f.holders.Close()
	err := f.root.Close()
	if f.sessions != nil {
		err = errors.Join(err, f.sessions.Close())
	}
	return err
}

// Dir is the folder of the store.
func (f *Files) Dir() string { return f.root.Name() }

// ID is the store's id, written once.
func (f *Files) ID() string { return f.id }

// Sessions yields the ids of all sessions in the order of their bytes, those too
// that have only an archive left. Names that are no session ids are passed over.
func (f *Files) Sessions(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		d, err := f.sessions.Open(".")
		if err != nil {
			yield("", schema.Errorf(schema.LogReadFailed, "the sessions cannot be listed: %s", plain(err)).Cause(err))
			return
		}
		names, err := d.Readdirnames(-1)
		d.Close()
		packed, err2 := f.archived()
		if err := errors.Join(err, err2); err != nil {
			yield("", schema.Errorf(schema.LogReadFailed, "the sessions cannot be listed: %s", plain(err)).Cause(err))
			return
		}
		names = append(names, packed...)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if !schema.ValidSession(name) {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield("", err)
				return
			}
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (f *Files) dir(session string) (*lease.Dir, error) {
	if err := schema.CheckSession(session); err != nil {
		return nil, err
	}
	d, err := lease.Open(f.sessions, session, f.faults)
	if errors.Is(err, schema.NotFound) {
		err = cmp.Or(f.folderGone(session), err)
	}
	return d, err
}

// Segments lists the segments of a session, oldest first, those in its archive
// too. The folder is looked at first: what a packer takes away meanwhile is in
// the archive by then.
func (f *Files) Segments(_ context.Context, session string) ([]lease.Segment, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	list, err := d.Segments()
	if err != nil {
		return nil, err
	}
	return f.withArchived(session, list)
}

// Read reads a segment from an offset, from the archive if it is there.
func (f *Files) Read(_ context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	s, err := d.OpenSegment(epoch)
	if errors.Is(err, schema.NotFound) {
		r, err := f.readArchived(session, epoch, err)
		if err != nil {
			return nil, err
		}
		r.at = max(0, offset)
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.Seek(offset, io.SeekStart); err != nil {
		s.Close()
		return nil, schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", session, plain(err)).With("session", session).Cause(err)
	}
	return s, nil
}

// Tail gives what a holder's commit log has of a segment that the segment does
// not have.
func (f *Files) Tail(_ context.Context, session string, epoch uint64, holder string, size int64) (*lease.Tail, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	t, err := d.Tail(f.holders, holder, epoch, size)
	if errors.Is(err, schema.NotFound) { // it lies in the archive, and was synced before it was packed
		return nil, nil
	}
	return t, err
}

// Lease says who writes a session, as far as that can be said at once.
func (f *Files) Lease(_ context.Context, session string) (lease.Status, error) {
	d, err := f.dir(session)
	if err != nil {
		return lease.Status{}, err
	}
	defer d.Close()
	st, err := d.Status(f.holders)
	if err == nil && st.Epoch == 0 {
		st, err = f.leaseArchived(session, st)
	}
	if err == nil {
		err = st.Gone(session)
	}
	return st, err
}

// Claim takes a slot. See [lease.Dir.Claim].
func (f *Files) Claim(_ context.Context, session string, epoch uint64, header []byte) (Writer, error) {
	if err := schema.CheckSession(session); err != nil {
		return nil, err
	}
	if err := f.there(); err != nil {
		return nil, err
	}
	if err := lease.Supported(f.sessions); err != nil {
		return nil, schema.AsError(err).With("session", session)
	}
	if err := f.owned(); err != nil {
		return nil, schema.AsError(err).With("session", session)
	}
	if epoch == 1 {
		if err := f.noArchive(session); err != nil {
			return nil, err
		}
		if err := f.makeSession(session); err != nil {
			return nil, err
		}
	}
	claim, err := schema.DecodeClaim(bytes.TrimSuffix(header, []byte("\n")), session, epoch)
	if err != nil {
		return nil, schema.Errorf(schema.Internal, "the claim of session %s cannot be read", session).With("session", session).Cause(err)
	}
	d, err := lease.Open(f.sessions, session, f.faults)
	if err != nil {
		return nil, err
	}
	if err := d.Own(); err != nil { // before the beat, which makes files too
		d.Close()
		return nil, err
	}
	w := &fileWriter{store: f, dir: d, lane: f.holders.Join(claim.Holder), log: !f.plain, holders: f.holders, holder: claim.Holder} // it beats before it is seen
	if w.slot, err = d.Claim(epoch, header); err != nil {
		w.lane.Leave()
		d.Close()
		return nil, err
	}
	w.slot.BeatIn(w.lane, w.log)
	return w, nil
}

func (f *Files) makeSession(session string) error {
	err := f.sessions.Mkdir(session, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return f.sameCase(session)
	}
	if err == nil {
		err = f.sessions.Chmod(session, 0o700)
	}
	if err != nil {
		return schema.Errorf(schema.LogWriteFailed, "session %s cannot be made: %s", session, plain(err)).
			With("session", session).With("outcome", NotStored.String()).Cause(err)
	}
	return nil
}

// sameCase refuses an id whose folder is that of another id in other letters.
func (f *Files) sameCase(session string) error {
	if !f.caseBlind {
		return nil
	}
	for name, err := range f.Sessions(context.Background()) {
		if err != nil {
			return err
		}
		if name == session {
			return nil
		}
	}
	return schema.Errorf(schema.AlreadyExists, "session %s differs only in case from one that is here, and this file system cannot tell them apart", session).
		With("session", session)
}
