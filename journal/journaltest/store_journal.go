package journaltest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// The part of the suite that goes through journals.

func (s suite) oneWriter() {
	j := Open(s, s.store, "s1")
	if j.How() != schema.HowNew || j.Epoch() != 1 {
		s.Errorf("the first writer has epoch %d, %s", j.Epoch(), j.How())
	}
	_, err := journal.Open(ctx, s.store, "s1", Options())
	s.want(err, schema.SessionWriterActive, "the second writer")
	if d := schema.AsError(err).Details; d["holder"] == "" || d["pid"] != os.Getpid() {
		s.Errorf("the refusal does not say who holds the session: %v", d)
	}
	if n := len(s.segments("s1")); n != 1 {
		s.Errorf("the refused writer has left %d segments", n)
	}
	Append(s, j, Note("still here"))
	Release(s, j)
	if j := Open(s, s.store, "s1"); j.How() != schema.HowResumed || j.Epoch() != 2 {
		s.Errorf("the writer after a release has epoch %d, %s", j.Epoch(), j.How())
	}
}

func (s suite) noCreate() {
	opt := Options()
	opt.Create = false
	_, err := journal.Open(ctx, s.store, "s1", opt)
	s.want(err, schema.NotFound, "open without create")
	if ids := s.sessions(); len(ids) > 0 {
		s.Errorf("it has made %v", ids)
	}
	Release(s, Open(s, s.store, "s1"))
	Release(s, OpenWith(s, s.store, "s1", opt)) // one that is there needs no create
}

// told gives what a session says, without who wrote it.
func told(l *Log) (lines []string) {
	for _, e := range l.Events {
		if e.Type != schema.TypeWriterOpened && e.Type != schema.TypeWriterReleased {
			lines = append(lines, fmt.Sprint(e.ID, e.Type, string(e.Data)))
		}
	}
	return lines
}

