package journal

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"steno/schema"
)

// An archive is a tar file in zstd frames with a table of the frames behind it,
// which is the seekable format of zstd's contrib folder: "tar --zstd -xf"
// unpacks it, and a reader goes to any place of any file in it. Each header has
// a frame of its own, and each file begins a frame and has one for each MiB, so
// where a byte stands follows from its file's first frame. schema/FORMAT.md has
// it all.
const (
	archiveExt   = ".tar.zst"
	archiveMark  = "steno-archive " // and the version, in a pax comment
	archiveV     = 1
	frameBytes   = 1 << 20
	packedFrame  = frameBytes + 64<<10 // a frame that does not shrink grows by less
	maxHeader    = 8 << 10             // of a frame of headers
	maxFrames    = 1 << 18             // in all, and so are 256 GiB: a reader's memory and time are bounded
	tarBlock     = 512
	tableMagic   = 0x184D2A5E
	tableEnd     = 0x8F92EAB1
	tableEntry   = 8
	tableTrailer = 9
	zstdMagic    = 0xFD2FB528
)

// An index says where everything stands in an archive.
type index struct {
	info     os.FileInfo // of the file it was read from
	ends     []int64     // where each frame ends
	segments []packed    // by epoch
	blobs    []packed    // by name
}

// packed is a file in an archive.
type packed struct {
	epoch uint64 // 0 of a blob
	name  string // of a blob; a segment's follows from its epoch
	size  int64
	frame int // its first, behind that of its header
}

func (p packed) path() string {
	if p.epoch > 0 {
		return fmt.Sprintf("%06d.jsonl", p.epoch)
	}
	return "blobs/" + p.name
}

func (x *index) segment(epoch uint64) (packed, bool) {
	i, ok := slices.BinarySearchFunc(x.segments, epoch, func(p packed, epoch uint64) int { return cmp.Compare(p.epoch, epoch) })
	if !ok {
		return packed{}, false
	}
	return x.segments[i], true
}

func (x *index) blob(name string) (packed, bool) {
	i, ok := slices.BinarySearchFunc(x.blobs, name, func(p packed, name string) int { return strings.Compare(p.name, name) })
	if !ok {
		return packed{}, false
	}
	return x.blobs[i], true
}

// begin is where a frame begins in the file.
func (x *index) begin(frame int) int64 {
	if frame == 0 {
		return 0
	}
	return x.ends[frame-1]
}

// errFrame is why a part of an archive cannot be unpacked.
var errFrame = errors.New("a part of the archive is damaged")

// unframe unpacks one frame, which must hold just n bytes: never more than that
// is unpacked. Errors that are not errFrame are the file's.
func (x *index) unframe(f io.ReaderAt, frame, n int, buf *buffers) error {
	from, to := x.begin(frame), x.ends[frame]
	buf.in = slices.Grow(buf.in[:0], int(to-from))[:to-from]
	buf.out = slices.Grow(buf.out[:0], n)[:n]
	if _, err := f.ReadAt(buf.in, from); err == io.EOF {
		return errFrame // somebody has cut it since it was opened
	} else if err != nil {
		return err
	}
	dec, err := unpacker()
	if err != nil {
		return err
	}
	if b, err := dec.DecodeAll(buf.in, buf.out[:0:n]); err != nil || len(b) != n {
		return errors.Join(errFrame, err)
	}
	return nil
}

// buffers are what a frame is unpacked from and to.
type buffers struct{ in, out []byte }

// unpacker is one for all readers; it allocates no more than it is given.
var unpacker = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(frameBytes), zstd.WithDecoderMaxWindow(frameBytes), zstd.WithDecodeAllCapLimit(true))
})

// A fault is what is wrong with an archive; it is no failure of the disk.
type fault string

func (f fault) Error() string { return string(f) }

const odd = fault("it is not built as an archive is")

// errNewer is the fault of an archive that a newer version has written.
var errNewer = errors.New("it is of a newer version")

