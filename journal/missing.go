package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"steno/lease"
	"steno/schema"
)

// A seal names the segment before it. That the newest segments are gone no seal
// can say: of a session whose segments are all in its archive, the archive
// itself tells, and if that is lost, the mark that an export leaves in the
// session's folder.

// Missing says what is known to be gone of a session beside what its seals
// name; sealed is the newest segment with a seal, 0 for none.
func (f *Files) Missing(_ context.Context, session string, sealed uint64) error {
	d, err := f.dir(session)
	if err != nil {
		return err
	}
	defer d.Close()
	mark, err := d.Archived()
	if err != nil || sealed > 0 && mark <= sealed { // the seals name the rest
		return err
	}
	loose, err := d.Segments()
	if err != nil {
		return err
	}
	here := mark == 0 || slices.ContainsFunc(loose, func(g lease.Segment) bool { return g.Epoch == mark })
	if sealed > 0 && here {
		return nil
	}
	file, x, err := f.archive(session)
	switch {
	case isFault(err):
		return schema.AsError(err).With("segment", mark).With("next", restoreArchive(session))
	case err != nil:
		return err
	case file != nil:
		file.Close()
		_, ok := x.segment(mark)
		here = here || ok
	}
	if here {
		return nil
	}
	return schema.Errorf(schema.CorruptLogLine, "segment %06d was put into the archive of session %s, and is not there", mark, session).
		With("session", session).With("segment", mark).With("reason", string(schema.SegmentMissing)).With("next", restoreArchive(session))
}

// restoreArchive is the next step where a repair has nothing to go on from.
func restoreArchive(session string) string {
	return "restore " + archiveFolder + "/" + session + archiveExt + " from a copy, for a repair has nothing to go on from; or go on in a new session"
}

// folderGone is the error of a session whose archive is there and whose folder
// is not, nil if neither is.
func (f *Files) folderGone(session string) error {
	name := archiveFolder + "/" + session + archiveExt
	if _, err := f.root.Lstat(name); err != nil {
		return nil
	}
	return schema.Errorf(schema.CorruptLogLine, "session %s has an archive and no folder", session).
		With("session", session).With("archive", name).With("reason", string(schema.SegmentMissing)).
		With("next", "restore the folder sessions/"+session+" of the store from a copy; an empty one of mode 700 brings back what is in the archive, and nothing that came later")
}

// archived are the sessions that have an archive.
func (f *Files) archived() (ids []string, err error) {
	dir, err := f.archiveDir()
	if why := fault(""); dir == nil || errors.As(err, &why) { // whose is it? Each session says so
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, archiveExt); ok && schema.ValidSession(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// missing names what the store knows to be gone of the end of the log.
func (s *Scan) missing(ctx context.Context) {
	if s.stop || s.err != nil {
		return
	}
	sealed := uint64(0)
	if s.open != nil {
		sealed = s.open.epoch
	}
	err := s.store.Missing(ctx, s.session, sealed)
	if err == nil {
		return
	}
	if !isFault(err) {
		s.fail(err)
		return
	}
	nothing := sha256.Sum256(nil)
	f := schema.Finding{SHA256: hex.EncodeToString(nothing[:])}
	f.Segment, _ = schema.AsError(err).Details["segment"].(uint64)
	s.found(ctx, told(f, err), reasonOf(err), true)
}

// told is a finding in the words of an error of the store.
func told(f schema.Finding, err error) schema.Finding {
	e := schema.AsError(err)
	f.Detail = e.Message
	f.Next, _ = e.Details["next"].(string)
	return f
}

// reasonOf is why a segment is missing: a newer version could read it, or it is
// gone.
func reasonOf(err error) error {
	if errors.Is(err, schema.UnsupportedSchemaVersion) {
		return schema.UnsupportedSchemaVersion
	}
	return schema.SegmentMissing
}

// beyond reports whether a missing segment is one that no seal names: a repair,
// which goes on from the newest seal, cannot list it.
func (s *Scan) beyond(f schema.Finding) bool {
	return f.Reason == schema.SegmentMissing && (s.open == nil || f.Segment > s.open.epoch)
}
