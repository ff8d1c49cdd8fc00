package executor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// story is what an agent's session amounts to, whatever it went through: its
// messages, the state of its calls, its end, and what it did to the world.
func (p *place) story(dir string) string {
	p.t.Helper()
	var out strings.Builder
	l := p.read("s1")
	events := func(yield func(*schema.Event, error) bool) {
		for i := range l.Events {
			if !yield(&l.Events[i], nil) {
				return
			}
		}
	}
	for m, err := range replay.Messages(events, replay.Projection{Format: replay.FormatOpenAI}) {
		if err != nil {
			p.t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s\n", m)
	}
	for _, c := range l.State.Calls {
		fmt.Fprintf(&out, "%s %s %s\n", c.ID, c.Name, c.State)
	}
	if l.State.Ended != nil {
		fmt.Fprintln(&out, l.State.Ended.Outcome)
	}
	for _, name := range []string{"notes", "report-report"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		fmt.Fprintf(&out, "%s: %q %v\n", name, b, err)
	}
	return out.String()
}

// testdata/agent is an agent with an executor and tools in one process. It is
// killed after each event of its session in turn and started again.
func TestS7AnAgentThatIsKilledAtEveryStepEndsAlike(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "agent")
	if out, err := exec.Command("go", "build", "-o", binary, "../testdata/agent").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// run runs it until the kill, after so many events, and then to its end.
	run := func(t *testing.T, kill int) (string, int) {
		p := newPlace(t, journaltest.NATSOptions{Listen: true})
		dir := t.TempDir()
		heard := p.nats.Listen("steno.v1.event.s1.>")
		start := func() *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), binary, p.nats.URL(), p.dir, dir, "s1")
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		if kill > 0 {
			first := start()
			for range kill {
				if _, err := heard.NextMsg(journaltest.Deadline); err != nil {
					t.Fatal(err)
				}
			}
			_ = first.Process.Kill()
			_ = first.Wait() // it may just have ended by itself
		}
		if err := start().Wait(); err != nil {
			t.Errorf("it ends with %v", err)
		}
		return p.story(dir), len(p.read("s1").Events)
	}
	want, events := run(t, 0)
	if events < 20 || !strings.Contains(want, "completed") || !strings.Contains(want, `report-report: "two ships" <nil>`) || !strings.Contains(want, `notes: "note-1 Aurora\nnote-2 Borealis\n" <nil>`) {
		t.Fatalf("an agent that is not killed leaves %d events and\n%s", events, want)
	}
	for n := 1; n < events; n++ {
		t.Run(fmt.Sprint("killed after ", n), func(t *testing.T) {
			if got, _ := run(t, n); got != want {
				t.Errorf("it leaves\n%s\nand not\n%s", got, want)
			}
		})
	}
}
