package lease

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"steno/schema"
)

// A Tail is the end of a segment as its holder's commit log has it, where the
// segment itself does not: whoever reads the segment takes Data from offset
// From on, and what the file has behind Data.
type Tail struct {
	From int64
	Data []byte
	Size int64 // of the file, as far as it was looked at
}

// End is the size of the segment with the tail laid over it.
func (t *Tail) End() int64 { return max(t.Size, t.From+int64(len(t.Data))) }

// tailWindow bounds a Tail: more than maxUnsynced is never durable in the log
// alone.
const tailWindow = maxUnsynced + 4*maxRecord

// An extent is where lines of a segment stand in a file of a log.
type extent struct {
	in     *logIndex
	place  int64 // of the lines
	offset int64 // in the segment
	bytes  int64
	bad    bool // the record was durable, and is damaged
}

type epochOf struct {
	session string
	epoch   uint64
}

// A logIndex is what a file of somebody's log has in it, as far as it was read.
// The file stays open: what is removed is not needed, and can yet be read.
type logIndex struct {
	id         string
	file       *os.File
	info       os.FileInfo
	first      uint64 // generation of its first record, 0 if that cannot be read
	generation uint64 // that counts
	end        int64  // up to here it is read
	locked     bool   // we hold its lock, as a sweeper
	searched   bool   // its writer is dead, and all of it was read
	synced     int64  // up to here a record says that it was durable
	extents    map[epochOf][]extent
	ends       map[epochOf]int64 // up to where the last of each goes
}

// maxIndexed is how many holders' logs are remembered. Whoever takes over all
// sessions of a dead process reads its log once.
const maxIndexed = 4

// indexed are the logs of one holder, by file name.
type indexed map[string]*logIndex

func (files indexed) close() {
	for _, x := range files {
		x.file.Close()
	}
}

// Tail gives what the log of the holder that wrote a segment has of it, where the
// file differs or ends before it; nil if it does neither. Of the file only the
// first size bytes are believed, all of them if size is negative. Who wrote the
// segment must be known to have sealed it, and nobody to have sealed one after
// it: a durable seal is final. fs.ErrPermission: the log may not be read.
func (d *Dir) Tail(holders *Holders, holder string, epoch uint64, size int64) (*Tail, error) {
	file, err := d.OpenSegment(epoch)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for range 10 {
		t, again, err := holders.tail(holder, epochOf{d.name, epoch}, file, size)
		if err != nil || !again {
			return t, err
		}
	}
	return nil, schema.Errorf(schema.LogReadFailed, "the commit log of session %s is reused as fast as it is read", d.name).With("session", d.name)
}

func (h *Holders) tail(holder string, of epochOf, file *os.File, size int64) (_ *Tail, again bool, err error) {
	h.reading.Lock()
	defer h.reading.Unlock()
	extents, err := h.extents(holder, of)
	if err != nil || len(extents) == 0 {
		return nil, false, err
	}
	// The log is read before the file: a living writer writes the file first.
	if size < 0 {
		fi, err := file.Stat()
		if err != nil {
			return nil, false, readFailed(of.session, err)
		}
		size = fi.Size()
	}
	slices.SortFunc(extents, func(a, b extent) int { return int(a.offset - b.offset) })
	extents = fitting(extents, size)
	if len(extents) == 0 {
		return nil, false, nil
	}
	var end int64
	for _, e := range extents {
		end = max(end, e.offset+e.bytes)
	}
	for len(extents) > 1 && extents[0].offset < end-tailWindow {
		extents = extents[1:]
	}
	// The segment ends before the first of them only where it was damaged, or the
	// log: such a gap is a line of zeros.
	have := min(size, end)
	from := min(extents[0].offset, have)
	base := extents[0].offset - min(extents[0].offset-from, tailWindow) // what is at from in own and laid
	own := make([]byte, end-base)
	n, err := file.ReadAt(own[:have-from], from)
	if err != nil && err != io.EOF {
		return nil, false, readFailed(of.session, err)
	}
	// Where the log has nothing the segment was durable before.
	laid := slices.Clone(own)
	covered := base + int64(n)
	for _, e := range extents {
		if _, err := e.in.file.ReadAt(laid[e.offset-base:e.offset-base+e.bytes], e.place); err != nil && !(e.bad && err == io.EOF) {
			return nil, false, readFailed(of.session, err)
		}
		if covered < e.offset { // so that the gap hides no line
			laid[e.offset-base-1] = '\n'
		}
		if covered = max(covered, e.offset+e.bytes); e.bad && e.bytes > 0 { // nor that
			laid[e.offset-base+e.bytes-1] = '\n'
		}
	}
	for _, e := range extents {
		if e.in.moved() {
			return nil, true, nil
		}
	}
	if bytes.Equal(own[:n], laid) {
		return nil, false, nil
	}
	differs := n
	for i := range n {
		if own[i] != laid[i] {
			differs = i
			break
		}
	}
	line := bytes.LastIndexByte(laid[:differs], '\n') + 1
	return &Tail{From: from + int64(line), Data: laid[line:], Size: size}, false, nil
}

