package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// executor is the one that answers calls.
func (s *scene) executor() *node {
	if s.node == nil {
		emit := s.runs.tool("emit", false)
		count := emit.Run
		emit.Run = func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
			r, err := count(ctx, c)
			r.Output = strings.Repeat("e", s.output)
			return r, err
		}
		s.node = s.place.node([]executor.Tool{s.runs.tool("shell", false), s.runs.tool("echo", false), s.runs.tool("write_file", false), emit})
	}
	return s.node
}

func (s *scene) openExecutor(at string, st step, w *wanted) {
	s.Helper()
	a, err := s.executor().client.Open(within(s), executor.OpenRequest{Session: s.session})
	s.must(err)
	h, err := schema.ParseHead(a.Head)
	s.must(err)
	if w.Epoch != 0 && h.Epoch != w.Epoch || w.How != "" && a.Created != (w.How == schema.HowNew) {
		s.Errorf("step %s: epoch %d, created: %t; want %+v", at, h.Epoch, a.Created, w)
	}
}

// run sends a call through the request door, or as the command does.
func (s *scene) run(at string, st step, w *wanted) {
	s.Helper()
	req := executor.Request{CallID: st.Call, Name: st.Tool, Args: []byte(st.Args), DryRun: st.DryRun}
	if st.ArgsFile != "" {
		req.Args = s.kase.Read(s, st.ArgsFile)
	}
	do := s.executor().client.Call
	if st.Via == "command" {
		do = s.executor().Do
	}
	a, err := do(within(s), s.session, req)
	kind := schema.KindOf(err)
	for _, may := range w.Any {
		if may.Error == kind {
			w = &may
		}
	}
	if kind != w.Error && !(w.Fails != nil && *w.Fails && kind.Known()) {
		s.Fatalf("step %s: call %s gives %v, want %q", at, st.Call, err, w.Error)
	}
	if w.OK != nil && (err != nil || *w.OK != field[bool](s, a.Data, "ok")) {
		s.Errorf("step %s: call %s gives %.300s, %v", at, st.Call, a.Data, err)
	}
	// How often the tool has run by now; of a call that is refused, for it.
	runs := s.runs.of(st.Call)
	if s.calls[st.Tool] = append(s.calls[st.Tool], st.Call); err == nil {
		runs = 0
		slices.Sort(s.calls[st.Tool])
		for _, id := range slices.Compact(s.calls[st.Tool]) {
			runs += s.runs.of(id)
		}
	}
	if w.Runs != nil && *w.Runs != runs {
		s.Errorf("step %s: the tool has run %d times, want %d", at, runs, *w.Runs)
	}
	if w.SameAnswer != nil && *w.SameAnswer != bytes.Equal(a.Data, s.answers[st.Call]) {
		s.Errorf("step %s: the answer is %.300s, the first was %.300s", at, a.Data, s.answers[st.Call])
	}
	if err == nil && s.answers[st.Call] == nil {
		s.answers[st.Call] = a.Data
	}
	if w.DataHas != "" {
		s.blob(at, st.Call, w)
	}
}

// blob looks for a value of a call that is kept beside the log.
func (s *scene) blob(at, call string, w *wanted) {
	s.Helper()
	key, _ := strings.CutSuffix(w.DataHas, ".ref")
	in := schema.TypeToolResult
	if key == "args" {
		in = schema.TypeToolCall
	}
	for _, e := range s.place.read(s.session).Events {
		if e.Type != in || field[string](s, e.Data, "call_id") != call {
			continue
		}
		var v struct {
			Ref struct {
				SHA256 string `json:"sha256"`
			} `json:"ref"`
		}
		s.must(schema.Unmarshal(field[jsontext.Value](s, e.Data, key), &v))
		list, err := filepath.Glob(filepath.Join(s.path("folder"), "blobs", v.Ref.SHA256+"*"))
		if err != nil || v.Ref.SHA256 == "" || len(list) != 1 || w.BlobSHA256 != "" && w.BlobSHA256 != v.Ref.SHA256 {
			s.Errorf("step %s: %s is kept as %.300s in %q", at, key, e.Data, list)
		}
		return
	}
	s.Errorf("step %s: call %s has no %s", at, call, in)
}

