package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// What a power cut left: a segment with its seal and nothing behind it, and a
// commit log that has the rest, one record for each append.
type remains struct {
	t       *testing.T
	img     journaltest.Image
	segment string
	log     string // paths
	told    []schema.Head
}

func remainsOf(t *testing.T, options journal.Options) *remains {
	t.Helper()
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	j, err := journal.Open(ctx, store, "s1", options)
	must(t, err)
	defer j.Close()
	r := &remains{t: t, segment: "sessions/s1/000001.jsonl"}
	for i := range 4 {
		r.told = append(r.told, journaltest.Append(t, j, journaltest.Note(fmt.Sprint("note ", i)))[0].Head())
	}
	r.img = faults.Disk(t, store).Cut(journaltest.Cut{Bytes: "absent"})
	for path, b := range r.img {
		if strings.HasPrefix(filepath.Base(path), "log-") && len(b) > 0 {
			r.log = path
		}
	}
	if n := bytes.Count(r.img[r.segment], []byte{'\n'}); n != 3 || r.log == "" {
		t.Fatalf("the segment has %d lines, the log is at %q", n, r.log)
	}
	return r
}

// records are the places at which the records begin.
func (r *remains) records() (at []int) {
	b := r.img[r.log]
	for i := 0; ; i++ {
		n := bytes.Index(b[i:], []byte("steno-log 1 "))
		if n < 0 {
			return at
		}
		i += n
		at = append(at, i)
	}
}

