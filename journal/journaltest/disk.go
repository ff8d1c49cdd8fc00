package journaltest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"steno/journal"
)

// sector is the unit in which a disk writes: of what was not synced each may
// be there or be zeros.
const sector = 512

// A Disk is what stands in a store at one moment, and how much of it is sure
// to outlast a power cut. Of the rest anything may be left: a file may end at
// any byte, any sector may be zeros, a name may be missing, or be there before
// what it names. A file of a commit log is written in place: what was written
// over and not synced may be as it was, too.
type Disk []DiskFile

// A DiskFile is a file, or a folder, which has no data.
type DiskFile struct {
	Path  string // from the store's folder
	Dir   bool
	Data  []byte
	Kept  int  // as many bytes are synced
	Named bool // so is its name in its folder

	// Of a file that is written in place, without zeros at its end, which no
	// reader can tell from its end: what was synced, nil where nothing was, and
	// the parts, each in one sector, that were written since.
	Synced []byte
	parts  [][2]int
}

// inPlace says of a part of a file that is written in place what is left.
func (f *DiskFile) inPlace(left func(part int) string) []byte {
	b := make([]byte, max(len(f.Synced), len(f.Data)))
	copy(b, f.Synced)
	for i, p := range f.parts {
		to := min(p[1], len(f.Data))
		switch at := min(p[0], to); left(i) {
		case "new":
			copy(b[at:], f.Data[at:to])
		case "zeros":
			clear(b[at:to])
		}
	}
	return trim(b)
}

func trim(b []byte) []byte {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return b[:n]
}

// An Image is what a disk holds after a power cut, by path; nil for a folder.
type Image map[string][]byte

