package journal

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// A member is a file that an archive is to hold.
type member struct {
	packed
	open  func() (io.ReadCloser, error)
	loose bool              // it lies in the session's folder
	sum   [sha256.Size]byte // of its bytes, once it is written
}

// An archiveWriter writes what readIndex reads.
type archiveWriter struct {
	to      io.Writer
	enc     *zstd.Encoder
	session string
	time    time.Time
	table   []byte
	n       int64
	buf, in []byte
}

func newArchiveWriter(to io.Writer, session string) (*archiveWriter, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(frameBytes))
	if err != nil {
		return nil, err
	}
	a := &archiveWriter{to: to, enc: enc, session: session, time: time.Now().Truncate(time.Second)}
	return a, a.header(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": fmt.Sprint(archiveMark, archiveV)}}, a.folder(""))
}

func (a *archiveWriter) frame(b []byte) error {
	a.buf = a.enc.EncodeAll(b, a.buf[:0])
	if _, err := a.to.Write(a.buf); err != nil {
		return err
	}
	a.table = binary.LittleEndian.AppendUint32(a.table, uint32(len(a.buf)))
	a.table = binary.LittleEndian.AppendUint32(a.table, uint32(len(b)))
	a.n += int64(len(a.buf))
	return nil
}

func (a *archiveWriter) folder(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: a.session + "/" + name, Mode: 0o700, ModTime: a.time}
}

// header writes headers as one frame.
func (a *archiveWriter) header(headers ...*tar.Header) error {
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, h := range headers {
		if err := out.WriteHeader(h); err != nil {
			return err
		}
	}
	return a.frame(b.Bytes())
}

// file writes a member, and the sum of its bytes into it.
func (a *archiveWriter) file(ctx context.Context, m *member) error {
	if err := a.header(&tar.Header{Typeflag: tar.TypeReg, Name: a.session + "/" + m.path(), Size: m.size, Mode: 0o600, ModTime: a.time}); err != nil {
		return err
	}
	r, err := m.open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if a.in == nil {
		a.in = make([]byte, frameBytes)
	}
	for left := m.size; left > 0; left -= frameBytes {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := a.in[:min(left, frameBytes)]
		if _, err := io.ReadFull(r, b); errors.Is(err, errFrame) {
			return archiveFailed(a.session, fault("a part of it is damaged"))
		} else if err != nil {
			return schema.Errorf(schema.LogReadFailed, "%s of session %s cannot be read: %s", m.path(), a.session, plain(err)).With("session", a.session).Cause(err)
		}
		h.Write(b)
		b = b[:padded(int64(len(b)))]
		clear(b[min(left, frameBytes):])
		if err := a.frame(b); err != nil {
			return err
		}
	}
	h.Sum(m.sum[:0])
	return nil
}

// end writes the end of the tar file, and the table.
func (a *archiveWriter) end() error {
	if err := a.frame(make([]byte, 2*tarBlock)); err != nil {
		return err
	}
	n := len(a.table) / tableEntry
	b := binary.LittleEndian.AppendUint32(nil, tableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(a.table)+tableTrailer))
	b = append(b, a.table...)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = append(b, 0)
	b = binary.LittleEndian.AppendUint32(b, tableEnd)
	k, err := a.to.Write(b)
	a.n += int64(k)
	return err
}

// frames is how many an archive of these members has.
func frames(members []*member) (n int64) {
	n = 3 // the first, the folder of blobs, the end
	for _, m := range members {
		n += 1 + (m.size+frameBytes-1)/frameBytes
	}
	return n
}

const packPrefix = ".pack-"