// read reads the session anew, as another process does.
func (r *remains) read(dir string) *journaltest.Log {
	r.t.Helper()
	store, err := journal.OpenFiles(dir, false)
	must(r.t, err)
	defer store.Close()
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// there are the acknowledged events that are read, by their number.
func (r *remains) there(l *journaltest.Log) (n []int) {
	gone := l.Missing(r.told)
	for i, h := range r.told {
		if !slices.Contains(gone, h) {
			n = append(n, i)
		}
	}
	return n
}

// goesOn takes the session over, and checks that what was read before is there.
func (r *remains) goesOn(dir string) {
	r.t.Helper()
	before := r.read(dir)
	store, err := journal.OpenFiles(dir, false)
	must(r.t, err)
	defer store.Close()
	j, err := journal.Open(ctx, store, "s1", journaltest.Options())
	if err != nil {
		if before.FirstError == nil {
			r.t.Errorf("a sound session cannot be opened: %v", err)
		}
		return
	}
	defer j.Close()
	journaltest.Append(r.t, j, journaltest.Note("goes on"))
	after := journaltest.Verify(r.t, store, "s1")
	var heads []schema.Head
	for _, e := range before.Events {
		heads = append(heads, e.Head())
	}
	if gone := after.Missing(heads); len(gone) > 0 {
		r.t.Errorf("what was read before the take-over is gone: %v", gone)
	}
}

// A log that ends too soon is a log with fewer records.
func TestEveryEndOfACommitLog(t *testing.T) {
	t.Parallel()
	r := remainsOf(t, journaltest.Options())
	whole, records := r.img[r.log], r.records()
	dir := r.img.Files(t).Dir()
	for end := range len(whole) + 1 {
		must(t, os.WriteFile(filepath.Join(dir, r.log), whole[:end], 0o600))
		want := 0
		for i := range records {
			if i+1 < len(records) && end >= records[i+1] || end == len(whole) {
				want = i + 1
			}
		}
		l := r.read(dir)
		if got := r.there(l); len(got) != want || l.FirstError != nil {
			t.Fatalf("of %d bytes %d are read: records %v are there, want %d; %v", len(whole), end, got, want, l.FirstError)
		}
	}
	r.goesOn(dir)
	journaltest.Tried("commit log: every end of %d bytes", len(whole))
}

// A record that is damaged takes no other with it. What is behind it had been
// written when it was durable, so that it is missed; of the last nobody knows.
func TestEveryByteOfACommitLogChanged(t *testing.T) {
	t.Parallel()
	r := remainsOf(t, journaltest.Options())
	whole, records := r.img[r.log], r.records()
	dir := r.img.Files(t).Dir()
	bad := bytes.Clone(whole)
	for at := range whole {
		of := len(records) - 1
		for records[of] > at {
			of--
		}
		bad[at] ^= 1
		must(t, os.WriteFile(filepath.Join(dir, r.log), bad, 0o600))
		bad[at] ^= 1
		l := r.read(dir)
		got, want := r.there(l), []int{0, 1, 2, 3}
		kept := slices.Equal(got, want) // its line says itself that it is sound
		if want = slices.Delete(want, of, of+1); !kept && !slices.Equal(got, want) {
			t.Fatalf("byte %d of record %d is changed: of the records %v are there, %v", at, of, got, l.FirstError)
		}
		if at%50 == 0 {
			r.img[r.log] = bytes.Clone(whole)
			r.img[r.log][at] ^= 1
			r.goesOn(r.img.Files(t).Dir())
		}
		if last := of == len(records)-1; last && l.FirstError != nil || !last && !kept && l.FirstError == nil {
			t.Fatalf("byte %d of record %d is changed: found is %v", at, of, l.Findings)
		}
	}
	journaltest.Tried("commit log: every byte of %d changed", len(whole))
}

// A log counts where its holder is named by the claim of the newest sealed
// segment, and for that segment.
func TestALogOfAnotherAddsNothing(t *testing.T) {
	for name, change := range map[string]func(r *remains){
		"in the folder of another holder": func(r *remains) {
			other := filepath.Join("holders", "another")
			r.img[other] = nil
			r.img[filepath.Join(other, filepath.Base(r.log))] = r.img[r.log]
			delete(r.img, r.log)
		},
		"under the id of another log": func(r *remains) {
			r.img[filepath.Join(filepath.Dir(r.log), "log-another")] = r.img[r.log]
			delete(r.img, r.log)
		},
		"of another session": func(r *remains) {
			r.img[r.log] = reword(r.img[r.log], func(f []string) { f[6] = "s2" })
		},
		"of another epoch": func(r *remains) {
			r.img[r.log] = reword(r.img[r.log], func(f []string) { f[7] = "2" })
		},
		"moved in its file": func(r *remains) {
			r.img[r.log] = append([]byte{' '}, r.img[r.log]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := remainsOf(t, journaltest.Options())
			change(r)
			dir := r.img.Files(t).Dir()
			l := r.read(dir)
			if got := r.there(l); len(got) > 0 || len(l.Events) != 2 || l.FirstError != nil {
				t.Errorf("of the records %v are there, %d events, %v", got, len(l.Events), l.FirstError)
			}
			r.goesOn(dir)
		})
	}
}

// A log of another boot, or of a machine of another name, is as good as any.
func TestALogOfAnotherBootIsRead(t *testing.T) {
	t.Parallel()
	opt := journaltest.Options()
	opt.Holder.BootID = "another boot"
	r := remainsOf(t, opt)
	dir := r.img.Files(t).Dir()
	if got := r.there(r.read(dir)); len(got) != len(r.told) {
		t.Errorf("of the records %v are there", got)
	}
	r.goesOn(dir)
}

// What is named like a log and is none harms nobody.
func TestWhatIsNamedLikeACommitLog(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"nothing in it":    func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"zeros":            func(path string) error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
		"no record":        func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x\n", 5000)), 0o600) },
		"a line of 1 MiB":  func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", 1<<20)), 0o600) },
		"a folder":         func(path string) error { return os.Mkdir(path, 0o700) },
		"a FIFO":           func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":           func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a dangling link":  func(path string) error { return os.Symlink("nowhere", path) },
		"a link to itself": func(path string) error { return os.Symlink(filepath.Base(path), path) },
		"a TiB of nothing": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		},
		"many lines that promise much": func(path string) error {
			var b bytes.Buffer
			for b.Len() < 4<<20 {
				fmt.Fprintf(&b, "steno-log 1 %s 1 %d 0 s1 1 0 200000 00000000\n", strings.TrimPrefix(filepath.Base(path), "log-"), b.Len())
			}
			return os.WriteFile(path, b.Bytes(), 0o600)
		},
		"many records of nothing": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("steno-log 1 x 1 0 0 s1 1 0 0 00000000\n", 5000)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := remainsOf(t, journaltest.Options())
			dir := r.img.Files(t).Dir()
			for _, file := range []string{"log-", "log-x", "log-" + strings.Repeat("x", 200), "log-01ARZ3NDEKTSV4RRFFQ69G5FAV"} {
				must(t, put(filepath.Join(dir, filepath.Dir(r.log), file)))
			}
			if got := r.there(r.read(dir)); len(got) != len(r.told) {
				t.Errorf("of the records %v are there", got)
			}
			r.goesOn(dir)
			must(t, os.Remove(filepath.Join(dir, r.log))) // with nothing else
			if l := r.read(dir); l.FirstError != nil {
				t.Error(l.FirstError)
			}
		})
	}
}

