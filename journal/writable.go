package journal

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// there refuses a store that was moved or deleted since it was opened: what is
// written into it nobody would find.
func (f *Files) there() error {
	if fi, err := os.Lstat(f.sessions.Name()); err != nil || !os.SameFile(fi, f.place) {
		return schema.Errorf(schema.LogWriteFailed, "the store's folder is no longer at its path").
			With("outcome", NotStored.String()).With("next", "put it back, or start again with --dir and the path it has now")
	}
	return nil
}

// probe is what Writable writes: a block, since less may fit where nothing does.
var probe = make([]byte, 4096)

const probePrefix = ".probe-"

// sweep removes the probes of processes that died before they could. One of a
// process that lives does without its name.
func (f *Files) sweep() {
	d, err := f.sessions.Open(".")
	if err != nil {
		return // they harm nobody
	}
	defer d.Close()
	for err == nil {
		var names []string
		names, err = d.Readdirnames(1000)
		for _, name := range names {
			if !strings.HasPrefix(name, probePrefix) {
				continue
			}
			if fi, err := f.sessions.Lstat(name); err == nil && fi.Mode().IsRegular() {
				_ = f.sessions.Remove(name)
			}
		}
	}
}

// Writable writes a small file in the store, syncs it and takes it away again.
func (f *Files) Writable(context.Context) error {
	if err := errors.Join(f.there(), f.owned()); err != nil {
		return err
	}
	// Among the sessions, where their folders are made.
	name := probePrefix + ulid.Make().String()
	t, err := f.sessions.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.faults.Written(t, probe)
		if err == nil {
			err = t.Sync()
		}
		err = errors.Join(err, t.Close())
		if gone := f.sessions.Remove(name); !errors.Is(gone, fs.ErrNotExist) { // another may sweep it
			err = errors.Join(err, gone)
		}
	}
	if err != nil {
		return schema.Errorf(schema.LogWriteFailed, "the store cannot be written: %s", plain(err)).
			With("outcome", NotStored.String()).With("cause", plain(err)).Cause(err)
	}
	return nil
}
