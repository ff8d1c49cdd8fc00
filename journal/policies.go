package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

const (
	policyFolder = "policies"
	policyEnd    = ".yaml"
	maxPolicy    = 1 << 20 // bytes
)

// PolicyHash names a policy document: its SHA-256, in hex.
func PolicyHash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// KeepPolicy keeps a policy document, so that whoever goes on with a session
// can go by it.
func (f *Files) KeepPolicy(text []byte) error {
	hash := PolicyHash(text)
	if _, err := f.Policy(hash); err == nil {
		return nil
	}
	if err := f.keepPolicy(hash, text); err != nil {
		return schema.Errorf(schema.LogWriteFailed, "the store cannot be written: a policy cannot be kept: %s", plain(err)).
			With("outcome", NotStored.String()).Cause(err)
	}
	return nil
}

func (f *Files) keepPolicy(hash string, text []byte) error {
	if err := f.root.Mkdir(policyFolder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := f.root.OpenRoot(policyFolder)
	if err != nil {
		return err
	}
	defer dir.Close()
	tmp := ".new-" + ulid.Make().String()
	t, err := dir.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = t.Write(text)
	err = errors.Join(err, f.faults.Synced(t), t.Close())
	if err == nil { // in place of what does not have its hash
		err = dir.Rename(tmp, hash+policyEnd)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(tmp))
	}
	return errors.Join(f.syncDir(dir), f.syncDir(f.root))
}

// Policy gives back a policy document by its hash.
func (f *Files) Policy(hash string) ([]byte, error) {
	name := policyFolder + "/" + hash + policyEnd
	missing := func() *schema.Error {
		return schema.Errorf(schema.NotFound, "the store has no policy %s", hash).
			With("next", "put the document back, as "+name+" in the store's folder")
	}
	if !isHash(hash) {
		return nil, missing()
	}
	if _, err := f.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, missing()
	}
	b, err := f.readOwn(name, "a policy", maxPolicy+1, 0o022)
	if err != nil {
		return nil, err
	}
	if PolicyHash(b) != hash {
		return nil, missing().Cause(errors.New("the file holds something else"))
	}
	return b, nil
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && strings.ToLower(s) == s
}

// exportPolicies copies the policies that records may name.
func (f *Files) exportPolicies(to *Files) error {
	list, err := fs.ReadDir(f.root.FS(), policyFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return schema.Errorf(schema.LogReadFailed, "the policies cannot be read: %s", plain(err)).Cause(err)
	}
	for _, e := range list {
		hash, ok := strings.CutSuffix(e.Name(), policyEnd)
		text, err := f.Policy(hash)
		if !ok || err != nil {
			continue // nobody could go by it here either
		}
		if err := to.KeepPolicy(text); err != nil {
			return err
		}
	}
	return nil
}