// Disk looks at the sessions, archives and commit logs of a store that Faulty has
// made. Killing a process shows nothing of this, since the page cache outlives
// it. Beats are left out: nobody syncs them.
func (x *Faults) Disk(t testing.TB, store *journal.Files) (d Disk) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	look := func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		logFile := strings.HasPrefix(e.Name(), "log-")
		if e.Name() == "beat" {
			return nil
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(store.Dir(), path)
		if err != nil {
			return err
		}
		f := DiskFile{Path: rel, Dir: fi.IsDir(), Named: true}
		if rel != "sessions" { // which is made before faults can be told of it
			dir, err := os.Stat(filepath.Dir(path))
			if err != nil {
				return err
			}
			f.Named = x.kept(dir).names[filepath.Base(path)]
		}
		if !f.Dir {
			if f.Data, err = os.ReadFile(path); err != nil {
				return err
			}
			k := x.kept(fi)
			if logFile {
				f.Data, f.Synced = trim(f.Data), trim(slices.Clone(k.data))
				f.Kept = len(f.Data)
				for _, s := range k.dirty {
					f.parts = append(f.parts, sectors(int(s.from), min(int(s.to), len(f.Data)))...)
				}
				d = append(d, f)
				return nil
			}
			f.Kept = int(min(k.size, int64(len(f.Data))))
			if k.cache != nil {
				f.Kept = int(min(k.cache[0], int64(f.Kept)))
			}
		}
		d = append(d, f)
		return nil
	}
	for _, folder := range []string{"sessions", "archive", "holders"} {
		err := filepath.WalkDir(filepath.Join(store.Dir(), folder), func(path string, e fs.DirEntry, err error) error {
			if err = look(path, e, err); folder != "sessions" && errors.Is(err, fs.ErrNotExist) {
				return nil // there is none, or it has just gone
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// image builds an Image; left says what is left of a file, named whether a
// name that is not synced is there.
func (d Disk) image(left func(f DiskFile) []byte, named func(f DiskFile) string) Image {
	img := Image{}
	for _, f := range d {
		path := f.Path
		if !f.Named {
			if path = named(f); path == "" {
				continue
			}
		}
		if _, ok := img[filepath.Dir(path)]; !ok && filepath.Dir(path) != "." {
			continue // with its folder
		}
		if img[path] = nil; !f.Dir {
			img[path] = left(f)
		}
	}
	return img
}

// A Cut says what a disk has, after a power cut, of what was never synced.
type Cut struct {
	Bytes string // absent; zeros in their place; half of them
	Names bool   // the names in a folder that no sync of the folder has stored
}

// Cuts are the plainest ways.
var Cuts = []Cut{{"absent", false}, {"absent", true}, {"zeros", false}, {"zeros", true}, {"half", false}, {"half", true}}

// Cut is the disk after one of the plain cuts.
func (d Disk) Cut(c Cut) Image {
	return d.image(func(f DiskFile) []byte {
		if f.written() {
			return f.inPlace(func(i int) string {
				switch {
				case c.Bytes == "zeros":
					return "zeros"
				case c.Bytes == "half" && i < len(f.parts)/2:
					return "new"
				}
				return "old"
			})
		}
		b := slices.Clone(f.Data)
		switch c.Bytes {
		case "absent":
			return b[:f.Kept]
		case "zeros":
			clear(b[f.Kept:])
		case "half":
			return b[:f.Kept+(len(b)-f.Kept)/2]
		}
		return b
	}, func(f DiskFile) string {
		if c.Names {
			return f.Path
		}
		return ""
	})
}

// Random is one of all the ways in which the power may leave the disk.
func (d Disk) Random(r *rand.Rand) Image {
	return d.image(func(f DiskFile) []byte {
		if f.written() {
			most := r.IntN(len(lefts) + 1) // of one kind, or all mixed
			return f.inPlace(func(int) string {
				if most < len(lefts) {
					return lefts[most]
				}
				return lefts[r.IntN(len(lefts))]
			})
		}
		b := slices.Clone(f.Data)
		if r.IntN(3) > 0 {
			b = b[:f.Kept+r.IntN(len(b)-f.Kept+1)]
		}
		if r.IntN(2) > 0 {
			for _, s := range sectors(f.Kept, len(b)) {
				if r.IntN(2) > 0 {
					clear(b[s[0]:s[1]])
				}
			}
		}
		return b
	}, func(f DiskFile) string {
		switch name := filepath.Base(f.Path); {
		case r.IntN(2) > 0:
			return f.Path
		case strings.HasSuffix(name, ".jsonl") && r.IntN(2) > 0:
			return filepath.Join(filepath.Dir(f.Path), ".claim-"+name) // not yet renamed
		}
		return ""
	})
}

// lefts are what may be left of a sector that was written in place.
var lefts = []string{"new", "old", "zeros"}

// written reports whether a file is written in place.
func (f *DiskFile) written() bool {
	return f.Synced != nil || strings.HasPrefix(filepath.Base(f.Path), "log-")
}

// sectors cuts a range of a file into the parts that lie in one sector each.
func sectors(from, to int) (s [][2]int) {
	for from < to {
		end := min(to, from/sector*sector+sector)
		s = append(s, [2]int{from, end})
		from = end
	}
	return s
}

// Lost says how much of a disk no sync has stored, in bytes and in names.
func (d Disk) Lost() (bytes, names int) {
	for _, f := range d {
		bytes += len(f.Data) - f.Kept
		for _, p := range f.parts {
			bytes += p[1] - p[0]
		}
		if !f.Named {
			names++
		}
	}
	return bytes, names
}

// All yields every way in which the power may leave the disk, but that of file
// ends only each step-th is taken, with those next to a newline: every end,
// with every choice of sectors that are zeros, with every choice of names. Of a
// file that is written in place every sector is as it was or as it is, or all
// are zeros.
func (d Disk) All(step int, yield func(Image)) { d.all(nil, step, yield) }

func (d Disk) all(done Disk, step int, yield func(Image)) {
	if len(d) == 0 {
		yield(done.image(func(f DiskFile) []byte { return f.Data }, func(f DiskFile) string { return "" }))
		return
	}
	f, rest := d[0], d[1:]
	next := func(f DiskFile) { rest.all(append(done[:len(done):len(done)], f), step, yield) }
	if !f.Named {
		next(f)
		f.Named = true
	}
	if f.written() {
		parts := min(len(f.parts), 4) // those behind go with the last
		for choice := range 1<<parts + 1 {
			g := f
			g.Data = f.inPlace(func(i int) string {
				switch {
				case choice == 1<<parts:
					return "zeros"
				case choice>>min(i, parts-1)&1 != 0:
					return "new"
				}
				return "old"
			})
			next(g)
		}
		return
	}
	for end := f.Kept; end <= len(f.Data); end++ {
		near := end == f.Kept || end == len(f.Data) || f.Data[end-1] == '\n' || f.Data[end] == '\n' || end%sector == 0
		if !near && end%step != 0 {
			continue
		}
		parts := sectors(f.Kept, end)
		for choice := range 1 << len(parts) {
			g := f
			g.Data = slices.Clone(f.Data[:end])
			for i, s := range parts {
				if choice>>i&1 != 0 {
					clear(g.Data[s[0]:s[1]])
				}
			}
			next(g)
		}
	}
}

// Files writes the image into a store of its own.
func (img Image) Files(t testing.TB) *journal.Files {
	t.Helper()
	store := Files(t)
	for path, b := range img {
		full := filepath.Join(store.Dir(), path)
		err := os.MkdirAll(filepath.Dir(full), 0o700)
		if err == nil && b == nil {
			err = os.MkdirAll(full, 0o700)
		} else if err == nil {
			err = os.WriteFile(full, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// Logged reports whether anything is in a commit log.
func (img Image) Logged() bool {
	for path, b := range img {
		if strings.HasPrefix(filepath.Base(path), "log-") && len(b) > 0 {
			return true
		}
	}
	return false
}

// LeaveOutLogs takes all files of commit logs away.
func (img Image) LeaveOutLogs() {
	maps.DeleteFunc(img, func(path string, _ []byte) bool { return strings.HasPrefix(path, "holders") })
}

// Memory puts the segments and blobs of the image into a store in memory, which
// knows of no commit log.
func (img Image) Memory() *Memory {
	m := NewMemory()
	for path, b := range img {
		var epoch uint64
		dir, name := filepath.Split(path)
		if n, _ := fmt.Sscanf(name, "%d.jsonl", &epoch); n == 1 && b != nil {
			m.Put(filepath.Base(dir), epoch, b)
		}
		if filepath.Base(dir) == "blobs" && b != nil {
			sum, packed := strings.CutSuffix(name, ".zst")
			if packed {
				b, _ = unpack.DecodeAll(b, []byte{}) // what cannot be unpacked is no blob
			}
			m.PutBlob(filepath.Base(filepath.Dir(filepath.Clean(dir))), sum, b)
		}
	}
	return m
}

var unpack, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1)) // errs only for options
