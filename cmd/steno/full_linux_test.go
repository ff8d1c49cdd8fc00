package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"steno/journal/journaltest"
)

// Whoever waits in vain for a result that a full disk keeps from being
// recorded is told so, by the own process and by a serve.
func TestATimeoutSaysThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		journaltest.Lacks(t, "root, who may mount a disk that is full")
	}
	script := `mkdir st && mount -t tmpfs -o size=24m,mode=700 tmpfs st && export STENO_DIR=$PWD/st
if [ "$1" = serve ]; then
	steno serve --listen 127.0.0.1:0 >said & serve=$!
	until grep -q context said; do kill -0 $serve || exit 1; sleep 0.01; done
fi
steno run /dev/null --session s1
{ until [ -e begun ]; do sleep 0.01; done; head -c 30000000 /dev/zero >st/fill; touch full; } &
steno call bash --session s1 --timeout 3s --args '{"command":"touch begun; until [ -e full ]; do sleep 0.01; done; head -c 200000 /dev/zero | tr \"\\0\" x"}'
[ -z "$serve" ] || { rm st/fill; kill $serve; wait $serve; }`
	for _, where := range []string{"own", "serve"} {
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", where)
		cmd.Dir = t.TempDir()
		b, _ := cmd.CombinedOutput() // what it says is what counts
		if said := string(b); !strings.Contains(said, `"kind":"timeout"`) || !strings.Contains(said, "the disk is full: session s1 waits for room") || !strings.Contains(said, "make room on the store's disk") {
			t.Errorf("%s: %s", where, said)
		}
	}
}
