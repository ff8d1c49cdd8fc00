package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/oklog/ulid/v2"

	"steno/lease"
	"steno/schema"
)

// ExportOptions says how to export a store.
type ExportOptions struct {
	// NewState makes an empty state to fold the copies into, so that what the
	// fold refuses is found. It must not be nil.
	NewState func() State
	// Each is told of every session, in order, once its copy is on the disk. An
	// error of it ends the export.
	Each func(Exported) error
}

// An Exported is the copy of one session.
type Exported struct {
	Session  string            `json:"session"`
	OK       bool              `json:"ok"`               // the copy is in order: every line, and every blob
	Removed  bool              `json:"removed,omitzero"` // what is left of it keeps its id
	Segments int               `json:"segments"`         //
	Blobs    int               `json:"blobs"`            //
	Bytes    int64             `json:"bytes"`            // of all of them
	Size     int64             `json:"archive_bytes"`    // of its archive
	Head     schema.Head       `json:"head"`             // of the copy
	Error    *schema.ErrorBody `json:"error,omitzero"`   // why there is no copy, or what is wrong with it
}

// Export makes a copy of every session in a folder that is not there yet: a
// store in which each is packed. It takes no lease and changes nothing, so it
// may be made while sessions are written: what was acknowledged before a session
// is looked at is in its copy, which ends with a whole line. Each archive is
// read back from the disk, and the copy is verified. A damaged session is copied
// as it is, and said to be damaged; one that cannot be read does not keep the
// others from it.
//
// The folder gets its name once all of it is on the disk: what is there under
// that name is whole. AlreadyExists: something is there already. InvalidArgs: it
// lies in the store itself. LogWriteFailed: the disk there.
func (f *Files) Export(ctx context.Context, dir string, opt ExportOptions) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return schema.Errorf(schema.InvalidArgs, "the folder to make cannot be found").Cause(err)
	}
	failed := func(what string, err error) error {
		if _, ok := errors.AsType[*schema.Error](err); ok {
			return err
		}
		return schema.Errorf(schema.LogWriteFailed, "%s %s: %s", dir, what, plain(err)).With("cause", plain(err)).Cause(err).
			With("next", "look at the folder above it, and at its disk; then export again")
	}
	if _, err := os.Lstat(dir); err == nil {
		return schema.Errorf(schema.AlreadyExists, "%s is there already", dir).With("next", "name a folder that is not there yet; an export is never written over")
	}
	if rel, err := filepath.Rel(f.Dir(), dir); err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return schema.Errorf(schema.InvalidArgs, "%s lies in the store itself", dir)
	}
	tmp := filepath.Join(filepath.Dir(dir), ".steno-export-"+ulid.Make().String())
	if err := f.beginExport(tmp); err != nil {
		return failed("cannot be made", errors.Join(err, os.RemoveAll(tmp)))
	}
	err = f.export(ctx, tmp, opt)
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		return failed("cannot be made", errors.Join(err, os.RemoveAll(tmp)))
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return failed("is made, and its name may not outlast a power cut", err)
	}
	return nil
}