// readIndex reads what stands in an archive of a session. Everything that does
// not look as this package writes it is a fault, and nothing is read or kept
// beyond the limits above, whatever the file says of itself.
func readIndex(f io.ReaderAt, size int64, session string) (*index, error) {
	sizes, x, err := readTable(f, size)
	if err != nil {
		return nil, err
	}
	var buf buffers
	read := func(frame int) ([]*tar.Header, error) {
		if sizes[frame] > maxHeader {
			return nil, odd
		}
		if err := x.unframe(f, frame, sizes[frame], &buf); err != nil {
			return nil, err
		}
		return headers(buf.out)
	}
	first, err := read(0)
	if err != nil {
		return nil, err
	}
	if len(first) != 2 || first[0].Typeflag != tar.TypeXGlobalHeader {
		return nil, fault("it is none of ours")
	}
	mark, found := strings.CutPrefix(first[0].PAXRecords["comment"], archiveMark)
	if v, err := strconv.Atoi(mark); !found || err != nil {
		return nil, fault("it is none of ours")
	} else if v > archiveV {
		return nil, errNewer
	}
	if !isFolder(first[1], session+"/") {
		return nil, fault("it is not of this session")
	}
	last := len(sizes) - 1
	blobs := false // the folder of blobs was named
	for frame := 1; frame < last; {
		h, err := read(frame)
		if err != nil {
			return nil, err
		}
		frame++
		if len(h) == 1 && !blobs && isFolder(h[0], session+"/blobs/") {
			blobs = true
			continue
		}
		p, err := x.member(h, session, blobs)
		if err != nil {
			return nil, err
		}
		p.frame = frame
		for left := padded(p.size); left > 0; frame++ {
			if frame >= last || int64(sizes[frame]) != min(left, frameBytes) {
				return nil, odd
			}
			left -= frameBytes
		}
		if p.epoch > 0 {
			x.segments = append(x.segments, p)
		} else {
			x.blobs = append(x.blobs, p)
		}
	}
	if sizes[last] != 2*tarBlock {
		return nil, odd
	}
	if err := x.unframe(f, last, 2*tarBlock, &buf); err != nil {
		return nil, err
	}
	if !bytes.Equal(buf.out, make([]byte, 2*tarBlock)) {
		return nil, odd
	}
	return x, nil
}

// headers are those of one frame, in which nothing else is.
func headers(b []byte) (all []*tar.Header, err error) {
	from := bytes.NewReader(b)
	for in := tar.NewReader(from); from.Len() > 0; {
		h, err := in.Next()
		if err != nil {
			return nil, fault("a header in it cannot be read")
		}
		all = append(all, h)
		// What another reader of tar files may take for something else.
		for key := range h.PAXRecords {
			if key != "size" && !(key == "comment" && h.Typeflag == tar.TypeXGlobalHeader) {
				return nil, odd
			}
		}
		if h.Typeflag == tar.TypeReg {
			break // its bytes have frames of their own
		}
	}
	if from.Len() > 0 {
		return nil, odd
	}
	return all, nil
}

func isFolder(h *tar.Header, name string) bool { return h.Typeflag == tar.TypeDir && h.Name == name }

// member is the file that a header is about: a segment, then blobs, each once
// and in order, and nothing else.
func (x *index) member(h []*tar.Header, session string, blobs bool) (p packed, err error) {
	if len(h) != 1 {
		return p, odd
	}
	name, ours := strings.CutPrefix(h[0].Name, session+"/")
	alien := fault("it holds something that is no segment and no blob of this session, or not in order")
	if h[0].Typeflag != tar.TypeReg || !ours || h[0].Size < 0 || h[0].Size > maxFrames*frameBytes {
		return p, alien
	}
	p.size = h[0].Size
	if b, ok := strings.CutPrefix(name, "blobs/"); ok {
		n := len(x.blobs)
		if !blobs || !isBlobName(b) || n > 0 && x.blobs[n-1].name >= b {
			return p, alien
		}
		p.name = b
		return p, nil
	}
	digits, ok := strings.CutSuffix(name, ".jsonl")
	p.epoch, err = strconv.ParseUint(digits, 10, 63)
	n := len(x.segments)
	if !ok || err != nil || p.epoch == 0 || p.path() != name || len(digits) > 12 || blobs || n > 0 && x.segments[n-1].epoch >= p.epoch {
		return p, alien
	}
	return p, nil
}