func (s suite) openTwice() {
	j := Open(s, s.store, "s1")
	Append(s, j, Message("hello"), Call("c1", "read", `{"path":"a"}`), Started("c1", 1))
	Append(s, j, Result("c1", 1, `"text"`))
	Release(s, j)
	before := Verify(s, s.store, "s1")
	for epoch := uint64(2); epoch <= 3; epoch++ {
		j := Open(s, s.store, "s1")
		if j.Epoch() != epoch || j.How() != schema.HowResumed {
			s.Errorf("opening again gives epoch %d, %s; want %d", j.Epoch(), j.How(), epoch)
		}
		Release(s, j)
	}
	after := Verify(s, s.store, "s1")
	if a, b := told(before), told(after); !slices.Equal(a, b) {
		s.Errorf("the session said\n%s\nand now says\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	if len(after.State.Epochs) != 3 || len(after.Findings) > 0 {
		s.Errorf("%d epochs, findings %v", len(after.State.Epochs), after.Findings)
	}
}

func (s suite) takeOver() {
	var heads []schema.Head
	for n := range 3 {
		j := Open(s, s.store, "s1")
		if want := []string{schema.HowNew, schema.HowTakeover, schema.HowTakeover}[n]; j.How() != want {
			s.Errorf("writer %d came by the session as %s, want %s", n, j.How(), want)
		}
		for range 3 {
			Append(s, j, Note("x"))
			heads = append(heads, j.Head())
		}
		if err := j.Close(); err != nil { // a process that died
			s.Fatal(err)
		}
		s.state("s1", lease.Stale, schema.SessionWriterStale)
	}
	l := Verify(s, s.store, "s1")
	if gone := l.Missing(heads); len(gone) > 0 {
		s.Errorf("acknowledged and not there: %v", gone)
	}
	var seal schema.Seal
	if i := slices.IndexFunc(l.Events, func(e schema.Event) bool { return e.Epoch == 2 }); i < 0 || schema.Unmarshal(l.Events[i].Data, &seal) != nil {
		s.Fatal("epoch 2 has no seal")
	}
	if p, e := seal.Previous, seal.Evidence; p == nil || p.Epoch != 1 || p.Seq != heads[2].Seq || p.Sum != heads[2].Sum ||
		e == nil || e.State != string(lease.Stale) || e.By == "" || e.Reason == "" {
		s.Errorf("the seal of the take-over does not say what counts and why: %+v, %+v", p, e)
	}
}

func (s suite) force() {
	old := Open(s, s.store, "s1")
	Append(s, old, Note("acknowledged"))
	head := old.Head()
	next := Force(s, s.store, "s1")
	if next.How() != schema.HowForced {
		s.Errorf("the new writer came by the session as %s", next.How())
	}
	_, err := old.Append(ctx, Note("too late"))
	s.want(err, schema.SessionWriterLost, "the old writer")
	s.want(old.Err(), schema.SessionWriterLost, "the old writer's state")
	if got := old.Head(); got != head {
		s.Errorf("the old writer's head moved to %v", got)
	}
	Append(s, next, Note("mine"))
	_, err = old.Append(ctx, Note("and again"))
	s.want(err, schema.SessionWriterLost, "the old writer, again")
	l := Verify(s, s.store, "s1")
	if gone := l.Missing([]schema.Head{head, next.Head()}); len(gone) > 0 {
		s.Errorf("acknowledged and not there: %v", gone)
	}
	for _, line := range told(l) {
		if strings.Contains(line, "too late") {
			s.Errorf("what was not acknowledged counts: %s", line)
		}
	}
	_ = old.Close() // it has lost; whether that can be done well does not matter
	s.state("s1", lease.Active, schema.SessionWriterActive)
}

func (s suite) void() {
	w, _ := s.claim("s1", 1)
	if err := w.Release(); err != nil {
		s.Fatal(err)
	}
	opt := Options()
	opt.Create = false
	_, err := journal.Open(ctx, s.store, "s1", opt)
	s.want(err, schema.NotFound, "open of a session that was never opened")
	j := Open(s, s.store, "s1")
	if j.Epoch() != 2 || j.Head().Seq != 2 { // the seal and session_started
		s.Errorf("the first sealed epoch is %d, its head %v", j.Epoch(), j.Head())
	}
	l := Verify(s, s.store, "s1")
	if len(l.Findings) != 1 || l.Findings[0].Kind != schema.VoidClaim || l.Findings[0].Segment != 1 {
		s.Errorf("the findings are %v", l.Findings)
	}
	var seal schema.Seal
	if schema.Unmarshal(l.Events[0].Data, &seal) != nil || !slices.Equal(seal.Void, []uint64{1}) {
		s.Errorf("the seal lists %v as void", seal.Void)
	}
}

func (s suite) prefix() {
	j := Open(s, s.store, "s1")
	const events = 60
	done := make(chan struct{})
	var mu sync.Mutex
	var told []schema.Head
	go func() {
		defer close(done)
		for range events {
			if _, err := j.Append(ctx, Note("x"), Note("y")); err != nil {
				s.Error(err)
				return
			}
			mu.Lock()
			told = append(told, j.Head())
			mu.Unlock()
		}
	}()
	var views [][]schema.Event
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		mu.Lock()
		acknowledged := slices.Clone(told)
		mu.Unlock()
		l := Verify(s, s.store, "s1")
		if gone := l.Missing(acknowledged); len(gone) > 0 {
			s.Fatalf("a reader that began after the acknowledgement did not see %v", gone)
		}
		if len(l.Findings) > 0 {
			s.Fatalf("a healthy session has findings: %v", l.Findings)
		}
		views = append(views, l.Events)
	}
	all := views[len(views)-1]
	for _, v := range views {
		if len(v) > len(all) || len(v) > 0 && v[len(v)-1].Head() != all[len(v)-1].Head() {
			s.Fatal("two readers have seen two histories")
		}
	}
	if want := 2 + 2*events; len(all) != want {
		s.Errorf("the last reader saw %d events, want %d", len(all), want)
	}
}

