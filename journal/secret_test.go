package journal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

func secretOf(t *testing.T, dir string, create bool) ([]byte, error) {
	t.Helper()
	f, err := journal.OpenFiles(dir, create)
	must(t, err)
	defer f.Close()
	return f.Secret()
}

// All who open one store to write it have one secret, whoever made it.
func TestTheSecretIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(journaltest.TempDir(t), "store")
	var all [8][]byte
	var work sync.WaitGroup
	for i := range all {
		work.Go(func() {
			f, err := journal.OpenFiles(dir, true)
			if err == nil {
				all[i], err = f.Secret()
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for _, secret := range all {
		if len(secret) != 32 || !bytes.Equal(secret, all[0]) {
			t.Errorf("the secrets are %x and %x", all[0], secret)
		}
	}
	fi, err := os.Stat(filepath.Join(dir, "secret"))
	must(t, err)
	if fi.Mode().Perm() != 0o600 || fi.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("the file is %v", fi.Mode())
	}
	other, err := journaltest.Files(t).Secret()
	if err != nil || bytes.Equal(other, all[0]) {
		t.Errorf("another store has %x, %v", other, err)
	}
}

// A reader makes nothing; a store of before gets its secret from who writes it.
func TestAStoreWithoutASecretGetsOneWhenItIsWritten(t *testing.T) {
	t.Parallel()
	dir := journaltest.Files(t).Dir()
	path := filepath.Join(dir, "secret")
	must(t, os.Remove(path))
	if _, err := secretOf(t, dir, false); !errors.Is(err, schema.NotFound) {
		t.Errorf("a store without one gives %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a reader made it: %v", err)
	}
	made, err := secretOf(t, dir, true)
	must(t, err)
	for _, create := range []bool{false, true} {
		if again, err := secretOf(t, dir, create); err != nil || !bytes.Equal(again, made) {
			t.Errorf("the secret was %x and is %x, %v", made, again, err)
		}
	}
}

// What stands in its place is neither used nor replaced, and logs are read all
// the same.
func TestASecretThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		put  func(path string) error
		kind schema.Kind
	}{
		"short":                {func(p string) error { return os.WriteFile(p, make([]byte, 31), 0o600) }, schema.InvalidConfig},
		"long":                 {func(p string) error { return os.WriteFile(p, make([]byte, 1<<20), 0o600) }, schema.InvalidConfig},
		"empty":                {func(p string) error { return os.WriteFile(p, nil, 0o600) }, schema.InvalidConfig},
		"readable for others":  {func(p string) error { return errors.Join(os.WriteFile(p, make([]byte, 32), 0o600), os.Chmod(p, 0o604)) }, schema.UnsafeStatePath},
		"readable for a group": {func(p string) error { return errors.Join(os.WriteFile(p, make([]byte, 32), 0o600), os.Chmod(p, 0o640)) }, schema.UnsafeStatePath},
		"writable for a group": {func(p string) error { return errors.Join(os.WriteFile(p, make([]byte, 32), 0o600), os.Chmod(p, 0o620)) }, schema.UnsafeStatePath},
		"FIFO":                 {func(p string) error { return syscall.Mkfifo(p, 0o600) }, schema.UnsafeStatePath},
		"folder":               {func(p string) error { return os.Mkdir(p, 0o700) }, schema.UnsafeStatePath},
		"link":                 {func(p string) error { return os.Symlink("store", p) }, schema.UnsafeStatePath},
		"link to what is not":  {func(p string) error { return os.Symlink("nothing", p) }, schema.UnsafeStatePath},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := journaltest.Files(t)
			grown(t, f, "s1", 1)
			path := filepath.Join(f.Dir(), "secret")
			must(t, os.Remove(path))
			must(t, c.put(path))
			before, err := os.Lstat(path)
			must(t, err)
			for _, create := range []bool{false, true} {
				inTime(t, func() {
					if got, err := secretOf(t, f.Dir(), create); !errors.Is(err, c.kind) || got != nil {
						t.Errorf("create %t: %x, %v, want %s", create, got, err, c.kind)
					}
				})
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() || after.Mode() != before.Mode() {
				t.Errorf("it was %v and is %v, %v", before, after, err)
			}
			if _, err := journaltest.Read(f, "s1", journal.ScanOptions{}); err != nil {
				t.Errorf("the log is not read: %v", err)
			}
		})
	}
}

// An export is for others, and the secret is not.
func TestAnExportHasNoSecret(t *testing.T) {
	t.Parallel()
	f := journaltest.Files(t)
	grown(t, f, "s1", 1)
	dir := filepath.Join(t.TempDir(), "copy")
	_, err := export(t, f, dir)
	must(t, err)
	if _, err := os.Lstat(filepath.Join(dir, "secret")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is in the export: %v", err)
	}
	if _, err := secretOf(t, dir, false); !errors.Is(err, schema.NotFound) {
		t.Errorf("the export gives %v", err)
	}
	mine, err := f.Secret()
	must(t, err)
	if new, err := secretOf(t, dir, true); err != nil || bytes.Equal(new, mine) {
		t.Errorf("restored it has %x, %v", new, err)
	}
}
