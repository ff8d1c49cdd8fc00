package main

import (
	"os"
	"path/filepath"
	"testing"

	"steno/journal/journaltest"
)

// A tool whose commands run as another user is tried in a folder of that user,
// also where none is named.
func TestAToolIsTriedAsTheUserOfCommands(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root, who may run commands as others")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tools.yaml"), []byte(`version: 1
commands: {user: "65534"}
tools:
  - {name: who, description: Says who it is., argv: [sh, -c, "id -u; touch here && ls"], input: {type: object}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := good(t, dir, "tool", "test", "who", "--tools", "tools.yaml", "--run"); pick(t, out, "/output") != "65534\nhere\n" {
		t.Error(out)
	}
}