// sweepPacks removes what packers of a session have left that did not live to
// give it its name. Whoever calls holds the session's lease: an archive that is
// renamed by a packer that has lost it, and did not notice, is not there any more.
func sweepPacks(dir *os.Root, session string) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, packPrefix+session+".") {
			if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// makeArchives makes the folder of archives, and its name durable.
func (f *Files) makeArchives() (*os.Root, error) {
	if err := f.root.Mkdir(archiveFolder, 0o700); err == nil {
		if err := f.root.Chmod(archiveFolder, 0o700); err != nil { // whatever the umask says
			return nil, err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := f.archiveDir()
	if err != nil {
		return nil, err
	}
	if err := f.syncDir(f.root); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func (f *Files) syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.faults.Synced(d), d.Close())
}

// writeArchive writes an archive of these members in place of the one that may
// be there, and returns its size once it is sure: synced under a temporary
// name, read back from the disk and compared byte by byte, and only then given
// its name, which is synced too. sure is called before that, and may object.
func (f *Files) writeArchive(ctx context.Context, session string, members []*member, sure func() error) (size int64, err error) {
	failed := func(what string, err error) (int64, error) {
		if _, ok := errors.AsType[*schema.Error](err); ok {
			return 0, err
		}
		return 0, schema.Errorf(schema.LogWriteFailed, "session %s cannot be packed: %s: %s", session, what, plain(err)).
			With("session", session).With("cause", plain(err)).Cause(err)
	}
	if n := frames(members); n > maxFrames {
		return 0, schema.Errorf(schema.PayloadTooLarge, "session %s is too large for an archive: %d parts; the limit is %d", session, n, maxFrames).With("session", session)
	}
	dir, err := f.makeArchives()
	if err != nil {
		return failed("the folder of archives cannot be made", err)
	}
	defer dir.Close()
	if err := sweepPacks(dir, session); err != nil {
		return failed("the folder of archives cannot be swept", err)
	}
	tmp := packPrefix + session + "." + ulid.Make().String()
	file, err := dir.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return failed("the archive cannot be made", err)
	}
	defer file.Close()
	defer func() {
		if err != nil {
			_ = dir.Remove(tmp) // a leftover is swept by the next packer
		}
	}()
	if err := file.Chmod(0o600); err != nil {
		return failed("the archive's mode cannot be set", err)
	}
	if size, err = f.pourArchive(ctx, session, file, members); err != nil {
		return failed("the archive cannot be written", err)
	}
	if err := f.readBack(ctx, session, file, size, members); err != nil {
		return failed("the archive cannot be read back", err)
	}
	if err := sure(); err != nil {
		return 0, err
	}
	if err := dir.Rename(tmp, session+archiveExt); err != nil {
		return failed("the archive cannot be given its name", err)
	}
	f.faults.Passed("renamed")
	if err := f.syncDir(dir); err != nil {
		return failed("the folder of archives cannot be synced", err)
	}
	// What is taken away next must be where readers look.
	fi, err := file.Stat()
	if err != nil {
		return failed("the archive cannot be looked at", err)
	}
	if at, err := dir.Lstat(session + archiveExt); err != nil || !os.SameFile(at, fi) || at.Size() != size {
		return failed("the archive is not at its name", cmpErr(err))
	}
	return size, nil
}

func cmpErr(err error) error {
	if err == nil {
		err = fs.ErrNotExist
	}
	return err
}

// pourArchive writes the bytes of an archive and makes them durable.
func (f *Files) pourArchive(ctx context.Context, session string, file *os.File, members []*member) (int64, error) {
	a, err := newArchiveWriter(writerFunc(func(b []byte) (int, error) { return f.faults.Written(file, b) }), session)
	if err != nil {
		return 0, err
	}
	blobs := false
	for _, m := range members {
		if m.epoch == 0 && !blobs {
			blobs = true
			if err := a.header(a.folder("blobs/")); err != nil {
				return 0, err
			}
		}
		if err := a.file(ctx, m); err != nil {
			return 0, err
		}
	}
	if err := a.end(); err != nil {
		return 0, err
	}
	return a.n, f.faults.Synced(file)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// readBack unpacks all of an archive, from the disk, and compares it with what
// was read of the members.
func (f *Files) readBack(ctx context.Context, session string, file *os.File, size int64, members []*member) error {
	if err := f.faults.Dropped(file); err != nil {
		return err
	}
	differs := func(what string) error {
		return schema.Errorf(schema.LogWriteFailed, "the archive of session %s is not what was written: %s", session, what).With("session", session)
	}
	x, err := readIndex(file, size, session)
	if err != nil {
		return errors.Join(differs("it cannot be read"), err)
	}
	if len(x.segments)+len(x.blobs) != len(members) {
		return differs("files are missing")
	}
	for i, have := range append(x.segments[:len(x.segments):len(x.segments)], x.blobs...) {
		m := members[i]
		if have.path() != m.path() || have.size != m.size {
			return differs(m.path())
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h := sha256.New()
		r := x.open(file, have, false) // not closed: the file is not ours
		if _, err := io.Copy(h, struct{ io.Reader }{r}); err != nil {
			return errors.Join(differs(m.path()), err)
		}
		if [sha256.Size]byte(h.Sum(nil)) != m.sum {
			return differs(m.path())
		}
	}
	return nil
}