// A log that others may write, or that has a second name, may be anybody's work,
// and without it what was acknowledged may be left out for ever: nobody reads or
// goes on before somebody has looked.
func TestACommitLogThatOthersMayWriteIsRefused(t *testing.T) {
	for name, put := range map[string]func(dir, log string) error{
		"a second name":          func(dir, log string) error { return os.Link(log, log+"-copy") },
		"the file":               func(_, log string) error { return os.Chmod(log, 0o660) },
		"the folder of a holder": func(_, log string) error { return os.Chmod(filepath.Dir(log), 0o770) },
		"the folder of holders":  func(dir, _ string) error { return os.Chmod(filepath.Join(dir, "holders"), 0o770) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := remainsOf(t, journaltest.Options())
			store := r.img.Files(t)
			must(t, put(store.Dir(), filepath.Join(store.Dir(), r.log)))
			if _, err := journaltest.Read(store, "s1", journal.ScanOptions{}); !errors.Is(err, schema.UnsafeStatePath) {
				t.Errorf("a reader gets %v", err)
			}
			if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.UnsafeStatePath) {
				t.Errorf("a writer gets %v", err)
			}
		})
	}
}

// A log that is taken from a living process is missed before anybody is told: so
// the lines are durable where they belong.
func TestALogTakenFromALivingProcess(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, folder, log string){
		"deleted": func(t *testing.T, _, log string) { must(t, os.Remove(log)) },
		"moved":   func(t *testing.T, _, log string) { must(t, os.Rename(log, log+"-moved")) },
		"another in its place": func(t *testing.T, _, log string) {
			b, err := os.ReadFile(log)
			must(t, err)
			must(t, os.Remove(log))
			must(t, os.WriteFile(log, b, 0o600))
		},
		"its folder deleted":       func(t *testing.T, folder, _ string) { removeAll(t, folder) },
		"its folder moved":         func(t *testing.T, folder, _ string) { must(t, os.Rename(folder, folder+"-moved")) },
		"all folders of that kind": func(t *testing.T, folder, _ string) { removeAll(t, filepath.Dir(folder)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, faults := journaltest.FaultyLog(journaltest.Files(t))
			j := journaltest.Open(t, store, "s1")
			told := []schema.Head{journaltest.Append(t, j, journaltest.Note("before"))[0].Head()}
			logs, err := filepath.Glob(filepath.Join(store.Dir(), "holders", "*", "log-*"))
			must(t, err)
			if len(logs) == 0 {
				t.Fatal("there is no log")
			}
			for _, log := range logs { // of which one is in use
				if _, err := os.Lstat(log); err == nil {
					take(t, filepath.Dir(log), log)
				}
			}
			for i := range 20 {
				told = append(told, journaltest.Append(t, j, journaltest.Note(fmt.Sprint("after it ", i)))[0].Head())
				for _, c := range journaltest.Cuts {
					image := faults.Disk(t, store).Cut(c).Files(t)
					if l, err := journaltest.Read(image, "s1", journal.ScanOptions{}); err != nil || l.FirstError != nil || len(l.Missing(told)) > 0 {
						t.Fatalf("append %d, %+v: %v, %v, missing %v", i, c, err, l.FirstError, l.Missing(told))
					}
				}
			}
		})
	}
}

