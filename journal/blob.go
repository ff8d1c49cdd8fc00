package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"

	"steno/schema"
)

// takeOut makes blobs of what is too large in entries.
func takeOut(entries []Entry) (small []Entry, blobs []schema.Blob, err error) {
	small = entries
	for i, in := range entries {
		data, b, err := schema.TakeOut(in.Data, in.Taken...)
		if err != nil {
			e := schema.AsError(err)
			e.Message = in.Type + ": " + e.Message
			return nil, nil, e
		}
		if len(b) == 0 {
			continue
		}
		if len(blobs) == 0 {
			small = slices.Clone(entries)
		}
		small[i].Data, blobs = data, append(blobs, b...)
	}
	return small, blobs, nil
}

// OpenBlob reads a blob of a session, and makes sure of it on the way: in place
// of io.EOF the last read gives CorruptLogLine, with the reason blob_mismatch,
// if the bytes are not those that ref names. CorruptLogLine with blob_missing:
// there is no such blob. A negative ref.Bytes stands for any length.
func OpenBlob(ctx context.Context, store Store, session string, ref schema.Ref) (io.ReadCloser, error) {
	r, size, err := lookAtBlob(ctx, store, session, ref)
	if err != nil {
		return nil, err
	}
	if ref.Bytes < 0 {
		ref.Bytes = size
	}
	return &sureBlob{r: r, session: session, ref: ref, hash: sha256.New()}, nil
}

// lookAtBlob opens a blob and says what can be said of it without reading it.
func lookAtBlob(ctx context.Context, store Store, session string, ref schema.Ref) (io.ReadCloser, int64, error) {
	r, size, err := store.Blob(ctx, session, ref.SHA256)
	switch {
	case errors.Is(err, schema.NotFound):
		return nil, 0, blobError(session, ref, schema.BlobMissing, "is not there")
	case errors.Is(err, schema.UnsafeStatePath): // the log stays readable beside it
		return nil, 0, schema.AsError(blobError(session, ref, schema.BlobMismatch, "is no plain file of ours")).Cause(err)
	case err != nil:
		return nil, 0, err
	case size >= 0 && ref.Bytes >= 0 && size != ref.Bytes || max(size, ref.Bytes) > schema.MaxBlob:
		r.Close()
		return nil, 0, blobError(session, ref, schema.BlobMismatch, "has another length")
	}
	return r, size, nil
}

func blobError(session string, ref schema.Ref, why schema.Reason, what string) error {
	return schema.Errorf(schema.CorruptLogLine, "blob %s %s", ref.SHA256, what).With("session", session).
		With("reason", string(why)).With("sha256", ref.SHA256)
}

type sureBlob struct {
	r       io.ReadCloser
	session string
	ref     schema.Ref
	hash    hash.Hash
	n       int64
	err     error
}

func (b *sureBlob) Close() error { return b.r.Close() }

func (b *sureBlob) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	most := b.ref.Bytes
	if most < 0 {
		most = schema.MaxBlob
	}
	// One byte more than there may be, so that what is too long shows; a packed
	// blob is not unpacked any further.
	p = p[:min(int64(len(p)), most+1-b.n)]
	n, err := b.r.Read(p)
	b.hash.Write(p[:n])
	b.n += int64(n)
	switch {
	case b.n > most:
		n, err = 0, blobError(b.session, b.ref, schema.BlobMismatch, "is longer than it was")
	case err == io.EOF && b.ref.Bytes >= 0 && b.n < b.ref.Bytes:
		err = blobError(b.session, b.ref, schema.BlobMismatch, "is shorter than it was")
	case err == io.EOF && hex.EncodeToString(b.hash.Sum(nil)) != b.ref.SHA256:
		err = blobError(b.session, b.ref, schema.BlobMismatch, "does not hold what its name says")
	case errors.Is(err, errPacked), errors.Is(err, errFrame):
		err = schema.AsError(blobError(b.session, b.ref, schema.BlobMismatch, "cannot be unpacked")).Cause(err)
	case err != nil && err != io.EOF:
		err = schema.Errorf(schema.LogReadFailed, "a blob of session %s cannot be read: %s", b.session, plain(err)).With("session", b.session).Cause(err)
	}
	b.err = err
	return n, err
}

// Whole is the data of an event as its writer was given it: with the values of
// its blobs in their places. CorruptLogLine: one is missing or is not what it
// was. It needs memory for all of it.
func Whole(ctx context.Context, store Store, session string, data []byte) ([]byte, error) {
	return schema.PutBack(data, func(b schema.Blob) (jsontext.Value, error) { return wholeBlob(ctx, store, session, b) })
}

func wholeBlob(ctx context.Context, store Store, session string, b schema.Blob) (jsontext.Value, error) {
	r, err := OpenBlob(ctx, store, session, b.Ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var text bytes.Buffer
	text.Grow(int(min(b.Bytes, 64<<20)) + bytes.MinRead) // what a line says may be wrong
	if _, err := text.ReadFrom(r); err != nil {
		return nil, err
	}
	return b.Value(text.Bytes())
}

// Whole is [Whole] for an event of this session.
func (j *Journal) Whole(ctx context.Context, data []byte) ([]byte, error) {
	return Whole(ctx, j.store, j.session, data)
}

const (
	packedExt = ".zst"
	// maxWindow bounds the memory that unpacking takes.
	maxWindow = 8 << 20
	// packSample is how much of a blob is packed to see whether it shrinks.
	packSample = 128 << 10
)

// Blob opens the file of a blob, packed or not.
func (f *Files) Blob(_ context.Context, session, sha256 string) (io.ReadCloser, int64, error) {
	if _, err := schema.ParseSum(sha256); err != nil {
		return nil, 0, err // it becomes a file name
	}
	d, err := f.dir(session)
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	name := sha256
	file, err := d.OpenBlob(name)
	if errors.Is(err, schema.NotFound) {
		name += packedExt
		file, err = d.OpenBlob(name)
	}
	if errors.Is(err, schema.NotFound) {
		return f.blobArchived(session, sha256, err)
	}
	if err != nil {
		return nil, 0, err
	}
	return blobOf(session, name, file)
}

func blobOf(session, name string, file *os.File) (io.ReadCloser, int64, error) {
	fi, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, schema.Errorf(schema.LogReadFailed, "a blob of session %s cannot be read: %s", session, plain(err)).With("session", session).Cause(err)
	}
	return blobFile(session, name, file, fi.Size())
}