// fitting leaves out, of extents in their order, what is damaged and stands in the
// segment, or says that it is where it cannot be.
func fitting(extents []extent, size int64) (fit []extent) {
	var end int64 // of those before
	for i, e := range extents {
		alone := e.offset >= end && (i+1 == len(extents) || e.offset+e.bytes <= extents[i+1].offset)
		if e.bad && (!alone || e.offset > max(end, size) || e.offset+e.bytes <= size) {
			continue
		}
		fit, end = append(fit, e), max(end, e.offset+e.bytes)
	}
	return fit
}

// extents reads the log of a holder as far as it has not been read, and gives
// what it has of one segment. The caller holds h.reading.
func (h *Holders) extents(holder string, of epochOf) ([]extent, error) {
	all := h.logs[holder]
	files, err := h.logFiles(holder)
	if errors.Is(err, errUnsafe) {
		// To go on without it could leave out what was acknowledged, for ever.
		return nil, unsafePath(of.session, "the commit log of its holder may be written by others, or has a second name").
			With("next", "see who can write the folder holders and what is in it; run: chmod -R go-w on it, and remove second names")
	}
	if err != nil {
		return nil, readFailed(of.session, err)
	}
	now := indexed{}
	for name, f := range files {
		if x := all[name]; x != nil && os.SameFile(x.info, f.info) {
			now[name] = x
			f.file.Close()
		} else {
			now[name] = f
		}
	}
	for name, x := range all {
		if now[name] != x {
			x.file.Close()
		}
	}
	h.remember(holder, now)
	var out []extent
	for _, x := range now {
		if err := x.read(); err != nil {
			return nil, readFailed(of.session, err)
		}
		out = append(out, x.extents[of]...)
	}
	return out, nil
}

func (h *Holders) remember(holder string, now indexed) {
	delete(h.logs, holder)
	h.recent = slices.DeleteFunc(h.recent, func(s string) bool { return s == holder })
	if len(now) == 0 {
		return
	}
	if len(h.recent) == maxIndexed {
		h.logs[h.recent[0]].close()
		delete(h.logs, h.recent[0])
		h.recent = h.recent[1:]
	}
	h.logs[holder], h.recent = now, append(h.recent, holder)
}

