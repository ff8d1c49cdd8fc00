package journal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"steno/lease"
	"steno/schema"
)

// PackOptions says how to pack or remove a session.
type PackOptions struct {
	// Holder is this process; see [lease.Self].
	Holder schema.Holder
	// NewState makes an empty state to fold the log into. It must not be nil.
	NewState func() State
	// By and Reason go into writer_released.
	By, Reason string
	// DryRun only looks.
	DryRun bool
}

// A Packed says what was packed or removed, or would be.
type Packed struct {
	Session  string      `json:"session"`
	Archive  string      `json:"archive,omitzero"`       // its path in the store; "" of a removal
	Segments int         `json:"segments"`               // in the archive; of a removal, those that go
	Blobs    int         `json:"blobs"`                  //
	Bytes    int64       `json:"bytes"`                  // of all of them
	Size     int64       `json:"archive_bytes,omitzero"` // of the archive, once it is there
	Freed    int64       `json:"freed"`                  // bytes of the files that were taken away
	Head     schema.Head `json:"head,omitzero"`
	Epoch    uint64      `json:"epoch"` // of the writer_released; 0 if nothing was written
}

// A holding is what a session has on the disk, by where it lies.
type holding struct {
	dir   *lease.Dir
	loose []lease.Segment // in the folder
	files []lease.File    // in the folder of blobs, also such as are none
	index *index          // nil without an archive that can be read
	bad   error           // why it cannot
	size  int64           // of the archive
}

