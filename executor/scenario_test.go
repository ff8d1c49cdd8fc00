package executor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

// A step of a scenario; see testdata/cases. What this runner does not know is
// an error: nothing that is wanted is passed over in silence.
type step struct {
	Do, Who, Why, Via                      string
	Session, Text, Type, ID, Force         string
	Path, To, Kind, Mode, What, Signal, At string
	Call, Tool                             string
	Size, Times, N                         int
	DryRun                                 bool   `json:"dry_run"`
	ArgsFile                               string `json:"args_file"`
	OutputBytes                            int    `json:"output_bytes"`
	Seconds                                float64
	FreeBytes                              *int `json:"free_bytes"`
	Data, Args                             json.RawMessage
	Of                                     []string
	Steps, Then                            []step
	Want                                   *wanted
}

type wanted struct {
	Error                           schema.Kind
	Fails, Acknowledged, Stored, OK *bool
	SameAnswer                      *bool `json:"same_answer"`
	NamesTarget                     *bool `json:"names_target"`
	Changed                         *bool
	Seq                             json.RawMessage // a number; in words for many writers
	Epoch                           uint64
	How                             string
	State                           lease.State
	Events, Runs, Count, Winners    *int
	Findings                        []journaltest.CaseFinding
	Only                            []schema.Kind
	Segments                        []uint64
	Losers                          schema.Kind
	AtOnce                          int             `json:"at_once"`
	SessionID                       json.RawMessage `json:"session_id"`
	DataHas                         string          `json:"data_has"`    // a place in the call, or in its result
	BlobSHA256                      string          `json:"blob_sha256"` // of what is kept there
	Any                             []wanted
	Blocks                          bool
}

// A scene is where a scenario plays: a folder with a store and what lies
// around it, a server, and whoever is named.
type scene struct {
	*testing.T
	kase       *journaltest.Case
	place      *place
	maxPayload int
	base       string // the folder around the store
	outside    string // a folder that no store has anything to do with
	session    string
	writers    map[string]*writer
	node       *node
	calls      map[string][]string // of each tool
	runs       *counter
	output     int               // what the tool emit says, in bytes
	answers    map[string][]byte // to each call, and the line of each event id
	before     map[string]string // what lay in the store, and outside, when it was looked at last
}

func TestScenarioCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "steps") {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var spec struct {
				Store, Session, Log string
				MaxPayload          int `json:"max_payload"`
				Steps               []step
			}
			d := json.NewDecoder(bytes.NewReader(c.Read(t, "steps.json")))
			d.DisallowUnknownFields()
			if err := d.Decode(&spec); err != nil {
				t.Fatal(err)
			}
			s := &scene{T: t, kase: c, maxPayload: spec.MaxPayload, calls: map[string][]string{}, session: "s1", outside: journaltest.TempDir(t), writers: map[string]*writer{}, runs: newCounter(false), answers: map[string][]byte{}}
			if spec.Session != "" {
				s.session = spec.Session
			}
			s.fresh()
			if spec.Log != "" {
				c.Lay(t, spec.Log, s.place.dir, s.session)
			}
			for _, name := range []string{"victim", "victim-folder/000001.jsonl"} {
				path := filepath.Join(s.outside, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("a victim\n"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			s.before = s.content(s.outside)
			for i, st := range spec.Steps {
				s.step(fmt.Sprint(i), st)
			}
			if s.node != nil {
				s.node.stop()
			}
		})
	}
}

// fresh makes an empty store and a server before it.
func (s *scene) fresh() {
	s.base = journaltest.TempDir(s)
	store := journaltest.FilesIn(s, filepath.Join(s.base, "store"))
	s.place = &place{s.T, journaltest.StartNATS(s, journaltest.NATSOptions{MaxPayload: s.maxPayload}), store.Dir()}
}

