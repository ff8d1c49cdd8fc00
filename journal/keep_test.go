package journal_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// keeping are the options of a writer that makes checkpoints.
func keeping(every uint64) journal.Options {
	opt := journaltest.Options()
	opt.Save = func(st journal.State) []byte { return st.(*replay.State).Save() }
	opt.Load = func(b []byte) (journal.State, error) { return replay.Load(b) }
	return opt.Every(every)
}

// work appends calls and what becomes of them; some stay open.
func work(t testing.TB, j *journal.Journal, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		id := fmt.Sprint("call-", n)
		journaltest.Append(t, j, journaltest.Call(id, "read", `{"path":"a"}`), journaltest.Started(id, 1))
		if n%7 > 0 {
			journaltest.Append(t, j, journaltest.Result(id, 1, fmt.Sprintf(`"output %d"`, n)))
		}
		if n%5 == 0 {
			journaltest.Append(t, j, journaltest.Message("go on"), journaltest.Note("n"))
		}
	}
}

// sameAsItsLog compares the state of a writer, and what it finds, with the whole
// log. Nobody appends meanwhile.
func sameAsItsLog(t testing.TB, store journal.Store, j *journal.Journal) {
	t.Helper()
	l, err := journaltest.Read(store, j.Session(), journal.ScanOptions{Blobs: true})
	if err != nil || l.FirstError != nil {
		t.Fatal(err, l.FirstError)
	}
	if j.Head() != l.Head {
		t.Fatalf("the head is %s and should be %s", j.Head(), l.Head)
	}
	j.View(func(st journal.State) {
		if why := journaltest.Differs(l.State, st.(*replay.State), l.Events); why != "" {
			t.Fatal(why)
		}
	})
	var again []journal.Entry
	for _, e := range l.Events {
		r, err := j.Event(ctx, e.Seq)
		if err != nil || r.Sum != e.Sum {
			t.Fatalf("event %d is read as %v, %v", e.Seq, r.Event, err)
		}
		again = append(again, journal.Entry{ID: e.ID, Type: e.Type, Data: e.Data})
	}
	for i, e := range again {
		r, err := j.Append(ctx, e)
		if err != nil || len(r) != 1 || r[0].Seq != l.Events[i].Seq || r[0].Sum != l.Events[i].Sum {
			t.Fatalf("event %d again is %v, %v", l.Events[i].Seq, r, err)
		}
	}
}

func checkpointIn(dir, session string) string {
	return filepath.Join(dir, "sessions", session, "checkpoint")
}

