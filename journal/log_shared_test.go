package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// Of a log that sessions share, what is damaged of one is not made up for by what
// is sound of another: whatever byte is changed, each session has all that was
// acknowledged, or an error says that it may not.
func TestEveryByteOfASharedCommitLogChanged(t *testing.T) {
	t.Parallel()
	store, faults := journaltest.FaultyLog(journaltest.Files(t))
	opt := journaltest.Options()
	opt.Create = true
	sessions := []string{"s1", "s2"}
	told := map[string][]schema.Head{}
	var open []*journal.Journal
	for _, id := range sessions {
		open = append(open, journaltest.OpenWith(t, store, id, opt))
	}
	for i := range 3 {
		for k, id := range sessions {
			told[id] = append(told[id], journaltest.Append(t, open[k], journaltest.Note(fmt.Sprint("note ", i)))[0].Head())
		}
	}
	img := faults.Disk(t, store).Cut(journaltest.Cut{Bytes: "absent"})
	var log string
	for path, c := range img {
		if strings.HasPrefix(filepath.Base(path), "log-") && bytes.HasPrefix(c, []byte("steno-log ")) {
			log = path
		}
	}
	whole := bytes.TrimRight(img[log], "\x00")
	last := bytes.LastIndex(whole, []byte("steno-log 1 "))
	dir := img.Files(t).Dir()
	try := func(what string, bad []byte) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, log), bad, 0o600))
		image, err := journal.OpenFiles(dir, false)
		must(t, err)
		defer image.Close()
		for _, id := range sessions {
			l, err := journaltest.Read(image, id, journal.ScanOptions{})
			must(t, err)
			if gone := l.Missing(told[id]); len(gone) > 0 && l.FirstError == nil {
				t.Errorf("%s: session %s has lost %v, and nothing says so", what, id, gone)
			}
		}
	}
	try("nothing", whole)
	for at := range last { // nothing testifies that the last record was durable
		if line := bytes.LastIndexByte(whole[:at], '\n') + 1; whole[line] == '{' && at%4 > 0 {
			continue // the lines have sums of their own
		}
		bad := bytes.Clone(whole)
		bad[at] ^= 1
		try(fmt.Sprintf("byte %d is changed", at), bad)
	}
	journaltest.Tried("commit log of two sessions: every byte of %d changed", last)
}
