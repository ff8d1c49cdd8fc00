package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
)

// A write that never finished means nothing: the state is the same for a
// reader that sees it, for the writer that goes on behind it, and for whoever
// reads afterwards, also where a call was open when it happened.
func TestATornTailMeansNothing(t *testing.T) {
	store := journaltest.Files(t)
	j := journaltest.Open(t, store, "s1")
	journaltest.Append(t, j, journaltest.Call("c1", "bash", `{}`))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	digest := func() (string, replay.CallState) {
		t.Helper()
		st := replay.New()
		for _, err := range journal.NewScan(store, "s1", journal.ScanOptions{State: st}).Items(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
		}
		return st.Digest(), st.Call("c1").State
	}
	whole, state := digest()
	if state != replay.Pending {
		t.Fatalf("the call is %s", state)
	}
	f, err := os.OpenFile(filepath.Join(store.Dir(), "sessions", "s1", "000001.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"v":1,"session":"s1","seq":4,"epoch":1,"id":"01`)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if torn, state := digest(); torn != whole || state != replay.Pending {
		t.Errorf("with a torn tail the digest is another and the call is %s", state)
	}
	j = journaltest.Open(t, store, "s1")
	var live string
	j.View(func(st journal.State) { live = st.(*replay.State).Digest() })
	if read, _ := digest(); read != live {
		t.Error("the writer that went on and a reader have different states")
	}
}