// logFiles opens the files of a holder's log. What is no plain file of ours is
// none.
func (h *Holders) logFiles(holder string) (_ indexed, err error) {
	files := indexed{}
	defer func() {
		if err != nil {
			files.close()
		}
	}()
	if !schema.ValidSession(holder) {
		return files, nil
	}
	dir, err := h.open(holder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errForeign) {
		return files, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := list(dir)
	if errors.Is(err, fs.ErrNotExist) { // its holder has just ended
		return files, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		id, ok := strings.CutPrefix(name, logPrefix)
		if !ok {
			continue
		}
		f, err := openPlain(dir, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errForeign) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		files[name] = &logIndex{id: id, file: f, info: info}
	}
	return files, nil
}

func list(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// line reads the first line of the record at a place.
func (x *logIndex) line(place int64) (line []byte, r record, ok bool) {
	b := make([]byte, maxRecordLine)
	n, _ := x.file.ReadAt(b, place)
	i := bytes.IndexByte(b[:n], '\n')
	if i < 0 {
		return nil, r, false
	}
	r, ok = parseRecord(b[:i], x.id)
	return b[:i], r, ok && r.place == place
}

// moved reports whether the file is of another generation by now. What is
// written first to a file that is used again is its first record.
func (x *logIndex) moved() bool {
	_, r, _ := x.line(0)
	return r.generation != x.first
}

// read reads on from where the file was read to, anew if it is of another
// generation than then.
func (x *logIndex) read() error {
	if x.searched && x.first > 0 {
		return nil
	}
	_, r, _ := x.line(0)
	if x.searched && r.generation == 0 {
		return nil // nobody has begun with it meanwhile
	}
	if x.searched = false; x.extents == nil || r.generation != x.first {
		x.first, x.generation, x.end, x.synced = r.generation, r.generation, 0, 0
		x.extents, x.ends = map[epochOf][]extent{}, map[epochOf]int64{}
	}
	// Then nothing is added any more. A file that is being made has its name before
	// its lock; it has its lock before its first record, which was looked for
	// before.
	dead := x.dead()
	if _, again, _ := x.line(0); again.generation != x.first {
		return nil // it was used again, and its writer may have died since: the next look reads it anew
	}
	gap, tried := int64(-1), int64(0)
	for place := x.end; ; {
		r, n, err := x.record(place)
		if err != nil {
			return err
		}
		if n > 0 {
			if gap >= 0 && r.synced > gap {
				if err := x.damaged(gap, place); err != nil {
					return err
				}
			}
			x.take(&r, place+n-r.bytes, false)
			place, gap = place+n, -1
			x.end = place
			continue
		}
		if gap < 0 {
			gap = place
		}
		// The end; or a write of several records that a power cut has left in
		// part, or damage: those behind are sound. One who lives writes record
		// behind record, and leaves no such place: what cannot be read yet will
		// be.
		if !dead {
			return nil
		}
		// First lines without what they announce take time, and somebody may have
		// put any number of them there.
		if tried += r.bytes; tried > 4*maxLog {
			place, err = -1, nil
		} else {
			place, err = x.next(place + 1)
		}
		if err != nil || place < 0 {
			x.searched = err == nil && supported(x.file) == nil // elsewhere a free lock proves nothing
			return err
		}
	}
}

// record takes the record at a place into the index. n is its length, 0 if there
// is none that counts: what is left of an older generation does not. Where the
// first record cannot be read, the highest generation is the newest.
func (x *logIndex) record(place int64) (r record, n int64, err error) {
	line, r, ok := x.line(place)
	if !ok || place+r.bytes > maxLog || r.generation != x.generation && (x.first > 0 || r.generation < x.generation) {
		return r, 0, nil
	}
	lines := make([]byte, r.bytes)
	begin := place + int64(len(line)) + 1
	if _, err := x.file.ReadAt(lines, begin); err == io.EOF {
		return r, 0, nil
	} else if err != nil {
		return r, 0, err
	}
	if !r.fits(line, lines) {
		return r, 0, nil
	}
	if r.generation > x.generation {
		x.generation = r.generation
		clear(x.extents)
		clear(x.ends)
		x.synced = 0
	}
	return r, begin + r.bytes - place, nil
}

// next finds the next place at which a record may begin, -1 if there is none. No
// file of a log is longer than maxLog.
func (x *logIndex) next(from int64) (place int64, err error) {
	begin := []byte(logMagic + x.id + " ")
	if x.first > 0 {
		begin = append(strconv.AppendUint(begin, x.first, 10), ' ')
	}
	b := make([]byte, 4<<10) // little at first: it may be near, time after time
	for at := from; ; b = make([]byte, 256<<10) {
		n, err := x.file.ReadAt(b, at)
		if err != nil && err != io.EOF {
			return -1, err
		}
		if i := bytes.Index(b[:n], begin); i >= 0 {
			return at + int64(i), nil
		}
		if err == io.EOF || at > maxLog {
			return -1, nil
		}
		at += int64(n - len(begin) + 1)
	}
}