func (f *Files) holding(session string) (*holding, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	h := &holding{dir: d}
	if h.loose, err = d.Segments(); err == nil {
		h.files, err = d.Blobs()
	}
	if err == nil {
		file, x, e := f.archive(session)
		if isFault(e) {
			h.bad, e = e, nil
		}
		if err = e; file != nil {
			h.index, h.size = x, x.info.Size()
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return h, nil
}

// blobs are the blobs in the folder.
func (h *holding) blobs() []lease.File {
	return slices.DeleteFunc(slices.Clone(h.files), func(b lease.File) bool { return !isBlobName(b.Name) })
}

// packed reports whether nothing is left to pack.
func (h *holding) packed() bool {
	if h.index == nil || len(h.loose) != 1 || len(h.blobs()) > 0 {
		return false
	}
	p, ok := h.index.segment(h.loose[0].Epoch)
	return ok && p.size == h.loose[0].Size
}

// Pack stores every byte of every segment and blob of a session in its archive,
// in archive/<session>.tar.zst, reads it back from the disk, and only then takes
// the older segments and the blobs out of the session's folder. The newest
// segment, which Pack has claimed and which ends in writer_released with the
// reason packed, stays: it is the fence, and its seal says how long the segment
// before is and how it ends. A packed session is read as before, and goes on
// with the next Open; packed again, the archive holds all of it.
//
// A failure, a kill or a power cut at any point leaves the session as it can be
// read; packing it again finishes. A session that has nothing to pack is left
// alone, and Epoch is 0 then, as after a dry run.
//
// CorruptLogLine, TailSuspect, UnsupportedSchemaVersion: what verify calls an
// error is not packed, nor is a session whose archive cannot be read.
// SessionWriterActive, SessionWriterAmbiguous: another process has the session,
// or has lost it and lives. PayloadTooLarge: more than an archive holds.
// LogWriteFailed, SyncFailed: the disk, and SessionWriterLost: another process
// has taken the session over; nothing was taken away. Otherwise errors are as in
// Open.
func (f *Files) Pack(ctx context.Context, session string, opt PackOptions) (Packed, error) {
	out := Packed{Session: session, Archive: archiveFolder + "/" + session + archiveExt}
	if err := opt.check(session); err != nil {
		return out, err
	}
	st, err := f.Lease(ctx, session)
	if err == nil && !st.Undecided {
		err = st.Err(session)
	}
	if err != nil {
		return out, err
	}
	s := NewScan(f, session, ScanOptions{Strict: true, Blobs: true, State: opt.NewState()})
	for _, err := range s.Items(ctx) {
		if err != nil {
			return out, err
		}
	}
	h, err := f.holding(session)
	if err != nil {
		return out, err
	}
	defer h.dir.Close()
	if h.bad != nil { // all may be in the folder, but whose is the file that would be replaced?
		return out, schema.AsError(h.bad).With("next", "move "+out.Archive+" away, or restore it from a copy; then pack again")
	}
	out.sum(s.Head, h)
	if h.packed() {
		out.Size = h.size
		return out, nil
	}
	if err := h.dir.Idle(s.top()); err != nil || opt.DryRun {
		return out, err
	}
	j, err := f.lastWord(ctx, session, schema.ReasonPacked, opt)
	if err != nil {
		return out, err
	}
	out.Epoch = j.Epoch()
	err = f.pack(ctx, j, &out)
	if err != nil && !errors.Is(err, schema.SessionWriterLost) {
		err = schema.AsError(err).With("next", "nothing is lost, and the session is as it was; set right what the message says, and pack it again")
	}
	return out, errors.Join(err, j.Close())
}

func (o *PackOptions) check(session string) error {
	if o.By == "" {
		o.By = o.Holder.Program
	}
	if len(o.By) > maxReason || len(o.Reason) > maxReason {
		return schema.Errorf(schema.InvalidArgs, "who packs or removes a session, and why, have at most %d bytes each", maxReason).With("session", session)
	}
	return schema.CheckSession(session)
}

// sum adds up what there is to pack.
func (p *Packed) sum(head schema.Head, h *holding) {
	p.Head, p.Segments, p.Blobs, p.Bytes = head, len(h.loose), len(h.blobs()), 0
	here := map[string]bool{}
	for _, g := range h.loose {
		here[packed{epoch: g.Epoch}.path()] = true
		p.Bytes += g.Size
	}
	for _, b := range h.blobs() {
		here[packed{name: b.Name}.path()] = true
		p.Bytes += b.Size
	}
	if h.index == nil {
		return
	}
	for _, k := range h.index.segments {
		if !here[k.path()] {
			p.Segments++
			p.Bytes += k.size
		}
	}
	for _, k := range h.index.blobs {
		if !here[k.path()] {
			p.Blobs++
			p.Bytes += k.size
		}
	}
}

// lastWord acquires a session and writes that it is released, and why. The
// lease is kept. Whoever has lost the session and could still write into one of
// its segments is waited for by nobody: it is an error.
func (f *Files) lastWord(ctx context.Context, session, reason string, opt PackOptions) (*Journal, error) {
	j, err := Open(ctx, f, session, Options{Holder: opt.Holder, NewState: opt.NewState, By: opt.By, Reason: reason})
	if err != nil {
		return nil, err
	}
	if err := j.writer.(*fileWriter).dir.Idle(j.Epoch()); err != nil {
		return nil, errors.Join(err, j.Release(ctx, "not "+reason))
	}
	last := schema.Released{Reason: reason, By: opt.By, Why: opt.Reason}
	if _, err := j.appendAlone(ctx, []Entry{{Type: schema.TypeWriterReleased, Data: last.Data()}}); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// pack packs a session that is held and released.
func (f *Files) pack(ctx context.Context, j *Journal, out *Packed) error {
	w := j.writer.(*fileWriter)
	h, err := f.holding(j.session)
	if err != nil {
		return err
	}
	defer h.dir.Close()
	if h.bad != nil {
		return h.bad
	}
	out.sum(j.Head(), h)
	members, err := f.members(w, h)
	if err != nil {
		return err
	}
	out.Bytes = 0
	for _, m := range members {
		out.Bytes += m.size
	}
	if out.Size, err = f.writeArchive(ctx, j.session, members, w.slot.Check); err != nil {
		return err
	}
	var epochs []uint64
	var names []string
	for _, m := range members {
		switch {
		case !m.loose || m.epoch == j.epoch:
			continue
		case m.epoch > 0:
			epochs = append(epochs, m.epoch)
		default:
			names = append(names, m.name)
		}
		out.Freed += m.size
	}
	return w.slot.Remove(epochs, names)
}

// members are what an archive of a session has to hold: all that lies in its
// folder, once it is sure that the disk has it, and all that the archive before
// holds besides.
func (f *Files) members(w *fileWriter, h *holding) (members []*member, err error) {
	session := w.dir.Session()
	here := map[string]bool{}
	for _, g := range h.loose {
		if g.Size, err = w.slot.Settle(g.Epoch); err != nil {
			return nil, err
		}
		m := &member{packed: packed{epoch: g.Epoch, size: g.Size}, loose: true}
		m.open = func() (io.ReadCloser, error) { return h.dir.OpenSegment(g.Epoch) }
		if err := f.same(session, h, m); err != nil {
			return nil, err
		}
		members, here[m.path()] = append(members, m), true
	}
	for _, b := range h.blobs() {
		name := b.Name
		size, sure, err := w.settled(name)
		if err != nil {
			return nil, err
		}
		if !sure && h.index != nil {
			if _, ok := h.index.blob(name); ok {
				continue // that one is kept, and this one is left where it is
			}
		}
		m := &member{packed: packed{name: name, size: size}, loose: sure}
		m.open = func() (io.ReadCloser, error) { return h.dir.OpenBlob(name) }
		members, here[m.path()] = append(members, m), true
	}
	if h.index != nil {
		for _, k := range slices.Concat(h.index.segments, h.index.blobs) {
			if !here[k.path()] {
				members = append(members, &member{packed: k, open: f.openPacked(session, k)})
			}
		}
	}
	sortMembers(members)
	return members, nil
}

// sortMembers puts members into the order of an archive.
func sortMembers(members []*member) {
	slices.SortFunc(members, func(a, b *member) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.epoch, b.epoch)) // a segment has no such name
	})
}

