package lease

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"steno/schema"
)

// A commit log is files of records in the folder of their holder. A file is
// zeroed before it is used, so that no write to it changes its metadata, and is
// used again and again under a growing generation. A record says in one line of
// text what the bytes behind it are, which are lines as they stand in a segment:
//
//	steno-log 1 <log> <generation> <place> <synced> <session> <epoch> <offset> <bytes> <crc>
//
// place is where the record begins in its file, synced up to where the file was
// durable when it was written, offset where the lines stand in the segment. crc
// is the CRC-32C, in hex, of the line before it and of the lines behind it.
const (
	logPrefix = "log-" // of file names; the id of the log follows
	logMagic  = "steno-log 1 "
)

// A record is the first line of one.
type record struct {
	generation uint64
	place      int64
	synced     int64
	session    string
	epoch      uint64
	offset     int64
	bytes      int64
	crc        uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record to b.
func appendRecord(b []byte, id string, r *record, lines []byte) []byte {
	at := len(b)
	b = append(append(append(b, logMagic...), id...), ' ')
	b = append(strconv.AppendUint(b, r.generation, 10), ' ')
	b = append(strconv.AppendInt(b, r.place, 10), ' ')
	b = append(strconv.AppendInt(b, r.synced, 10), ' ')
	b = append(append(b, r.session...), ' ')
	b = append(strconv.AppendUint(b, r.epoch, 10), ' ')
	b = append(strconv.AppendInt(b, r.offset, 10), ' ')
	b = append(strconv.AppendInt(b, int64(len(lines)), 10), ' ')
	sum := crc32.Update(crc32.Checksum(b[at:], castagnoli), castagnoli, lines)
	b = hex.AppendEncode(b, []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	return append(append(b, '\n'), lines...)
}

// maxRecordLine bounds the first line of a record: ids of 128 bytes and numbers.
const maxRecordLine = 512

// parseRecord reads the first line of a record of one log, without its newline.
func parseRecord(line []byte, id string) (r record, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(logMagic+id+" "))
	if !ok {
		return r, false
	}
	f := strings.Split(string(rest), " ")
	if len(f) != 8 || !schema.ValidSession(f[3]) {
		return r, false
	}
	var bad bool
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 62)
		bad = bad || err != nil || s != strconv.FormatUint(n, 10)
		return n
	}
	r = record{generation: number(f[0]), place: int64(number(f[1])), synced: int64(number(f[2])), session: f[3],
		epoch: number(f[4]), offset: int64(number(f[5])), bytes: int64(number(f[6]))}
	sum, err := hex.DecodeString(f[7])
	if bad || err != nil || len(sum) != 4 || r.bytes > maxRecord {
		return r, false
	}
	r.crc = uint32(sum[0])<<24 | uint32(sum[1])<<16 | uint32(sum[2])<<8 | uint32(sum[3])
	return r, true
}

// fits reports whether the sum of a record is right.
func (r *record) fits(line, lines []byte) bool {
	return crc32.Update(crc32.Checksum(line[:len(line)-8], castagnoli), castagnoli, lines) == r.crc
}

// A logFile is one file of our own log.
type logFile struct {
	id, name   string
	path       string // whole
	dir        *os.Root
	file       *os.File // whose lock says that its process lives
	info       os.FileInfo
	size       int64
	generation uint64
	place      int64           // where the next record goes
	synced     int64           // up to here it is durable
	ends       map[*Slot]int64 // up to where each segment has lines in it
	failed     bool            // it is not used again
}

var zeros [256 << 10]byte

// newLogFile makes a zeroed file in the folder of a holder. Its name is
// durable when it returns.
func newLogFile(dir *os.Root, size int64, faults *Faults) (_ *logFile, err error) {
	f := &logFile{id: ulid.Make().String(), dir: dir, size: size, generation: 1, ends: map[*Slot]int64{}}
	f.name = logPrefix + f.id
	if f.file, err = dir.OpenFile(f.name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.remove()
		}
	}()
	if err := f.file.Chmod(0o600); err != nil {
		return nil, err
	}
	if ok, err := tryLock(f.file, exclusive); err != nil || !ok {
		return nil, errors.Join(errForeign, err)
	}
	if err := reserve(f.file, 0, size); IsFull(err) {
		return nil, err
	}
	for n := int64(0); n < size; n += int64(len(zeros)) {
		if _, err := faults.Written(f.file, zeros[:min(int64(len(zeros)), size-n)]); err != nil {
			return nil, err
		}
	}
	if err := faults.sync(f.file, f.file.Sync); err != nil {
		return nil, err
	}
	if err := syncFolder(dir, faults); err != nil {
		return nil, err
	}
	if f.info, err = f.file.Stat(); err == nil {
		_, err = f.file.Seek(0, io.SeekStart)
	}
	return f, err
}

// again makes a file ready for the next generation, once nothing in it is
// needed any more.
func (f *logFile) again() error {
	f.generation++
	f.place, f.synced = 0, 0
	clear(f.ends)
	_, err := f.file.Seek(0, io.SeekStart)
	return err
}

// remove takes the file away, if it is still at its name.
func (f *logFile) remove() {
	if own, err := f.file.Stat(); err == nil {
		if at, err := f.dir.Lstat(f.name); err == nil && os.SameFile(own, at) {
			_ = f.dir.Remove(f.name)
		}
	}
	f.close()
}

func (f *logFile) close() { f.file.Close() }

func syncFolder(dir *os.Root, faults *Faults) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return faults.sync(d, d.Sync)
}

// leads reports whether a whole path leads to a file or folder.
func leads(path string, to node) bool {
	var at unix.Stat_t
	for {
		if err := unix.Fstatat(unix.AT_FDCWD, path, &at, unix.AT_SYMLINK_NOFOLLOW); err != unix.EINTR {
			return err == nil && seenNode(&at) == to
		}
	}
}

// above is the folder that those of the sessions are in. It is looked for once in
// each commit, by its whole path, so that every slot need only look for its own
// folder in it. It is closed with the log, so that a store that is closed keeps no
// file system busy; a check that is under way then has it until its end.
type above struct {
	root *os.Root // as the slots have it
	file *os.File
	node node

	using  sync.RWMutex // guards the rest, and the file's descriptor
	closed bool
}

func (a *above) close() {
	a.using.Lock()
	defer a.using.Unlock()
	a.closed = true
	a.file.Close()
}

func openAbove(root *os.Root) *above {
	f, err := root.Open(".")
	if err != nil {
		return nil
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil
	}
	return &above{root: root, file: f, node: nodeOf(fi)}
}
