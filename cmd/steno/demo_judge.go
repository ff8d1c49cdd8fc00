package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// demoFacts is what the judge has seen.
type demoFacts struct {
	OK     bool        `json:"ok"`
	Dir    string      `json:"dir"`
	Events int         `json:"events"`
	Epochs int         `json:"epochs"`
	Calls  int         `json:"calls"`
	Head   schema.Head `json:"head"`
	Digest string      `json:"digest"`
}

func (f demoFacts) rows() [][]string {
	return [][]string{
		{"verify", fmt.Sprintf("ok, %d events in %d epochs", f.Events, f.Epochs)},
		{"head", f.Head.String()},
		{"take-over", fmt.Sprintf("seen; %s is interrupted and ran once, %s has an attempt 2", callNotice, callWait)},
		{"tests", fmt.Sprintf("fail in %s, pass in %s", callTestsFail, callTestsPass)},
		{"digest", f.Digest + ", three times the same"},
	}
}

// replayTimeout bounds one replay process.
const replayTimeout = time.Minute

// review replays the log in two processes, judges the files and tells what it
// has seen.
func (d *demo) review(ctx context.Context) (demoFacts, error) {
	// What must not matter is made different on purpose.
	settings := [][]string{{"GOMAXPROCS=1", "TZ=UTC"}, {"GOMAXPROCS=4", "TZ=Asia/Tokyo"}}
	for i, name := range replayFiles {
		if err := d.replay(ctx, name, settings[i]); err != nil {
			return demoFacts{}, err
		}
	}
	facts, err := judgeDemo(ctx, d.dir)
	if err != nil {
		return facts, err
	}
	d.line("")
	d.say("verify", "ok: %d events in %d epochs, every sum and every link", facts.Events, facts.Epochs)
	for i := range replayFiles {
		d.say("replay "+strconv.Itoa(i+1), "digest %s  (%s)", facts.Digest, strings.Join(settings[i], ", "))
	}
	d.say("judge", "one kill, one take-over, %d calls; one notice was sent; both digests are that of the log", facts.Calls)
	d.line("")
	d.say("look", "steno session show %s --dir %s", demoSession, shellWord(d.dir))
	return facts, nil
}

// replay folds the log in a process of its own.
func (d *demo) replay(ctx context.Context, name string, settings []string) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	f, err := os.OpenFile(filepath.Join(d.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, d.self, "replay", demoSession, "-o", "json", "--dir", d.dir)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), settings...), f, &said
	if err := cmd.Run(); err != nil {
		if e := schema.ParseEnvelope(said.Bytes()); e != nil {
			return e
		}
		return schema.Errorf(schema.Internal, "a replay process failed").Cause(err)
	}
	return f.Close()
}

// judgeDemo says whether the folder of a demo shows what a demo has to show. It
// goes by the files alone: whatever process wrote them, and whatever it printed.
//
// A damaged log has the kind of its first finding. ReplayDivergence: the log is
// sound and is not that of such a demo, or a digest is not the log's.
func judgeDemo(ctx context.Context, dir string) (demoFacts, error) {
	facts := demoFacts{Dir: dir}
	noDemo := func(err error) error {
		if errors.Is(err, schema.NotFound) {
			return schema.AsError(err).With("next", "name the folder of a demo with --dir; a demo prints it as its last line")
		}
		return err
	}
	store, err := journal.OpenFiles(dir, false)
	if err != nil {
		return facts, noDemo(err)
	}
	defer store.Close()
	st := replay.New()
	r, err := readSession(ctx, store, demoSession, 0, journal.ScanOptions{State: st, Strict: true})
	if err == nil {
		err = r.damage()
	}
	if errors.Is(err, schema.NotFound) {
		return facts, noDemo(err)
	}
	if err != nil {
		return facts, schema.AsError(err).With("next", "run: steno verify "+demoSession+" --dir "+shellWord(dir))
	}
	facts.Events, facts.Epochs, facts.Calls, facts.Digest = r.Events, r.Epochs, len(st.Calls), st.Digest()
	if r.Head != nil {
		facts.Head = *r.Head
	}
	for _, check := range []func(string, *replay.State) error{judgeTakeover, judgeCalls, judgeWork, judgeDigests} {
		if err := check(dir, st); err != nil {
			return facts, err
		}
	}
	facts.OK = true
	return facts, nil
}