// beginExport makes an empty store of the same id. Nobody writes sessions in it,
// so it may lie on any file system.
func (f *Files) beginExport(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, "sessions"), filepath.Join(dir, archiveFolder)} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	id, err := os.OpenFile(filepath.Join(dir, "store"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = id.WriteString(f.id + "\n")
	return errors.Join(err, id.Sync(), id.Close())
}

func (f *Files) export(ctx context.Context, dir string, opt ExportOptions) error {
	to, err := OpenFiles(dir, false)
	if err != nil {
		return err
	}
	defer to.Close()
	to.faults = f.faults
	for session, err := range f.Sessions(ctx) {
		if err != nil {
			return err
		}
		x := Exported{Session: session}
		there, err := f.exportSession(ctx, to, opt, &x)
		switch {
		case errors.Is(err, schema.LogWriteFailed), errors.Is(err, schema.SyncFailed), ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case !there && errors.Is(err, schema.NotFound):
			continue // nothing is left of it
		case err != nil:
			b := schema.Body(err)
			x.Error = &b
		default:
			x.OK = true
		}
		if err := opt.Each(x); err != nil {
			return err
		}
	}
	return errors.Join(f.exportPolicies(to), to.syncDir(to.sessions), to.syncDir(to.root))
}

// exportSession copies one session. there says whether there is a copy, whatever
// is wrong with it.
func (f *Files) exportSession(ctx context.Context, to *Files, opt ExportOptions, x *Exported) (there bool, err error) {
	members, err := f.snapshot(ctx, x)
	if err != nil {
		return false, err
	}
	top := uint64(0)
	for _, m := range members {
		x.Bytes += m.size
		top = max(top, m.epoch)
	}
	if len(members) > 0 { // of a session that was never begun there is nothing but its folder
		if x.Size, err = to.writeArchive(ctx, x.Session, members, func() error { return nil }); err != nil {
			return false, err
		}
	}
	if err := to.makeSession(x.Session); err != nil {
		return false, err
	}
	// The archive stands for its segments. Should it be lost, the mark tells.
	if top > 0 {
		d, err := to.dir(x.Session)
		if err != nil {
			return false, err
		}
		err = d.MarkArchived(top)
		d.Close()
		if err != nil {
			return false, err
		}
	}
	s := NewScan(to, x.Session, ScanOptions{Blobs: true, State: opt.NewState()})
	for _, err := range s.Items(ctx) {
		if x.Removed && errors.Is(err, lease.ErrRemoved) {
			return true, nil
		}
		if err != nil {
			return true, err
		}
	}
	x.Head = s.Head
	if s.FirstError != nil {
		return true, s.FirstError.Err(x.Session)
	}
	return true, nil
}

// snapshot is what a session holds at this moment. Of a segment that is being
// written its whole lines are taken: that those which were acknowledged are among
// them is all that anybody can say of them.
func (f *Files) snapshot(ctx context.Context, x *Exported) (members []*member, err error) {
	s := NewScan(f, x.Session, ScanOptions{})
	err = s.removed(ctx, s.survey(ctx))
	if errors.Is(err, lease.ErrRemoved) {
		x.Removed = true
		return f.remains(x)
	}
	if err != nil {
		return nil, err
	}
	sealed := uint64(0)
	if s.open != nil {
		sealed = s.open.epoch
	}
	if err := f.Missing(ctx, x.Session, sealed); err != nil {
		return nil, err
	}
	for _, g := range s.segments {
		size := g.size
		if s.live(g) {
			if size, err = s.wholeLines(ctx, g); err != nil {
				return nil, err
			}
		}
		members = append(members, &member{packed: packed{epoch: g.epoch, size: size},
			open: func() (io.ReadCloser, error) { return s.from(ctx, g.epoch, 0) }})
	}
	x.Segments = len(members)
	h, err := f.holding(x.Session)
	if err != nil {
		return nil, err
	}
	defer h.dir.Close()
	sizes := map[string]int64{}
	if h.index != nil {
		for _, k := range h.index.blobs {
			sizes[k.name] = k.size
		}
	}
	for _, b := range h.blobs() {
		sizes[b.Name] = b.Size
	}
	x.Blobs = len(sizes)
	for name, size := range sizes {
		members = append(members, &member{packed: packed{name: name, size: size},
			open: func() (io.ReadCloser, error) { return f.rawBlob(x.Session, name) }})
	}
	sortMembers(members)
	return members, nil
}

// remains are what keeps the id of a removed session.
func (f *Files) remains(x *Exported) (members []*member, err error) {
	h, err := f.holding(x.Session)
	if err != nil {
		return nil, err
	}
	defer h.dir.Close()
	top, err := removedIn(x.Session, h)
	if err != nil {
		return nil, err
	}
	for _, g := range h.loose {
		if g.Epoch >= top {
			members = append(members, &member{packed: packed{epoch: g.Epoch, size: g.Size},
				open: func() (io.ReadCloser, error) { return f.Read(context.Background(), x.Session, g.Epoch, 0) }})
		}
	}
	x.Segments = len(members)
	return members, nil
}

// wholeLines is how much of a segment is whole lines.
func (s *Scan) wholeLines(ctx context.Context, g *segment) (int64, error) {
	const most = schema.MaxLine + 1
	from := max(0, g.size-most)
	r, err := s.from(ctx, g.epoch, from)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, g.size-from))
	if err != nil {
		return 0, schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", s.session, plain(err)).With("session", s.session).Cause(err)
	}
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return from + int64(i) + 1, nil
	}
	return g.size, nil // no line of ours; it is copied as it is
}

// rawBlob opens the file of a blob as it lies in the folder, or in the archive,
// damaged or not.
func (f *Files) rawBlob(session, name string) (io.ReadCloser, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	file, err := d.OpenBlob(name)
	if !errors.Is(err, schema.NotFound) {
		return file, err
	}
	packedIn, x, e := f.archive(session)
	if e != nil || packedIn == nil {
		return nil, errors.Join(e, err)
	}
	k, ok := x.blob(name)
	if !ok {
		packedIn.Close()
		return nil, fmt.Errorf("blob %s: %w", name, err)
	}
	return x.open(packedIn, k, true), nil
}
