package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// A blob that was replaced by one that unpacks to far more is read no further
// than the log says.
func TestABlobIsShownNoFurtherThanItsLineSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "calls.jsonl"), []byte(`{"name":"bash","args":{"command":"yes | head -c 400000"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, dir, "run", "calls.jsonl", "--session", "s1")
	list, err := filepath.Glob(filepath.Join(dir, ".steno", "sessions", "s1", "blobs", "*.zst"))
	if err != nil || len(list) != 1 {
		t.Fatalf("the blobs are %q, %v", list, err)
	}
	sum := filepath.Base(list[0])[:64]
	whole := good(t, dir, "session", "show", "s1", "--blob", sum)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list[0], enc.EncodeAll(bytes.Repeat([]byte("y\n"), 32<<20), nil), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := steno(t, dir, "session", "show", "s1", "--blob", sum)
	if code != 4 || len(out) > len(whole) {
		t.Errorf("exit %d after %d bytes of %d: %.300s", code, len(out), len(whole), errOut)
	}
}
