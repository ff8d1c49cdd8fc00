package lease

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// A session's folder may hold a checkpoint: a cache that package journal makes of
// the log and checks before it believes any of it. It is no part of the log.
const (
	checkpointName = "checkpoint"
	checkpointTemp = ".checkpoint-"
)

// maxBeside bounds a checkpoint besides four times the segments that it is about:
// a state may hold what stands in blobs.
const maxBeside = 64 << 20

// Checkpoint reads the checkpoint, nil if there is none, or one that is larger than any
// that is made. It is to be checked.
func (d *Dir) Checkpoint() ([]byte, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	before, err := d.root.Lstat(checkpointName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	if why := d.foreign(before); why != "" {
		return nil, unsafePath(d.name, "the checkpoint "+why)
	}
	f, err := d.root.OpenFile(checkpointName, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !os.SameFile(before, fi) {
		return nil, unsafePath(d.name, "the checkpoint was replaced while it was opened")
	}
	segments, err := d.Segments()
	if err != nil {
		return nil, err
	}
	most := int64(maxBeside)
	for _, g := range segments {
		most += 4 * g.Size
	}
	if fi.Size() > most {
		return nil, nil
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, readFailed(d.name, err)
	}
	return b, nil
}

// KeepCheckpoint makes b the checkpoint, once what segment epoch holds is durable
// there: whoever believes b will not look at it again. b itself need not last,
// and is not synced.
func (d *Dir) KeepCheckpoint(epoch uint64, b []byte) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	g, err := d.OpenSegment(epoch)
	if err != nil {
		return err
	}
	err = errors.Join(d.faults.sync(g, g.Sync), g.Close())
	if err != nil {
		return schema.Errorf(schema.SyncFailed, "segment %06d of session %s cannot be synced: %s", epoch, d.name, Cause(err)).With("session", d.name).Cause(err)
	}
	tmp := checkpointTemp + ulid.Make().String()
	f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return writeFailed(d.name, "a checkpoint cannot be made", err)
	}
	err = f.Chmod(0o600) // whatever the umask says
	if err == nil {
		_, err = d.faults.Written(f, b)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		d.faults.at("kept")
		err = d.root.Rename(tmp, checkpointName)
	}
	if err != nil {
		_ = d.root.Remove(tmp) // a leftover is swept by the next holder
		return writeFailed(d.name, "a checkpoint cannot be written", err)
	}
	return nil
}

// RemoveCheckpoint takes the checkpoint away.
func (d *Dir) RemoveCheckpoint() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.root.Remove(checkpointName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return writeFailed(d.name, "the checkpoint cannot be removed", err)
	}
	return nil
}