func (s suite) again() {
	j := Open(s, s.store, "s1")
	e := Note("once")
	e.ID = eventID(1)
	first := Append(s, j, e)[0]
	head := j.Head()
	check := func(j *journal.Journal) {
		s.Helper()
		again := Append(s, j, e)
		if len(again) != 1 || again[0].Seq != first.Seq || again[0].Sum != first.Sum || string(again[0].Line) != string(first.Line) {
			s.Errorf("got %v, recorded was %v", again, first)
		}
	}
	check(j)
	if j.Head() != head {
		s.Errorf("the head moved to %v", j.Head())
	}
	other := Note("new")
	other.ID = eventID(2)
	_, err := j.Append(ctx, other, e)
	s.want(err, schema.AlreadyExists, "a batch that is recorded in part")
	_, err = j.Append(ctx, other, other)
	s.want(err, schema.InvalidArgs, "an id twice in one batch")
	Release(s, j)
	check(Open(s, s.store, "s1"))
}

func (s suite) largest() {
	j := Open(s, s.store, "s1")
	// The line around the text grows with the seq alone, which has one digit.
	pad := func(text string) journal.Entry { // under a key whose values stay in the line
		var o schema.Object
		return journal.Entry{Type: schema.TypeNote, Data: o.Text("pad", text).Bytes()}
	}
	around := len(Append(s, j, pad(""))[0].Line)
	size := schema.MaxLine - around
	head := j.Head()
	_, err := j.Append(ctx, pad(strings.Repeat("x", size+1)))
	s.want(err, schema.LineTooLong, "one byte more")
	if j.Head() != head || j.Err() != nil {
		s.Errorf("a refused line has moved the head to %v, or ended the journal: %v", j.Head(), j.Err())
	}
	r := Append(s, j, pad(strings.Repeat("x", size)))[0]
	if len(r.Line) != schema.MaxLine {
		s.Errorf("the largest line has %d bytes, want %d", len(r.Line), schema.MaxLine)
	}
	back, err := j.Event(ctx, r.Seq)
	if err != nil || string(back.Line) != string(r.Line) {
		s.Errorf("the largest line is not read back: %v", err)
	}
	if l := Verify(s, s.store, "s1"); len(l.Events) != 4 || len(l.Findings) > 0 {
		s.Errorf("%d events, findings %v", len(l.Events), l.Findings)
	}
}

