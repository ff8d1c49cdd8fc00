package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
)

// Whoever goes on with a copy goes by the same policies.
func TestAnExportHasThePolicies(t *testing.T) {
	t.Parallel()
	f := journaltest.Files(t)
	grown(t, f, "s1", 1)
	text := []byte("version: 1\nmode: auto\n")
	must(t, f.KeepPolicy(text))
	hash := journal.PolicyHash(text)
	must(t, os.WriteFile(filepath.Join(f.Dir(), "policies", journal.PolicyHash(nil)+".yaml"), text, 0o600)) // has another hash
	dir := filepath.Join(t.TempDir(), "copy")
	_, err := export(t, f, dir)
	must(t, err)
	list, err := os.ReadDir(filepath.Join(dir, "policies"))
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(dir, "policies", hash+".yaml")); err != nil || string(got) != string(text) || len(list) != 1 {
		t.Errorf("the export has %q, %v and in all %v", got, err, list)
	}
}