func isBlobName(name string) bool {
	_, err := schema.ParseSum(strings.TrimSuffix(name, packedExt))
	return err == nil
}

// padded is how many bytes of a tar file a file's bytes take.
func padded(size int64) int64 { return (size + tarBlock - 1) / tarBlock * tarBlock }

// readTable reads the table behind the frames.
func readTable(f io.ReaderAt, size int64) (sizes []int, x *index, err error) {
	var head [4]byte
	var end [tableTrailer]byte
	if _, err := f.ReadAt(head[:], 0); err != nil && err != io.EOF {
		return nil, nil, err
	}
	if binary.LittleEndian.Uint32(head[:]) != zstdMagic {
		return nil, nil, fault("it is no zstd file")
	}
	cut := fault("its end is missing or damaged, or another program has made it")
	if size < tableTrailer+8 {
		return nil, nil, cut
	}
	if _, err := f.ReadAt(end[:], size-tableTrailer); err != nil && err != io.EOF {
		return nil, nil, err
	}
	n := int64(binary.LittleEndian.Uint32(end[:]))
	table := 8 + n*tableEntry + tableTrailer
	if binary.LittleEndian.Uint32(end[5:]) != tableEnd || end[4] != 0 || n < 2 || table > size {
		return nil, nil, cut
	}
	if n > maxFrames {
		return nil, nil, fault(fmt.Sprintf("it has %d parts; the limit is %d", n, maxFrames))
	}
	b := make([]byte, table-tableTrailer)
	if _, err := f.ReadAt(b, size-table); err == io.EOF {
		return nil, nil, cut // meanwhile
	} else if err != nil {
		return nil, nil, err
	}
	if binary.LittleEndian.Uint32(b) != tableMagic || int64(binary.LittleEndian.Uint32(b[4:])) != table-8 {
		return nil, nil, cut
	}
	x = &index{ends: make([]int64, n)}
	sizes = make([]int, n)
	at := int64(0)
	for i := range sizes {
		e := b[8+tableEntry*i:]
		in, out := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:])
		if in == 0 || in > packedFrame || out == 0 || out > frameBytes {
			return nil, nil, odd
		}
		at += int64(in)
		x.ends[i], sizes[i] = at, int(out)
	}
	if at != size-table {
		return nil, nil, cut
	}
	return sizes, x, nil
}

// A packedFile reads a file in an archive. Where a part of it cannot be
// unpacked, a lenient one has zeros in its place: as many as there were bytes,
// so that a reader names the lines that are gone and goes on behind them. It is
// for one goroutine at a time.
type packedFile struct {
	file    *os.File
	x       *index
	p       packed
	lenient bool
	at      int64
	buf     buffers
	frame   int // which of its frames is in buf.out, -1 for none
}

func (x *index) open(file *os.File, p packed, lenient bool) *packedFile {
	return &packedFile{file: file, x: x, p: p, lenient: lenient, frame: -1}
}

func (r *packedFile) Close() error { return r.file.Close() }

func (r *packedFile) Read(b []byte) (int, error) {
	n, err := r.ReadAt(b[:min(len(b), frameBytes)], r.at)
	r.at += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (r *packedFile) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		if at >= r.p.size {
			return n, io.EOF
		}
		k := int(at / frameBytes)
		if err := r.load(k); err != nil {
			return n, err
		}
		// What pads a file to a whole block is none of its bytes.
		here := r.buf.out[at%frameBytes : min(int64(len(r.buf.out)), r.p.size-int64(k)*frameBytes)]
		m := copy(b[n:], here)
		n, at = n+m, at+int64(m)
	}
	return n, nil
}

func (r *packedFile) load(k int) error {
	if r.frame == k {
		return nil
	}
	r.frame = -1
	err := r.x.unframe(r.file, r.p.frame+k, int(min(frameBytes, padded(r.p.size)-int64(k)*frameBytes)), &r.buf)
	if errors.Is(err, errFrame) && r.lenient {
		clear(r.buf.out)
		err = nil
	}
	if err == nil {
		r.frame = k
	}
	return err
}
