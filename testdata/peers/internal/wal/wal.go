// Package wal is the least that a log can be: no chain, no lease, no recovery.
// What is built on it is a limit, not a product.
package wal

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// size of the file, which is written over from its start once it is full.
const size = 256 << 20

// A Log is one file that is zeroed beforehand. Appends that come while a sync
// runs share the next one.
type Log struct {
	file   *os.File
	off    int64
	copies []*os.File

	mu     sync.Mutex
	wake   *sync.Cond
	buf    []byte
	next   *batch
	closed bool
	done   chan struct{}
}

type batch struct {
	done chan struct{}
	err  error
}

// Open makes a log in dir, with a file for each of so many sessions, into which
// their records are copied and not synced.
func Open(dir string, sessions int) (*Log, error) {
	f, err := os.Create(filepath.Join(dir, "wal"))
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, off); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	l := &Log{file: f, next: &batch{done: make(chan struct{})}, done: make(chan struct{})}
	l.wake = sync.NewCond(&l.mu)
	for i := range sessions {
		f, err := os.Create(filepath.Join(dir, "s"+strconv.Itoa(i)+".jsonl"))
		if err != nil {
			return nil, err
		}
		l.copies = append(l.copies, f)
	}
	go l.run()
	return l, nil
}

func (l *Log) run() {
	defer close(l.done)
	var spare []byte
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.buf) == 0 && !l.closed {
			l.wake.Wait()
		}
		if len(l.buf) == 0 {
			return
		}
		buf, b := l.buf, l.next
		l.buf, l.next = spare[:0], &batch{done: make(chan struct{})}
		l.mu.Unlock()
		b.err = l.write(buf)
		close(b.done)
		spare = buf
		l.mu.Lock()
	}
}

func (l *Log) write(b []byte) error {
	if l.off+int64(len(b)) > size {
		l.off = 0
	}
	if _, err := l.file.WriteAt(b, l.off); err != nil {
		return err
	}
	l.off += int64(len(b))
	return unix.Fdatasync(int(l.file.Fd()))
}

// Append returns once rec is durable.
func (l *Log) Append(session int, rec []byte) error {
	l.mu.Lock()
	l.buf = append(l.buf, rec...)
	b := l.next
	l.mu.Unlock()
	l.wake.Signal()
	if len(l.copies) > 0 {
		if _, err := l.copies[session%len(l.copies)].Write(rec); err != nil {
			return err
		}
	}
	<-b.done
	return b.err
}

// Close ends the log; nobody may be appending.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wake.Signal()
	<-l.done
	for _, f := range append(l.copies, l.file) {
		f.Close()
	}
}

// Each is a file that is synced for every append.
type Each struct {
	mu   sync.Mutex
	file *os.File
}

// OpenEach makes one in dir.
func OpenEach(dir string) (*Each, error) {
	f, err := os.Create(filepath.Join(dir, "each"))
	return &Each{file: f}, err
}

// Append returns once rec is durable.
func (e *Each) Append(_ int, rec []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.file.Write(rec); err != nil {
		return err
	}
	return unix.Fdatasync(int(e.file.Fd()))
}

// Close ends it.
func (e *Each) Close() { e.file.Close() }