// usesCheckpoint tells whether whoever opens s1 of a store goes by its checkpoint:
// in a copy of the store an old line is damaged, which is found by whoever reads it.
func usesCheckpoint(t testing.TB, dir string) bool {
	t.Helper()
	image := filepath.Join(journaltest.TempDir(t), "store")
	copyStore(t, dir, image)
	name := filepath.Join(image, "sessions", "s1", "000001.jsonl")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(`"output 2"`))
	b[at+1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(ctx, journaltest.FilesIn(t, image), "s1", keeping(1<<20))
	if err != nil {
		if !errors.Is(err, schema.CorruptLogLine) {
			t.Fatal(err)
		}
		return false
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := journaltest.Read(journaltest.FilesIn(t, image), "s1", journal.ScanOptions{}); err != nil || l.FirstError == nil {
		t.Fatalf("a reader does not see that a line is damaged: %v", err)
	}
	return true
}

// copyStore copies what is in a folder as it stands there.
func copyStore(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		into := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(into, 0o700)
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fi, err := e.Info()
			return errors.Join(err, os.WriteFile(into, b, 0o600), os.Chmod(into, fi.Mode()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A writer that goes on from a checkpoint is as one that has read the whole log,
// through releases, deaths and rolls, and the checkpoint is made anew.
func TestAWriterGoesOnFromACheckpoint(t *testing.T) {
	t.Parallel()
	journaltest.Either(t, func(t *testing.T, logged bool) {
		t.Parallel()
		store := journaltest.Files(t)
		if !logged {
			store = store.WithoutLog()
		}
		used := 0
		for round := range 6 {
			j, err := journal.Open(ctx, store, "s1", keeping(16))
			if err != nil {
				t.Fatal(err)
			}
			sameAsItsLog(t, store, j)
			work(t, j, 100*round, 100*round+30)
			if journal.Kept(j) == 0 {
				t.Error("no checkpoint is made while it is written")
			}
			sameAsItsLog(t, store, j)
			if round%2 == 0 {
				err = j.Release(ctx, "done")
			} else {
				err = j.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			if usesCheckpoint(t, store.Dir()) {
				used++
			}
		}
		if used < 6 {
			t.Errorf("the checkpoint was used %d times of 6", used)
		}
	})
}

// A checkpoint that is not of this log, or not of this store, is passed over: the
// session opens as if there were none.
func TestACheckpointThatDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(journaltest.TempDir(t), "store")
	store := journaltest.FilesIn(t, dir)
	write := func(store *journal.Files, id string, from, to int) {
		j, err := journal.Open(ctx, store, id, keeping(16))
		if err != nil {
			t.Fatal(err)
		}
		work(t, j, from, to)
		journaltest.Release(t, j)
	}
	write(store, "s1", 0, 20)
	before := filepath.Join(journaltest.TempDir(t), "before")
	copyStore(t, dir, before)
	write(store, "s1", 20, 40)
	write(store, "s2", 0, 40)
	elsewhere := journaltest.Files(t)
	write(elsewhere, "s1", 0, 20)
	write(elsewhere, "s1", 20, 40)
	good, err := os.ReadFile(checkpointIn(dir, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := store.Secret()
	if err != nil {
		t.Fatal(err)
	}
	if !usesCheckpoint(t, dir) {
		t.Fatal("the checkpoint is not used as it is")
	}
	put := func(b []byte) func(string) error {
		return func(dir string) error { return os.WriteFile(checkpointIn(dir, "s1"), b, 0o600) }
	}
	resealed := func(key []byte, old, new string) []byte {
		body := bytes.Replace(good[:len(good)-32], []byte(old), []byte(new), 1)
		if bytes.Equal(body, good[:len(good)-32]) {
			t.Fatal(old, "is not in the checkpoint")
		}
		return append(body, journal.MACCheckpoint(key, body)...)
	}
	segment := func(dir, name string) string { return filepath.Join(dir, "sessions", "s1", name) }
	cases := map[string]func(dir string) error{
		"none":               func(dir string) error { return os.Remove(checkpointIn(dir, "s1")) },
		"empty":              put(nil),
		"a mac":              put(good[len(good)-32:]),
		"zeros":              put(make([]byte, len(good))),
		"another version":    put(resealed(secret, `{"v":1,`, `{"v":2,`)),
		"of another session": func(dir string) error { return os.Rename(checkpointIn(dir, "s2"), checkpointIn(dir, "s1")) },
		"of another store": func(dir string) error {
			b, err := os.ReadFile(checkpointIn(elsewhere.Dir(), "s1"))
			return errors.Join(err, put(b)(dir))
		},
		"of a later log than there is": func(dir string) error {
			err := errors.Join(os.RemoveAll(filepath.Join(dir, "sessions", "s1")), os.CopyFS(filepath.Join(dir, "sessions", "s1"), os.DirFS(filepath.Join(before, "sessions", "s1"))))
			return errors.Join(err, put(good)(dir))
		},
		"of a log that was another": func(dir string) error {
			from := filepath.Join(elsewhere.Dir(), "sessions", "s1")
			return errors.Join(os.RemoveAll(filepath.Join(dir, "sessions", "s1")), os.CopyFS(filepath.Join(dir, "sessions", "s1"), os.DirFS(from)), put(good)(dir))
		},
		"the secret is another": func(dir string) error {
			b := make([]byte, 32)
			rand.Read(b)
			return os.WriteFile(filepath.Join(dir, "secret"), b, 0o600)
		},
		"a segment has become longer": func(dir string) error {
			b, err := os.ReadFile(segment(dir, "000001.jsonl"))
			return errors.Join(err, os.WriteFile(segment(dir, "000001.jsonl"), append(b, "surplus\n"...), 0o600))
		},
		"a folder": func(dir string) error {
			return errors.Join(os.Remove(checkpointIn(dir, "s1")), os.Mkdir(checkpointIn(dir, "s1"), 0o700))
		},
		"a FIFO": func(dir string) error {
			return errors.Join(os.Remove(checkpointIn(dir, "s1")), syscall.Mkfifo(checkpointIn(dir, "s1"), 0o600))
		},
		"a link": func(dir string) error {
			return errors.Join(os.Rename(checkpointIn(dir, "s1"), filepath.Join(dir, "elsewhere")), os.Symlink(filepath.Join(dir, "elsewhere"), checkpointIn(dir, "s1")))
		},
		"others may write it": func(dir string) error { return os.Chmod(checkpointIn(dir, "s1"), 0o666) },
	}
	for _, key := range [][]byte{nil, make([]byte, 32)} {
		cases[fmt.Sprintf("edited and sealed with a key of %d bytes", len(key))] = put(resealed(key, `"notes":8`, `"notes":9`))
	}
	for n := 0; n < len(good); n += 1 + len(good)/40 {
		cut := good[:n]
		flipped := bytes.Clone(good)
		flipped[n] ^= 0x40
		cases[fmt.Sprintf("cut at %d", n)], cases[fmt.Sprintf("flipped at %d", n)] = put(cut), put(flipped)
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := filepath.Join(journaltest.TempDir(t), "store")
			copyStore(t, dir, image)
			if err := spoil(image); err != nil {
				t.Fatal(err)
			}
			if usesCheckpoint(t, image) {
				t.Fatal("it is used")
			}
			store := journaltest.FilesIn(t, image)
			j, err := journal.Open(ctx, store, "s1", keeping(16))
			if err != nil {
				t.Fatal(err)
			}
			sameAsItsLog(t, store, j)
			work(t, j, 50, 60)
			sameAsItsLog(t, store, j)
			journaltest.Release(t, j)
			if name != "a folder" && !usesCheckpoint(t, image) {
				t.Error("no checkpoint was made anew")
			}
		})
	}
}

// A damaged log gets no checkpoint, and neither does one that was repaired: what
// is left out shows whenever it is opened.
func TestADamagedLogGetsNoCheckpoint(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	work(t, j, 0, 20)
	journaltest.Release(t, j)
	name := filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(`"output 2"`))+1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Repair(ctx, store, "s1", repairing()); err != nil {
		t.Fatal(err)
	}
	if j, err = journal.Open(ctx, store, "s1", keeping(16)); err != nil {
		t.Fatal(err)
	}
	work(t, j, 100, 110)
	if n := journal.Kept(j); n > 0 {
		t.Errorf("there is a checkpoint up to %d", n)
	}
	journaltest.Release(t, j)
	if _, err := os.Lstat(checkpointIn(store.Dir(), "s1")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("there is a checkpoint", err)
	}
}

// Checkpoints are made while others append, and take nothing from them.
func TestCheckpointsBesideAppends(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	j, err := journal.Open(ctx, store, "s1", keeping(8))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for n := range 40 {
				id := fmt.Sprint("call-", w, "-", n)
				if _, err := j.Append(ctx, journaltest.Call(id, "read", `{}`), journaltest.Result(id, 1, `"output 2"`)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if journal.Kept(j) == 0 {
		t.Error("there is no checkpoint")
	}
	sameAsItsLog(t, store, j)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = journal.Open(ctx, store, "s1", keeping(8)); err != nil {
		t.Fatal(err)
	}
	sameAsItsLog(t, store, j)
	journaltest.Release(t, j)
}

// What a power cut leaves of a checkpoint, and of the log below it, is either
// right or not used; so is what stands there at any other moment.
func TestPowerCutWhileACheckpointIsMade(t *testing.T) {
	t.Parallel()
	journaltest.Either(t, func(t *testing.T, logged bool) {
		t.Parallel()
		store, faults := journaltest.FaultyEither(journaltest.Files(t), logged)
		images, made := 0, 0
		var mu sync.Mutex
		var acknowledged []schema.Head
		over := false
		cut := func(where string) {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return
			}
			disk := faults.Disk(t, store)
			for _, how := range journaltest.Cuts {
				img := disk.Cut(how)
				images++
				if b, ok := img[filepath.Join("sessions", "s1", "checkpoint")]; ok && len(b) > 0 {
					made++
				}
				image := img.Files(t)
				for _, name := range []string{"store", "secret"} {
					b, err := os.ReadFile(filepath.Join(store.Dir(), name))
					if err == nil {
						err = os.WriteFile(filepath.Join(image.Dir(), name), b, 0o600)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				again := journaltest.FilesIn(t, image.Dir())
				j, err := journal.Open(ctx, again, "s1", keeping(1<<20))
				if err != nil {
					t.Errorf("%s, %+v: %v", where, how, err)
					return
				}
				sameAsItsLog(t, again, j)
				if err := j.Close(); err != nil {
					t.Error(err)
				}
				if gone := journaltest.Verify(t, again, "s1").Missing(acknowledged); len(gone) > 0 {
					t.Errorf("%s, %+v: acknowledged and not there: %v", where, how, gone)
				}
			}
		}
		for _, point := range []string{"kept", journaltest.Write, journaltest.Sync} {
			for n := 1; n <= 60; n += 3 {
				faults.At(point, n, func() { cut(fmt.Sprint(point, " ", n)) })
			}
		}
		for round := range 3 {
			j, err := journal.Open(ctx, store, "s1", keeping(8))
			if err != nil {
				t.Fatal(err)
			}
			for n := range 8 {
				id := fmt.Sprint("call-", round, "-", n)
				e := journaltest.Call(id, "read", `{}`)
				e.ID = ulid.Make()
				r := journaltest.Append(t, j, e, journaltest.Result(id, 1, `"x"`))
				mu.Lock()
				acknowledged = append(acknowledged, r[1].Head())
				mu.Unlock()
			}
			journal.Kept(j)
			if round == 1 {
				err = j.Close()
			} else {
				err = j.Release(ctx, "done")
			}
			if err != nil {
				t.Fatal(err)
			}
			cut(fmt.Sprint("after round ", round))
		}
		mu.Lock()
		defer mu.Unlock()
		over = true
		journaltest.Tried("%d images, %d with a checkpoint", images, made)
		if made < 30 {
			t.Errorf("only %d of %d images have a checkpoint", made, images)
		}
	})
}

// A checkpoint that cannot be written is as none, and leaves nothing behind.
func TestACheckpointThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, arm := range map[string]func(*journaltest.Faults){
		"the segment cannot be synced": func(f *journaltest.Faults) { f.FailSync(2, journaltest.ErrDisk) }, // the first is of writer_released
		"a write fails":                func(f *journaltest.Faults) { f.FailWrite(2, journaltest.ErrDisk) },
		"the disk is full":             func(f *journaltest.Faults) { f.ShortWrite(2, 100, syscall.ENOSPC) },
	} {
		store, faults := journaltest.Faulty(journaltest.Files(t))
		j, err := journal.Open(ctx, store, "s1", keeping(16))
		if err != nil {
			t.Fatal(err)
		}
		work(t, j, 0, 4) // with writer_released these are 16
		arm(faults)
		journaltest.Release(t, j)
		if n := journal.Kept(j); n > 0 {
			t.Errorf("%s: there is a checkpoint up to %d", name, n)
		}
		list, err := os.ReadDir(filepath.Join(store.Dir(), "sessions", "s1"))
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %v is left, %v", name, list, err)
		}
		left := filepath.Join(store.Dir(), "sessions", "s1", ".checkpoint-"+ulid.Make().String()) // by who was killed
		if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if j, err = journal.Open(ctx, store, "s1", keeping(16)); err != nil {
			t.Fatal(err)
		}
		sameAsItsLog(t, store, j)
		if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: half a checkpoint stays, %v", name, err)
		}
		journaltest.Release(t, j)
	}
}

// A session that is removed has no checkpoint left, one that is packed goes on
// from it, and no copy of a session has one.
func TestCheckpointsArePartOfNothing(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	for _, id := range []string{"s1", "s2"} {
		j, err := journal.Open(ctx, store, id, keeping(16))
		if err != nil {
			t.Fatal(err)
		}
		work(t, j, 0, 30)
		journaltest.Release(t, j)
		if _, err := os.Lstat(checkpointIn(store.Dir(), id)); err != nil {
			t.Fatal(err)
		}
	}
	opt := packOptions()
	opt.Reason = "the test says so"
	if _, err := store.Remove(ctx, "s2", opt); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(checkpointIn(store.Dir(), "s2")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a removed session has a checkpoint", err)
	}
	if _, err := store.Pack(ctx, "s1", packOptions()); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(ctx, store, "s1", keeping(16))
	if err != nil {
		t.Fatal(err)
	}
	sameAsItsLog(t, store, j)
	journaltest.Release(t, j)
}
