package journal

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"syscall"

	"steno/lease"
	"steno/schema"
)

// makingPrefix begins the name of a folder in which a session is made. What a
// killed process leaves under such a name is no session and in nobody's way.
const makingPrefix = ".making-"

// Limits of what is written at once.
const (
	makeEntries = 512
	makeBytes   = 1 << 20
)

// Create makes a session; see [Store].
func (f *Files) Create(ctx context.Context, session string, opt Options, entries iter.Seq2[Entry, error]) (head schema.Head, err error) {
	if err := schema.CheckSession(session); err != nil {
		return head, err
	}
	if err := errors.Join(f.there(), lease.Supported(f.sessions), f.owned()); err != nil {
		return head, err
	}
	taken := schema.Errorf(schema.AlreadyExists, "session %s is there already", session).With("session", session)
	if _, err := f.sessions.Lstat(session); err == nil {
		return head, taken
	}
	if err := f.noArchive(session); err != nil {
		return head, err
	}
	name := makingPrefix + NewID().String()
	defer func() { err = errors.Join(err, f.root.RemoveAll(name)) }()
	if head, err = f.make(ctx, name, session, opt, entries); err != nil {
		return head, err
	}
	if err := f.root.Rename(filepath.Join(name, "sessions", session), filepath.Join("sessions", session)); err != nil {
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			return head, taken
		}
		return head, schema.Errorf(schema.LogWriteFailed, "session %s cannot be given its name: %s", session, plain(err)).
			With("session", session).With("outcome", NotStored.String()).Cause(err)
	}
	if err := f.syncDir(f.sessions); err != nil {
		return head, schema.Errorf(schema.SyncFailed, "session %s is made, and its name may not outlast a power cut: %s", session, plain(err)).
			With("session", session).With("outcome", Unknown.String()).Cause(err)
	}
	return head, nil
}

// make writes a session into a store of its own.
func (f *Files) make(ctx context.Context, name, session string, opt Options, entries iter.Seq2[Entry, error]) (head schema.Head, err error) {
	to, err := OpenFiles(filepath.Join(f.Dir(), name), true)
	if err != nil {
		return head, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	to.faults, to.plain = f.faults, true
	return Fill(ctx, to, session, opt, entries)
}

// Fill is what a Create of a store does in a place where nobody looks: it makes
// a session and appends all entries to it.
func Fill(ctx context.Context, store Store, session string, opt Options, entries iter.Seq2[Entry, error]) (head schema.Head, err error) {
	opt.Create = true
	j, err := Open(ctx, store, session, opt)
	if err != nil {
		return head, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	var batch []Entry
	size := 0
	write := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := j.Append(ctx, batch...)
		batch, size = batch[:0], 0
		return err
	}
	for e, err := range entries {
		if err == nil && (len(batch) == makeEntries || size+len(e.Data) > makeBytes) {
			err = write()
		}
		if err != nil {
			return head, err
		}
		batch, size = append(batch, e), size+len(e.Data)
	}
	if err := write(); err != nil {
		return head, err
	}
	err = j.Release(ctx, "made")
	return j.Head(), err
}