// removeAll removes a folder in which somebody may be making a file.
func removeAll(t *testing.T, folder string) {
	for late := time.Now().Add(journaltest.Deadline); ; {
		err := os.RemoveAll(folder)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.ENOTEMPTY) || time.Now().After(late) {
			t.Fatal(err)
		}
	}
}

// What a superseded writer has put into its log is in no log of the session, by
// whatever way it comes back.
func TestALogBehindASealedSuccessorAddsNothing(t *testing.T) {
	t.Parallel()
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	old, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	defer old.Close()
	told := []schema.Head{journaltest.Append(t, old, journaltest.Note("first"))[0].Head()}
	next := journaltest.Force(t, store, "s1")
	told = append(told, journaltest.Append(t, next, journaltest.Note("mine"))[0].Head())
	late := journaltest.Note("late")
	if _, err := old.Append(ctx, late); !errors.Is(err, schema.SessionWriterLost) {
		t.Fatalf("the superseded writer got %v", err)
	}
	for _, c := range journaltest.Cuts {
		image := faults.Disk(t, store).Cut(c).Files(t)
		for range 2 {
			l := journaltest.Verify(t, image, "s1")
			if gone := l.Missing(told); len(gone) > 0 {
				t.Errorf("%+v: missing are %v", c, gone)
			}
			for _, e := range l.Events {
				if string(e.Data) == string(late.Data) {
					t.Errorf("%+v: what was never acknowledged is event %d", c, e.Seq)
				}
			}
			j, err := journal.Open(ctx, image, "s1", journaltest.Options())
			must(t, err)
			told := journaltest.Append(t, j, journaltest.Note("goes on"))
			if gone := journaltest.Verify(t, image, "s1").Missing([]schema.Head{told[0].Head()}); len(gone) > 0 {
				t.Errorf("%+v: missing are %v", c, gone)
			}
			must(t, j.Close())
		}
	}
}

// A claimant looks into the log of a living holder as well: the kernel may have
// failed to store the segment, and whoever drops its pages sees that.
func TestALogOfALivingHolderIsRead(t *testing.T) {
	t.Parallel()
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	old, err := journal.Open(ctx, store, "s1", journaltest.Options())
	must(t, err)
	defer old.Close()
	faults.CacheSync(1, journaltest.ErrDisk) // in the background, once a file is full
	syncs := faults.Seen(journaltest.Sync)
	var told []schema.Head
	for i := 0; old.Epoch() == 1 && i < 200; i++ {
		records, err := old.Append(ctx, journaltest.Note(strings.Repeat("x", 300)))
		must(t, err)
		if old.Epoch() == 1 {
			told = append(told, records[0].Head())
		}
		if faults.Seen(journaltest.Sync) > syncs {
			break
		}
	}
	next := journaltest.Force(t, store, "s1")
	told = append(told, journaltest.Append(t, next, journaltest.Note("mine"))[0].Head())
	l := journaltest.Verify(t, store, "s1")
	if gone := l.Missing(told); len(gone) > 0 || len(told) < 5 {
		t.Errorf("of %d acknowledged are missing %v", len(told), gone)
	}
}

// reword rewrites the first lines of all records, with sums that fit. f has the
// words of such a line.
func reword(b []byte, f func(words []string)) (out []byte) {
	for len(b) > 0 {
		line, rest, ok := bytes.Cut(b, []byte{'\n'})
		words := strings.Split(string(line), " ")
		if !ok || len(words) != 11 {
			return out
		}
		n, _ := strconv.Atoi(words[9])
		f(words)
		words[4] = strconv.Itoa(len(out))
		head := strings.Join(words[:10], " ") + " "
		sum := crc32.Checksum([]byte(head+string(rest[:n])), crc32.MakeTable(crc32.Castagnoli))
		out = append(append(out, fmt.Sprintf("%s%08x\n", head, sum)...), rest[:n]...)
		b = rest[n:]
	}
	return out
}
