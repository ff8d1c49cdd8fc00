package journaltest

import (
	"io"
	"os"
	"strings"
)

// Those of a commit log, which come from goroutines of its own.
const (
	LogMake  = "log make"  // before a write or sync, of a folder too, that makes a file of it
	LogWrite = "log write" // before a write of records
	LogSync  = "log sync"  // before the sync of them
)

type span struct{ from, to int64 }

// ofLog reports whether a file is one of a commit log, which are written in
// place, or a folder that one is in.
func ofLog(f *os.File) bool {
	return !strings.Contains(f.Name(), "/sessions") && !strings.Contains(f.Name(), "/archive")
}

// FailLog makes the n-th LogMake, LogWrite or LogSync fail. What was written stays
// readable.
func (x *Faults) FailLog(point string, n int, err error) {
	x.add(point, n, func(*os.File) error { return err })
}

// ShortLog makes the n-th LogWrite store only its first bytes.
func (x *Faults) ShortLog(n, keep int, err error) {
	x.add(LogWrite, n, func(*os.File) error { return &shortWrite{keep, err} })
}

// CacheLog makes the n-th LogSync fail, and the disk keep what it
// had: the page cache shows what was written, and no later sync stores it.
func (x *Faults) CacheLog(n int, err error) {
	x.add(LogSync, n, func(f *os.File) error {
		fi, e := f.Stat()
		if e != nil {
			return e
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.kept(fi).dirty = nil
		return err
	})
}

// LeaveOutLogSync makes every LogSync from now on answer success and do nothing.
func (x *Faults) LeaveOutLogSync() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.noLog = true
}

// LeaveOutFileSync makes every Sync, but none of a commit log, from now on answer
// success and do nothing.
func (x *Faults) LeaveOutFileSync() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.noFile = true
}

// point says which point a write or a sync of a file is.
func (x *Faults) point(point string, f *os.File) string {
	if !ofLog(f) {
		return point
	}
	fi, err := f.Stat()
	if err != nil {
		return LogMake
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.kept(fi).data == nil {
		return LogMake
	}
	return map[string]string{Write: LogWrite, Sync: LogSync}[point]
}

// mark notes that so many bytes are about to be written where a file is.
func (x *Faults) mark(f *os.File, n int, inPlace bool) error {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept(fi)
	if k.told[f] == nil {
		k.told[f] = nil // it is open
	}
	if inPlace {
		k.dirty = append(k.dirty, span{at, at + int64(n)})
	}
	return nil
}

// owed gives the failure that a descriptor has not been told of yet.
func (x *Faults) owed(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept(fi)
	err = k.told[f]
	k.told[f] = nil
	return err
}

// stored notes that a sync has stored what was dirty when it began.
func (k *synced) stored(was []span, b [][]byte) {
	for i, s := range was {
		if end := s.from + int64(len(b[i])); int64(len(k.data)) < end {
			k.data = append(k.data, make([]byte, end-int64(len(k.data)))...)
		}
		copy(k.data[s.from:], b[i])
	}
	k.dirty = k.dirty[min(len(was), len(k.dirty)):]
}
