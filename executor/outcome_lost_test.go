package executor_test

import (
	"os"
	"strings"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// A call that was stored while the store was moved away is not said to be not
// stored, whatever a second try finds.
func TestACallOfAStoreThatMovedMayBeStored(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	n.call("s1", "c1", "echo", `{"text":"one"}`)
	moved := p.dir + "-moved"
	if err := os.Rename(p.dir, moved); err != nil {
		t.Fatal(err)
	}
	_, err := n.client.Call(within(t), "s1", request("c2", "echo", `{"text":"two"}`))
	if err == nil {
		t.Error("it has an answer")
	}
	log, readErr := os.ReadFile(moved + "/sessions/s1/000001.jsonl")
	if err := os.Rename(moved, p.dir); err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	stored := strings.Contains(string(log), `"call_id":"c2"`)
	if said := schema.AsError(err).Details["outcome"]; stored && said == "not_stored" {
		t.Errorf("it is stored, and the answer is %v, %v", err, said)
	} else if !stored {
		t.Error("the test shows nothing: the call was not stored")
	}
	n.stop()
}
