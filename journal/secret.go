package journal

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

const (
	secretName = "secret"
	secretSize = 32 // bytes, of a key for HMAC-SHA-256
)

// makeSecret gives the store its secret, if it has none. What stands in its
// place is left as it is: another secret would know no hash of the first.
func (f *Files) makeSecret() error {
	if _, err := f.root.Lstat(secretName); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret := make([]byte, secretSize)
	rand.Read(secret) // it never fails
	return f.lay(secretName, secret)
}

// Secret reads the store's secret, for which it looks anew each time.
func (f *Files) Secret() ([]byte, error) {
	if _, err := f.root.Lstat(secretName); errors.Is(err, fs.ErrNotExist) {
		return nil, schema.Errorf(schema.NotFound, "the store at %s has no secret", f.Dir()).
			With("next", "open the store to write it once, which makes one; run: steno serve")
	}
	b, err := f.readOwn(secretName, "the store's secret", 2*secretSize, 0o077)
	if err != nil {
		return nil, err
	}
	if len(b) != secretSize {
		return nil, schema.Errorf(schema.InvalidConfig, "the file that holds the store's secret does not hold %d bytes", secretSize).
			With("next", "put the file back as it was; without it the hashes in the records are those of nobody")
	}
	return b, nil
}

// lay puts a file of the store in its place, whole, unless one is there. The
// folder is not synced.
func (f *Files) lay(name string, content []byte) error {
	tmp := "." + name + "-" + ulid.Make().String()
	t, err := f.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = t.Write(content)
	err = errors.Join(err, t.Sync(), t.Close())
	if err == nil {
		// A link fails where the name is taken: the first one stays.
		if err = f.root.Link(tmp, name); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return errors.Join(err, f.root.Remove(tmp))
}

// readOwn reads the beginning of a small file of the store, whatever stands
// there; what is its name in messages, others are the modes that it must not
// have.
func (f *Files) readOwn(name, what string, limit int64, others fs.FileMode) ([]byte, error) {
	failed := func(err error) error {
		return schema.Errorf(schema.LogReadFailed, "%s cannot be read: %s", what, plain(err)).Cause(err)
	}
	fi, err := f.root.Lstat(name)
	if err != nil {
		return nil, failed(err)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&others != 0 {
		return nil, schema.Errorf(schema.UnsafeStatePath, "the file that holds %s is no plain file of ours", what)
	}
	// Not blocking, since it may have become a FIFO meanwhile.
	r, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, failed(err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return nil, failed(err)
	}
	return b, nil
}