// settled makes a blob in the folder durable, and says how long its file is and
// whether it holds what its name says.
func (w *fileWriter) settled(name string) (size int64, sure bool, err error) {
	ref := schema.Ref{SHA256: strings.TrimSuffix(name, packedExt), Bytes: -1}
	err = w.slot.SettleBlob(name, func(file *os.File, seen io.Writer) error {
		fi, err := file.Stat()
		if err != nil {
			file.Close()
			return err
		}
		size = fi.Size()
		return holds(file, seen, name, ref)
	})
	if errors.Is(err, schema.CorruptLogLine) {
		return size, false, nil
	}
	return size, err == nil, err
}

// openPacked opens a file in an archive for copying: what cannot be unpacked is
// an error there, and no zeros.
func (f *Files) openPacked(session string, k packed) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		file, x, err := f.archive(session)
		if err != nil {
			return nil, err
		}
		if file == nil {
			return nil, archiveFailed(session, fault("it is gone"))
		}
		now, ok := x.segment(k.epoch)
		if k.epoch == 0 {
			now, ok = x.blob(k.name)
		}
		if !ok || now.size != k.size {
			file.Close()
			return nil, archiveFailed(session, fault("it is another one meanwhile"))
		}
		return x.open(file, now, false), nil
	}
}

// same refuses a segment of which the archive has another one: either may be
// the one that was acknowledged.
func (f *Files) same(session string, h *holding, m *member) error {
	if h.index == nil {
		return nil
	}
	k, ok := h.index.segment(m.epoch)
	if !ok {
		return nil
	}
	here, err := sumOf(m.open)
	if err != nil {
		return err
	}
	there, err := sumOf(f.openPacked(session, k))
	if err != nil && !errors.Is(err, errFrame) { // a damaged copy is replaced
		return err
	}
	if err == nil && here != there {
		return schema.Errorf(schema.AlreadyExists, "the archive of session %s has another %s than its folder", session, m.path()).With("session", session).
			With("next", "find out with steno verify which is right, move the other away, and pack again")
	}
	return nil
}

func sumOf(open func() (io.ReadCloser, error)) (sum [sha256.Size]byte, err error) {
	r, err := open()
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.Copy(h, r)
	h.Sum(sum[:0])
	return sum, errors.Join(err, r.Close())
}
