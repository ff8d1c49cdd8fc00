package lease

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"steno/schema"
)

// Interval is how often a holder beats, and Window how long one must be silent
// before it is not taken for alive any more.
const (
	Interval = 2 * time.Second
	Window   = 10 * time.Second
)

// A Clock is a machine's steady clock, CLOCK_MONOTONIC, which stands still
// while the machine sleeps: nobody is accused of having slept. It means
// something only in the boot and the time namespace it was read in. Where the
// system has no such clock, BootID is empty.
type Clock struct {
	BootID string `json:"boot_id"`
	TimeNS string `json:"time_namespace"`
	Nanos  int64  `json:"monotonic_ns"`
}

// A Beat is what a holder says of itself every Interval, for all sessions it
// holds, while its appends move. It is advisory: it tells an observer when to
// try, and is never what keeps two writers apart.
type Beat struct {
	Holder string `json:"holder"`
	Clock
	Count uint64 `json:"count"`
}

// beatSize is that of the file, whatever it says, so that a beat is rewritten
// in place. Nothing in a beat is long but the holder's id.
const beatSize = 512

// Line is the beat as it stands in holders/<holder>/beat: one line of JSON,
// filled up with spaces.
func (b Beat) Line() []byte {
	var o schema.Object
	text := o.Text("holder", b.Holder).Text("boot_id", b.BootID).Text("time_namespace", b.TimeNS).
		Raw("monotonic_ns", strconv.AppendInt(nil, b.Nanos, 10)).Uint("count", b.Count).Bytes()
	line := bytes.Repeat([]byte{' '}, beatSize)
	copy(line, text)
	line[beatSize-1] = '\n'
	return line
}

// Holders is the folder <dir>/holders of a store, and this process's own place
// in it. Its methods may be called from many goroutines. Reading needs no
// folder and makes none.
type Holders struct {
	store *os.Root

	mu     sync.Mutex
	hearts map[string]*heart // by holder; one, but for tests
	closed bool

	reading sync.Mutex // of what follows
	logs    map[string]indexed
	recent  []string // whose logs they are, the least recently read first
}

// NewHolders gives the holders of the store in a folder.
func NewHolders(store *os.Root) *Holders {
	return &Holders{store: store, hearts: map[string]*heart{}, logs: map[string]indexed{}}
}

// Beat reads the beat of a holder, nil if there is none that can be read. It
// follows no link and does not wait for a FIFO; what is no plain file of ours,
// or speaks of another holder, is no beat.
func (h *Holders) Beat(holder string) *Beat {
	if h == nil || !schema.ValidSession(holder) {
		return nil
	}
	dir, err := h.open(holder)
	if err != nil {
		return nil
	}
	defer dir.Close()
	f, err := openPlain(dir, "beat")
	if err != nil {
		return nil
	}
	defer f.Close()
	// A line that is being rewritten may be seen half old, half new: it counts
	// once it reads the same twice.
	var before, line [beatSize]byte
	for range 4 {
		if n, err := f.ReadAt(line[:], 0); n < beatSize || err != nil {
			return nil
		}
		if line == before {
			var b Beat
			if schema.Unmarshal(bytes.TrimRight(line[:], " \n"), &b) != nil || b.Holder != holder {
				return nil
			}
			return &b
		}
		before = line
	}
	return nil
}

// open opens the folder of a holder.
func (h *Holders) open(holder string) (*os.Root, error) {
	all, err := openFolder(h.store, "holders")
	if err != nil {
		return nil, err
	}
	defer all.Close()
	return openFolder(all, holder)
}

// errForeign is something in the place of what would be ours, errUnsafe what may
// be ours, and may be another's work.
var (
	errForeign = errors.New("this is none of ours")
	errUnsafe  = errors.New("others may write it, or it has a second name")
)

// openFolder opens a folder that is no link and that nobody else may write.
func openFolder(in *os.Root, name string) (*os.Root, error) {
	before, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, errForeign
	}
	if before.Mode().Perm()&0o022 != 0 {
		return nil, errUnsafe
	}
	dir, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if after, err := dir.Stat("."); err != nil || !os.SameFile(before, after) {
		dir.Close()
		return nil, errForeign
	}
	return dir, nil
}

// openPlain opens a file in the folder of a holder for reading.
func openPlain(dir *os.Root, name string) (*os.File, error) {
	self, err := dir.Stat(".")
	if err != nil {
		return nil, err
	}
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errForeign
	}
	if foreign(before, self) != "" {
		return nil, errUnsafe
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, err
	}
	if after, err := f.Stat(); err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, errForeign
	}
	return f, nil
}
