package journal_test

import (
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

func TestFiles(t *testing.T) {
	journaltest.TestStore(t, func(t *testing.T) journal.Store { return journaltest.FilesIn(t, t.TempDir()) })
}
