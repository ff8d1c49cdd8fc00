package lease_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Whoever may write files must not have every process that opens the session ask
// for all memory there is.
func TestACheckpointLargerThanAnyIsNone(t *testing.T) {
	t.Parallel()
	d, path := folder(t, nil)
	claim(t, d, 1)
	must(t, d.KeepCheckpoint(1, []byte("kept")))
	if b, err := d.Checkpoint(); err != nil || !bytes.Equal(b, []byte("kept")) {
		t.Fatalf("%q, %v", b, err)
	}
	must(t, os.Truncate(filepath.Join(path, "checkpoint"), 10<<40))
	if b, err := d.Checkpoint(); err != nil || b != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