// read reads the session leniently.
func (s *scene) read(at string, w *wanted) {
	s.Helper()
	store, err := journal.OpenFiles(s.path("store"), false)
	s.must(err)
	defer store.Close()
	l, err := journaltest.Read(store, s.session, journal.ScanOptions{Blobs: true})
	if schema.KindOf(err) != w.Error {
		s.Fatalf("step %s: reading gives %v, want %q", at, err, w.Error)
	}
	if text := fmt.Sprint(err, schema.AsError(err)); w.NamesTarget != nil && *w.NamesTarget != (strings.Contains(text, "victim") || strings.Contains(text, s.outside)) {
		s.Errorf("step %s: the error is %s", at, text)
	}
	if w.Events != nil && len(l.Events) != *w.Events {
		s.Errorf("step %s: %d events, want %d", at, len(l.Events), *w.Events)
	}
	if w.OK != nil && *w.OK != (l.FirstError == nil) || w.Findings != nil && len(l.Findings) != len(w.Findings) {
		s.Errorf("step %s: found are %+v", at, l.Findings)
	}
	for _, f := range l.Findings {
		if w.Only != nil && !slices.Contains(w.Only, f.Kind) {
			s.Errorf("step %s: found is %+v", at, f)
		}
	}
}

func (s *scene) restart(what string) {
	s.Helper()
	switch what {
	case "executor":
		s.node.stop()
		s.node = nil
		s.executor()
	case "store": // a fresh one, with one session
		for _, w := range s.writers {
			w.Kill()
		}
		clear(s.writers)
		s.fresh()
		journaltest.Release(s, journaltest.OpenWith(s, s.place.store(), "other", journaltest.Options()))
		s.write("restart", step{Do: "open", Who: "maker"}, &wanted{})
		s.write("restart", step{Do: "close", Who: "maker"}, &wanted{})
	default:
		s.Fatalf("nobody knows how to restart %s", what)
	}
}

// link puts a link, or another odd file, where something of ours was.
func (s *scene) link(st step) {
	s.Helper()
	path, to := s.path(st.Path), s.path(st.To)
	switch st.Path {
	case "store": // it goes on to be there under the other name
		s.must(os.Rename(path, to))
	case "elsewhere":
		s.must(os.Link(to, path))
		return
	default:
		s.must(os.RemoveAll(path))
	}
	switch st.Kind {
	case "symbolic":
		s.must(os.Symlink(to, path))
	case "hard":
		s.must(os.Link(to, path))
	case "fifo":
		s.must(syscall.Mkfifo(path, 0o600))
	default:
		s.Fatalf("there is no %s link", st.Kind)
	}
}

func (s *scene) look(at, what string, w *wanted) {
	s.Helper()
	store := s.place.store()
	switch what {
	case "sessions":
		n := 0
		for _, err := range store.Sessions(within(s)) {
			s.must(err)
			n++
		}
		if n != *w.Count {
			s.Errorf("step %s: there are %d sessions", at, n)
		}
	case "lease":
		st, err := store.Lease(within(s), s.session)
		s.must(err)
		if st.State != w.State || st.Epoch != w.Epoch {
			s.Errorf("step %s: the lease is %s in epoch %d, want %+v", at, st.State, st.Epoch, w)
		}
	case "folder":
		list, err := store.Segments(within(s), s.session)
		s.must(err)
		epochs := []uint64{}
		for _, g := range list {
			epochs = append(epochs, g.Epoch)
		}
		if !slices.Equal(epochs, w.Segments) {
			s.Errorf("step %s: there are the segments %v, want %v", at, epochs, w.Segments)
		}
	case "victim":
		if now := s.content(s.outside); *w.Changed == maps.Equal(now, s.before) {
			s.Errorf("step %s: outside lies %q, before %q", at, now, s.before)
		}
	default:
		s.Fatalf("step %s: nobody knows how to look at %s", at, what)
	}
}