// path is what a name in a step means.
func (s *scene) path(name string) string {
	folder := filepath.Join(s.place.dir, "sessions", s.session)
	switch name {
	case "store":
		return s.place.dir
	case "folder":
		return folder
	case "folder-old":
		return folder + "-old"
	case "segment":
		list, err := filepath.Glob(filepath.Join(folder, "0*.jsonl"))
		if err != nil || len(list) == 0 {
			s.Fatalf("there is no segment: %v", err)
		}
		return slices.Max(list)
	case "victim", "victim-folder":
		return filepath.Join(s.outside, name)
	}
	return filepath.Join(s.base, name)
}

// content is what lies in a folder and below.
func (s *scene) content(dir string) map[string]string {
	s.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			all[path] = fmt.Sprint(fi.Mode(), string(b))
		}
		return err
	})
	s.must(err)
	return all
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) step(at string, st step) {
	s.Helper()
	w := st.Want
	if w == nil {
		w = &wanted{}
	}
	if st.Session != "" {
		s.Fatalf("step %s: there is one session here, and it is not %s", at, st.Session)
	}
	switch st.Do {
	case "open", "append", "close", "unpark":
		if st.Who == "executor" {
			s.openExecutor(at, st, w)
			return
		}
		s.write(at, st, w)
	case "park":
		s.writer(st.Who).send(s, order{Do: "park"})
		s.send(st.Who, step{Do: "open"})
		s.writer(st.Who).WaitFor("parked", 1)
	case "spawn":
		s.spawn(at, st, w)
	case "tool":
		s.output = st.OutputBytes
	case "run":
		s.run(at, st, w)
	case "read", "verify":
		s.read(at, w)
	case "limit":
		for who, p := range s.writers {
			p.send(s, order{Do: "limit", Free: st.FreeBytes})
			if st.FreeBytes == nil && p.waits {
				p.waits = false
				if got := p.answer(s); got.Kind != "" {
					s.Errorf("step %s: %s waited for room and got %s", at, who, got.Message)
				}
			}
		}
	case "signal":
		s.signal(at, st)
	case "wait":
		// Nobody waits: a holder that stands still is made to look as if it had
		// for longer than the window.
		if st.Seconds <= lease.Window.Seconds() {
			s.Fatalf("step %s: %v s are not enough", at, st.Seconds)
		}
		journaltest.Silence(s, s.place.store(), s.session)
	case "restart":
		s.restart(st.What)
	case "move":
		s.must(os.Rename(s.path(st.Path), s.path(st.To)))
		if st.Path == "folder" {
			s.must(os.Mkdir(s.path("folder"), 0o700))
		}
	case "remove":
		s.must(os.Remove(s.path(st.Path)))
	case "link":
		s.link(st)
	case "look":
		s.look(at, st.What, w)
	case "each":
		for _, item := range st.Of {
			for i, sub := range st.Steps {
				if sub.Kind == "$" {
					sub.Kind = item
				}
				s.step(fmt.Sprint(at, ".", item, ".", i), sub)
			}
		}
	default:
		s.Fatalf("step %s: nobody knows how to %s", at, st.Do)
	}
}

func (s *scene) signal(at string, st step) {
	s.Helper()
	switch p := s.writers[st.Who]; st.Signal {
	case "KILL":
		p.Kill()
		delete(s.writers, st.Who)
	case "STOP":
		p.Stop()
	case "CONT":
		p.Continue()
	default:
		s.Fatalf("step %s: no signal %s", at, st.Signal)
	}
}

// writer is a process; one that has ended is started anew.
func (s *scene) writer(who string) *writer {
	if s.writers[who] == nil {
		s.writers[who] = &writer{Process: journaltest.Start(s, "scribe", nil)}
	}
	return s.writers[who]
}

// send tells a writer what to do.
func (s *scene) send(who string, st step) {
	o := order{Do: st.Do, Dir: s.path("store"), Session: s.session, Force: st.Force, ID: st.ID, Type: st.Type, Data: st.Data, Times: st.Times}
	if st.Via != "" {
		o.Dir = s.path(st.Via)
	}
	if o.Type == "" {
		var text schema.Object
		o.Type, o.Data = schema.TypeUserMessage, text.Text("text", st.Text+strings.Repeat("x", st.Size)).Bytes()
	}
	s.writer(who).send(s, o)
}