// unlike is a sound log, or a file beside it, that is not a demo's.
func unlike(dir, format string, args ...any) *schema.Error {
	return schema.Errorf(schema.ReplayDivergence, format, args...).
		With("session", demoSession).With("next", "run: steno session show "+demoSession+" --dir "+shellWord(dir))
}

func judgeTakeover(dir string, st *replay.State) error {
	switch {
	case len(st.Epochs) != 2 || st.Epochs[1].How != schema.HowTakeover:
		return unlike(dir, "the log shows no take-over")
	case st.Epochs[0].Released:
		return unlike(dir, "the first executor released the session; it was not killed")
	case !st.Epochs[1].Released:
		return unlike(dir, "the second executor did not release the session")
	case st.Ended == nil || st.Ended.Outcome != "completed":
		return unlike(dir, "the session was not completed")
	}
	return nil
}

// judgeCalls wants two calls to be running when the first executor was killed,
// and each to be settled by the second as its tool allows.
func judgeCalls(dir string, st *replay.State) error {
	if len(st.Calls) < 8 {
		return unlike(dir, "the log has %d calls; a demo has at least 8", len(st.Calls))
	}
	takeover := st.Epochs[1]
	for _, id := range []string{callNotice, callWait} {
		c := st.Call(id)
		if c == nil || len(c.Attempts) == 0 || c.Attempts[0].Epoch >= takeover.Epoch || c.Result == nil || c.Result.Seq < takeover.Seq {
			return unlike(dir, "%s was not running when the first executor was killed", id)
		}
	}
	notice, wait := st.Call(callNotice), st.Call(callWait)
	switch {
	case notice.Name != "bash" || notice.State != replay.Interrupted || !notice.Result.Synthetic || len(notice.Attempts) != 1:
		return unlike(dir, "%s has not ended interrupted after one attempt", callNotice)
	case len(wait.Attempts) != 2 || wait.Attempts[1].Attempt != 2 || wait.Attempts[1].Epoch != takeover.Epoch ||
		wait.Attempts[0].Executor == wait.Attempts[1].Executor || wait.State != replay.OK || wait.Result.Attempt != 2:
		return unlike(dir, "%s was not run again as attempt 2 by the second executor", callWait)
	}
	return nil
}

// judgeWork wants the tests to have failed and then passed, and the notice to
// have gone out once.
func judgeWork(dir string, st *replay.State) error {
	before, after := st.Call(callTestsFail), st.Call(callTestsPass)
	if before == nil || before.State != replay.Failed || before.Result.ExitCode == nil || *before.Result.ExitCode != 1 {
		return unlike(dir, "%s has no failing tests", callTestsFail)
	}
	if after == nil || after.State != replay.OK {
		return unlike(dir, "%s has no passing tests", callTestsPass)
	}
	b, err := os.ReadFile(filepath.Join(dir, demoWorkspace, noticesFile))
	if err != nil {
		return unlike(dir, "the workspace has no %s", noticesFile).Cause(err)
	}
	if n := bytes.Count(b, []byte("\n")); n != 1 {
		return unlike(dir, "%d notices were sent; %s may have run once", n, callNotice)
	}
	return nil
}

// judgeDigests compares what the replay processes found with the log.
func judgeDigests(dir string, st *replay.State) error {
	want := st.Digest()
	for _, name := range replayFiles {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return unlike(dir, "the folder has no %s", name).Cause(err)
		}
		var v struct {
			Digest string `json:"digest"`
		}
		if err := json.Unmarshal(b, &v); err != nil {
			return unlike(dir, "%s cannot be read", name).Cause(err)
		}
		if v.Digest != want {
			return unlike(dir, "%s has another digest than the log", name).With("digest", v.Digest).With("log", want).
				With("next", "run: steno replay "+demoSession+" --dir "+shellWord(dir))
		}
	}
	return nil
}