// A blobSource is the file of a blob, or its bytes in an archive.
type blobSource interface {
	io.ReadCloser
	io.ReaderAt
}

func blobFile(session, name string, file blobSource, length int64) (io.ReadCloser, int64, error) {
	head := make([]byte, zstd.HeaderMaxSize)
	n, err := file.ReadAt(head, 0)
	if errors.Is(err, errFrame) { // whoever reads on is told
		n, err = 0, nil
	}
	if err != nil && err != io.EOF {
		file.Close()
		return nil, 0, schema.Errorf(schema.LogReadFailed, "a blob of session %s cannot be read: %s", session, plain(err)).With("session", session).Cause(err)
	}
	if len(name) == 2*sha256.Size {
		return file, length, nil
	}
	size, h := int64(-1), zstd.Header{}
	if h.Decode(head[:n]) == nil && h.HasFCS && h.FrameContentSize <= schema.MaxBlob {
		size = int64(h.FrameContentSize)
	}
	return &packedBlob{file: file}, size, nil
}

// errPacked is why a blob cannot be unpacked that can be read.
var errPacked = errors.New("no sound zstd frame")

// A packedBlob unpacks as it is read.
type packedBlob struct {
	file blobSource
	dec  *zstd.Decoder
	err  error // of the file
}

func (p *packedBlob) Read(b []byte) (int, error) {
	if p.dec == nil {
		var err error
		p.dec, err = zstd.NewReader(readerFunc(p.read), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return 0, err
		}
	}
	n, err := p.dec.Read(b)
	if err != nil && err != io.EOF {
		if p.err != nil {
			return n, p.err
		}
		return n, errors.Join(errPacked, err)
	}
	return n, err
}

// read keeps what goes wrong with the file apart from what is wrong in it.
func (p *packedBlob) read(b []byte) (int, error) {
	n, err := p.file.Read(b)
	if err != nil && err != io.EOF {
		p.err = err
	}
	return n, err
}

func (p *packedBlob) Close() error {
	if p.dec != nil {
		p.dec.Close()
	}
	return p.file.Close()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// Put stores a blob as a file, packed if that makes it smaller. One that is
// there is synced and read back from the disk; if it is not what its name says
// the right one takes its place, in the same form, since one that is not packed
// goes before one that is.
func (w *fileWriter) Put(ctx context.Context, blob *schema.Blob) error {
	ext, damaged := "", false
	if shrinks(blob) {
		ext = packedExt
	}
	for _, there := range []string{"", packedExt} {
		name := blob.SHA256 + there
		err := w.slot.SettleBlob(name, func(file *os.File, seen io.Writer) error { return holds(file, seen, name, blob.Ref) })
		if errors.Is(err, schema.NotFound) {
			continue
		}
		if !errors.Is(err, schema.CorruptLogLine) {
			return err // nil too
		}
		ext, damaged = there, true
		break
	}
	return w.slot.WriteBlob(blob.SHA256+ext, damaged, func(to io.Writer) error {
		if ext == "" {
			return pour(to, blob)
		}
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(maxWindow/4))
		if err != nil {
			return err
		}
		enc.ResetContentSize(to, blob.Bytes)
		if err := pour(enc, blob); err != nil {
			_ = enc.Close() // says the same
			return err
		}
		return enc.Close()
	})
}

// holds reads a blob's file, writes to seen what it reads, and closes it.
func holds(file *os.File, seen io.Writer, name string, ref schema.Ref) error {
	r, _, err := blobOf("", name, file)
	if err != nil {
		return err
	}
	b := &sureBlob{r: r, ref: ref, hash: sha256.New()}
	_, err = io.Copy(seen, b)
	err = errors.Join(err, b.Close())
	if err != nil && !errors.Is(err, schema.CorruptLogLine) {
		return schema.Errorf(schema.LogWriteFailed, "a blob that is there cannot be read back").With("outcome", NotStored.String()).Cause(err)
	}
	return err
}

func pour(to io.Writer, blob *schema.Blob) error {
	_, err := blob.WriteTo(to)
	return err
}

// shrinks packs the beginning of a blob to see whether it is worth it: a fifth
// less. Text that is nothing but noise has a sixth less, for no good.
func shrinks(blob *schema.Blob) bool {
	s := sample{}
	if err := pour(&s, blob); err != nil && err != io.EOF || len(s.b) == 0 {
		return false
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return false
	}
	defer enc.Close()
	return len(enc.EncodeAll(s.b, nil)) < len(s.b)/5*4
}

// A sample takes the beginning of what is written, then io.EOF.
type sample struct{ b []byte }

func (s *sample) Write(b []byte) (int, error) {
	n := min(len(b), packSample-len(s.b))
	s.b = append(s.b, b[:n]...)
	if len(s.b) == packSample {
		return n, io.EOF
	}
	return n, nil
}