// write lets a writer do something and looks at its answer.
func (s *scene) write(at string, st step, w *wanted) {
	s.Helper()
	head := s.writer(st.Who).last.Head
	s.send(st.Who, st)
	if slices.ContainsFunc(w.Any, func(w wanted) bool { return w.Blocks }) { // of all that may be, this is what it does
		s.writer(st.Who).WaitFor("waiting", 1)
		s.writer(st.Who).waits = true
		return
	}
	got := s.writer(st.Who).answer(s)
	if want := w.Error; got.Kind != want && !(w.Fails != nil && *w.Fails && got.Kind.Known()) {
		s.Fatalf("step %s: %s of %s gives %q %s, want %q", at, st.Do, st.Who, got.Kind, got.Message, want)
	}
	if w.Acknowledged != nil && *w.Acknowledged != (got.Kind == "") {
		s.Errorf("step %s: acknowledged: %t", at, !*w.Acknowledged)
	}
	if w.Stored != nil && *w.Stored != (got.Head != head) {
		s.Errorf("step %s: the head was %v and is %v", at, head, got.Head)
	}
	first := got.First
	if st.Do == "open" && got.How == schema.HowNew || st.Do == "close" {
		first = got.Head.Seq
	}
	if w.Seq != nil && string(w.Seq) != fmt.Sprint(first) {
		s.Errorf("step %s: number %d, want %s", at, first, w.Seq)
	}
	if st.Do == "append" && w.How != "" { // how the epoch that it is in was come by
		epochs := s.place.read(s.session).State.Epochs
		got.How = epochs[len(epochs)-1].How
	}
	if w.Epoch != 0 && got.Epoch != w.Epoch || w.How != "" && got.How != w.How {
		s.Errorf("step %s: epoch %d, %s; want %d, %s", at, got.Epoch, got.How, w.Epoch, w.How)
	}
	if w.SameAnswer != nil && *w.SameAnswer != (string(s.answers[st.ID]) == got.Line) {
		s.Errorf("step %s: the answer is %s, the first was %s", at, got.Line, s.answers[st.ID])
	}
	if st.ID != "" && s.answers[st.ID] == nil {
		s.answers[st.ID] = []byte(got.Line)
	}
}

// spawn starts many writers at once.
func (s *scene) spawn(at string, st step, w *wanted) {
	s.Helper()
	all := make([]*writer, st.N)
	for i := range all {
		all[i] = &writer{Process: journaltest.Start(s, "scribe", nil)}
	}
	if w.AtOnce == 1 {
		// Each open reads every segment, so the time grows with the square.
		for _, p := range all {
			p.send(s, order{Do: "turns", Dir: s.path("store"), Session: s.session, Times: st.Times / 15, Marker: filepath.Join(s.outside, "inside")})
		}
		for _, p := range all {
			if got := p.answer(s); got.Kind != "" {
				s.Errorf("step %s: %s", at, got.Message)
			}
		}
		return
	}
	for i, p := range all {
		s.writers[fmt.Sprint("spawned ", i)] = p
		s.send(fmt.Sprint("spawned ", i), st.Then[0])
	}
	var winners []string
	for i, p := range all {
		if got := p.answer(s); got.Kind == "" {
			winners = append(winners, fmt.Sprint("spawned ", i))
		} else if got.Kind != w.Losers {
			s.Errorf("step %s: a loser gets %s", at, got.Message)
		}
	}
	if len(winners) != *w.Winners {
		s.Fatalf("step %s: %d have won", at, len(winners))
	}
	s.writers["winner"] = s.writers[winners[0]]
	for _, sub := range st.Then[1:] {
		s.write(at, step{Do: sub.Do, Who: "winner", Times: sub.Times}, &wanted{Epoch: w.Epoch})
	}
	// No gap and no repeat, as package journaltest verifies, from 1 to N.
	l := journaltest.Verify(s, s.place.store(), s.session)
	if want := fmt.Sprintf(`"1 to %d, no gap, no repeat"`, len(l.Events)); string(w.Seq) != want {
		s.Errorf("step %s: numbers %s, want %s", at, want, w.Seq)
	}
}