func (s suite) twenty() {
	const sessions, events = 20, 4
	var wg sync.WaitGroup
	for n := range sessions {
		j := Open(s, s.store, fmt.Sprintf("s%02d", n))
		wg.Go(func() {
			for i := range events {
				if _, err := j.Append(ctx, Note(fmt.Sprintf("%s.%d", j.Session(), i))); err != nil {
					s.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if ids := s.sessions(); len(ids) != sessions {
		s.Fatalf("%d sessions are listed", len(ids))
	}
	for _, id := range s.sessions() {
		l := Verify(s, s.store, id)
		if len(l.Events) != 2+events {
			s.Errorf("session %s has %d events", id, len(l.Events))
			continue
		}
		for i, e := range l.Events[2:] {
			if want := fmt.Sprintf(`{"text":"%s.%d"}`, id, i); string(e.Data) != want {
				s.Errorf("event %d of %s holds %s", e.Seq, id, e.Data)
			}
		}
	}
}

func (s suite) readingIsFree() {
	j := Open(s, s.store, "s1")
	Append(s, j, Note("x"))
	before := s.segments("s1")
	for range 3 {
		Verify(s, s.store, "s1")
		s.state("s1", lease.Active, schema.SessionWriterActive)
	}
	if after := s.segments("s1"); !slices.Equal(before, after) {
		s.Errorf("the segments were %v and are %v", before, after)
	}
	Append(s, j, Note("and its writer has not noticed"))
}

// removed writes what a removal leaves: a segment that ends in its reason.
func (s suite) removed() {
	j, err := journal.Open(ctx, s.store, "s1", Options())
	if err != nil {
		s.Fatal(err)
	}
	head := j.Head()
	if err := j.Release(ctx, "done"); err != nil {
		s.Fatal(err)
	}
	if j.Head().Seq != head.Seq+1 {
		s.Fatalf("it is released with %v", j.Head())
	}
	head = j.Head()
	w, header := s.claim("s1", 2)
	claim, err := schema.DecodeClaim(bytes.TrimSuffix(header, []byte("\n")), "s1", 2)
	if err != nil {
		s.Fatal(err)
	}
	size := s.segments("s1")[0].Size
	seal := schema.Seal{Claim: claim.Sum.String(), How: schema.HowResumed,
		Previous: &schema.Previous{Epoch: 1, Len: &size, Size: &size, Seq: head.Seq, Sum: head.Sum}}
	opened := schema.Event{Session: "s1", Seq: head.Seq + 1, Epoch: 2, ID: ulid.Make(), Time: time.Now(), Type: schema.TypeWriterOpened, Data: seal.Data(), Dur: head.Seq, Prev: head.Sum}
	lines := opened.Append(nil)
	last := schema.Event{Session: "s1", Seq: head.Seq + 2, Epoch: 2, ID: ulid.Make(), Time: time.Now(), Type: schema.TypeWriterReleased,
		Data: schema.Released{Reason: schema.ReasonRemoved, By: "a test", Why: "it says so"}.Data(), Dur: head.Seq, Prev: opened.Sum}
	if o, err := w.Append(ctx, last.Append(lines), true); o != journal.Stored || err != nil {
		s.Fatalf("append: %v, %v", o, err)
	}
	_, err = s.store.Lease(ctx, "s1")
	s.want(err, schema.NotFound, "its lease")
	_, err = Read(s.store, "s1", journal.ScanOptions{})
	s.want(err, schema.NotFound, "reading it")
	if err := w.Release(); err != nil {
		s.Fatal(err)
	}
	opt := Options()
	_, err = journal.Open(ctx, s.store, "s1", opt)
	s.want(err, schema.AlreadyExists, "making it anew")
	opt.Create = false
	_, err = journal.Open(ctx, s.store, "s1", opt)
	s.want(err, schema.NotFound, "opening it")
	// Whoever came too late and has claimed the slot above changes nothing.
	late, _ := s.claim("s1", 3)
	if err := late.Release(); err != nil {
		s.Fatal(err)
	}
	_, err = Read(s.store, "s1", journal.ScanOptions{})
	s.want(err, schema.NotFound, "reading it below a claim")
	_, err = journal.Open(ctx, s.store, "s1", Options())
	s.want(err, schema.AlreadyExists, "making it anew above a claim")
}

func (s suite) policies() {
	text := []byte("version: 1\n")
	hash := journal.PolicyHash(text)
	_, err := s.store.Policy(hash)
	s.want(err, schema.NotFound, "a policy that is not kept")
	for range 2 {
		if err := s.store.KeepPolicy(text); err != nil {
			s.Fatal(err)
		}
	}
	got, err := s.store.Policy(hash)
	if err != nil || !bytes.Equal(got, text) {
		s.Errorf("the policy is %q, %v", got, err)
	}
	for _, none := range []string{"", "../store", strings.ToUpper(hash), hash[1:]} {
		_, err := s.store.Policy(none)
		s.want(err, schema.NotFound, "policy "+none)
	}
}

func (s suite) secret() {
	first, err := s.store.Secret()
	if err != nil || len(first) != 32 || bytes.Equal(first, make([]byte, 32)) {
		s.Fatalf("the secret is %x, %v", first, err)
	}
	clear(first) // it is the caller's
	second, err := s.store.Secret()
	if err != nil {
		s.Fatal(err)
	}
	third, err := s.store.Secret()
	if err != nil || !bytes.Equal(second, third) || bytes.Equal(first, second) {
		s.Errorf("the secret is now %x, %v, and was %x", third, err, second)
	}
}
