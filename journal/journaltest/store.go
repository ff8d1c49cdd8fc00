package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// TestStore checks that a store keeps the contract of journal.Store. open
// makes an empty store that is closed when its test ends. A store adds only
// what is its own: damage, locks, error codes.
func TestStore(t *testing.T, open func(t *testing.T) journal.Store) {
	for _, test := range append(slices.Clone(storeTests), blobTests...) {
		t.Run(strings.ReplaceAll(test.fact, " ", "_"), func(t *testing.T) {
			s := suite{t, open(t)}
			test.run(s)
		})
	}
}

type storeTest struct {
	fact string
	run  func(suite)
}

var storeTests = []storeTest{
	// What a store does with slots and bytes.
	{"the id is a ULID", suite.id},
	{"the secret is 32 bytes that stay the same", suite.secret},
	{"a policy is given back by its hash", suite.policies},
	{"an unknown session is not_found", suite.unknown},
	{"a hostile session id is invalid_args", suite.hostile},
	{"claiming epoch 1 makes the session", suite.makes},
	{"a claimed slot cannot be claimed again and stores nothing", suite.claimedTwice},
	{"what was appended is read back byte for byte, also from an offset", suite.bytes},
	{"of many writers that claim the same slot exactly one gets it", suite.race},
	{"a writer with a successor acknowledges nothing", suite.successor},
	{"a claimant settles what stands below its slot", suite.settles},
	{"a writer that was given back is finished", suite.givenBack},
	{"a writer claims the slot after its own and keeps its lock", suite.next},
	{"a store that can be written says so and has nothing new", suite.writable},
	{"a claim is ambiguous until its seal, then active; a dead writer is stale, a released session available", suite.states},
	{"sessions do not see each other", suite.apart},
	{"sessions are listed in order", suite.order},
	{"a cancelled context ends a listing and a reading", suite.cancelled},
	// What a journal can rely on.
	{"a session is opened by whoever comes first and refused to the next", suite.oneWriter},
	{"a call never makes a session", suite.noCreate},
	{"opening twice in a row changes nothing but the epochs", suite.openTwice},
	{"whoever takes over from the dead has all they acknowledged", suite.takeOver},
	{"a writer that was forced out is lost and what it wrote does not count", suite.force},
	{"a claim that was never sealed is void", suite.void},
	{"a reader beside a writer sees a prefix", suite.prefix},
	{"an event with a recorded id is answered with the record", suite.again},
	{"a session that was removed is not_found, and its id stays taken", suite.removed},
	{"the largest line fits and one byte more is line_too_long", suite.largest},
	{"twenty sessions written at once are each intact", suite.twenty},
	{"reading changes nothing", suite.readingIsFree},
}

type suite struct {
	*testing.T
	store journal.Store
}

var ctx = context.Background()

func (s suite) want(err error, kind schema.Kind, what string) {
	s.Helper()
	if !errors.Is(err, kind) {
		s.Errorf("%s: got %v, want %s", what, err, kind)
	}
}

// header is a claim of a process of its own.
func header(session string, epoch uint64) []byte {
	c := schema.Claim{Session: session, Epoch: epoch, Time: time.Now(), Holder: lease.Self("journaltest")}
	b, err := c.Append(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func (s suite) claim(session string, epoch uint64) (w journal.Writer, head []byte) {
	s.Helper()
	head = header(session, epoch)
	w, err := s.store.Claim(ctx, session, epoch, head)
	if err != nil {
		s.Fatalf("claim %d of %s: %v", epoch, session, err)
	}
	s.Cleanup(func() { w.Release() })
	return w, head
}

// append appends lines that a store has no reason to look into.
func (s suite) append(w journal.Writer, lines ...string) []byte {
	s.Helper()
	b := []byte(strings.Join(lines, "\n") + "\n")
	if o, err := w.Append(ctx, b, false); o != journal.Stored || err != nil {
		s.Fatalf("append: %v, %v", o, err)
	}
	return b
}

func (s suite) read(session string, epoch uint64, offset int64) []byte {
	s.Helper()
	r, err := s.store.Read(ctx, session, epoch, offset)
	if err != nil {
		s.Fatalf("read segment %d of %s: %v", epoch, session, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		s.Fatal(err)
	}
	return b
}

func (s suite) segments(session string) []lease.Segment {
	s.Helper()
	list, err := s.store.Segments(ctx, session)
	if err != nil {
		s.Fatal(err)
	}
	return list
}

func (s suite) sessions() (ids []string) {
	s.Helper()
	for id, err := range s.store.Sessions(ctx) {
		if err != nil {
			s.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func (s suite) state(session string, want lease.State, kind schema.Kind) lease.Status {
	s.Helper()
	st, err := s.store.Lease(ctx, session)
	if err != nil || st.State != want || st.Kind != kind {
		s.Errorf("the lease of %s is %q (%q), %v; want %q (%q)", session, st.State, st.Kind, err, want, kind)
	}
	return st
}

func (s suite) id() {
	if _, err := schema.ParseID(s.store.ID()); err != nil {
		s.Error(err)
	}
}

func (s suite) unknown() {
	_, err := s.store.Segments(ctx, "nobody")
	s.want(err, schema.NotFound, "segments")
	_, err = s.store.Read(ctx, "nobody", 1, 0)
	s.want(err, schema.NotFound, "read")
	_, err = s.store.Lease(ctx, "nobody")
	s.want(err, schema.NotFound, "lease")
	_, err = s.store.Claim(ctx, "nobody", 2, header("nobody", 2))
	s.want(err, schema.NotFound, "claim of a later epoch")
	_, err = Read(s.store, "nobody", journal.ScanOptions{})
	s.want(err, schema.NotFound, "scan")
	if ids := s.sessions(); len(ids) > 0 {
		s.Errorf("asking for a session has made %v", ids)
	}
	s.claim("somebody", 1)
	_, err = s.store.Read(ctx, "somebody", 2, 0)
	s.want(err, schema.NotFound, "read of a segment that is not there")
}

func (s suite) hostile() {
	for _, id := range []string{"", ".", "..", "../x", "a/b", `a\b`, "a.b", "a b", "*", ">", "-a", "_a", "a\x00", "ä", "a\n",
		"CON.", "/etc", strings.Repeat("a", 129)} {
		_, err := s.store.Segments(ctx, id)
		s.want(err, schema.InvalidArgs, fmt.Sprintf("segments of %q", id))
		_, err = s.store.Read(ctx, id, 1, 0)
		s.want(err, schema.InvalidArgs, fmt.Sprintf("read of %q", id))
		_, err = s.store.Lease(ctx, id)
		s.want(err, schema.InvalidArgs, fmt.Sprintf("lease of %q", id))
		_, err = s.store.Claim(ctx, id, 1, []byte("{}\n"))
		s.want(err, schema.InvalidArgs, fmt.Sprintf("claim of %q", id))
		_, err = journal.Open(ctx, s.store, id, Options())
		s.want(err, schema.InvalidArgs, fmt.Sprintf("open of %q", id))
	}
	if ids := s.sessions(); len(ids) > 0 {
		s.Errorf("refused ids have made %v", ids)
	}
	s.claim(strings.Repeat("a", 128), 1) // the longest there is
}

func (s suite) makes() {
	_, head := s.claim("s1", 1)
	if ids := s.sessions(); !slices.Equal(ids, []string{"s1"}) {
		s.Errorf("the sessions are %v", ids)
	}
	if list := s.segments("s1"); !slices.Equal(list, []lease.Segment{{Epoch: 1, Size: int64(len(head))}}) {
		s.Errorf("the segments are %v", list)
	}
	if b := s.read("s1", 1, 0); !bytes.Equal(b, head) {
		s.Errorf("the segment holds %q", b)
	}
}

func (s suite) claimedTwice() {
	w, head := s.claim("s1", 1)
	lines := s.append(w, "one", "two")
	for range 2 {
		_, err := s.store.Claim(ctx, "s1", 1, header("s1", 1))
		s.want(err, schema.AlreadyExists, "the second claim")
	}
	if b := s.read("s1", 1, 0); !bytes.Equal(b, append(head, lines...)) {
		s.Errorf("the segment now holds %q", b)
	}
	if n := len(s.segments("s1")); n != 1 {
		s.Errorf("there are now %d segments", n)
	}
	s.append(w, "three") // and its writer has not noticed
}

func (s suite) bytes() {
	w, all := s.claim("s1", 1)
	all = bytes.Clone(all)
	big := strings.Repeat("0123456789abcdef", 6000) // larger than any buffer on the way
	for _, line := range []string{"plain", "", "ä\u2028\x01\x7f\xff", `{"a":1e400}`, big, "end"} {
		all = append(all, s.append(w, line)...)
	}
	list := s.segments("s1")
	if len(list) != 1 || list[0].Size != int64(len(all)) {
		s.Fatalf("the segments are %v; %d bytes were written", list, len(all))
	}
	for _, at := range []int{0, 1, len(all) / 2, len(all) - 1, len(all)} {
		if b := s.read("s1", 1, int64(at)); !bytes.Equal(b, all[at:]) {
			s.Errorf("from byte %d: got %d bytes, want %d, or others", at, len(b), len(all)-at)
		}
	}
	if b := s.read("s1", 1, int64(len(all))+10); len(b) > 0 {
		s.Errorf("from beyond the end: got %q", b)
	}
}

func (s suite) race() {
	const claimants = 16
	var mu sync.Mutex
	var won []journal.Writer
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range claimants {
		wg.Go(func() {
			<-start
			w, err := s.store.Claim(ctx, "s1", 1, header("s1", 1))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, w)
			} else {
				s.want(err, schema.AlreadyExists, "a claim that lost the race")
			}
		})
	}
	close(start)
	wg.Wait()
	for _, w := range won {
		defer w.Release()
	}
	if len(won) != 1 {
		s.Fatalf("%d of %d got the slot", len(won), claimants)
	}
	s.append(won[0], "mine")
}

func (s suite) successor() {
	old, _ := s.claim("s1", 1)
	s.append(old, "acknowledged")
	next, _ := s.claim("s1", 2)
	size, err := next.Settle(ctx, 1)
	if err != nil {
		s.Fatal(err)
	}
	for range 2 {
		o, err := old.Append(ctx, []byte("too late\n"), false)
		if o != journal.Unknown {
			s.Errorf("the outcome is %s", o)
		}
		s.want(err, schema.SessionWriterLost, "an append with a successor")
	}
	if b := s.read("s1", 1, 0); !bytes.HasSuffix(b[:size], []byte("acknowledged\n")) {
		s.Errorf("what was acknowledged is not inside what the successor may read: %q", b[:size])
	}
	s.append(next, "mine")
}

func (s suite) settles() {
	old, _ := s.claim("s1", 1)
	s.append(old, "one")
	next, _ := s.claim("s1", 2)
	for range 2 {
		size, err := next.Settle(ctx, 1)
		if want := s.segments("s1")[0].Size; err != nil || size != want {
			s.Errorf("settle gives %d, %v; the segment has %d bytes", size, err, want)
		}
	}
	_, err := next.Settle(ctx, 7)
	s.want(err, schema.NotFound, "settle of a segment that is not there")
}

func (s suite) givenBack() {
	w, head := s.claim("s1", 1)
	if err := w.Release(); err != nil {
		s.Fatal(err)
	}
	if o, err := w.Append(ctx, []byte("late\n"), false); o == journal.Stored || err == nil {
		s.Errorf("append after release: %v, %v", o, err)
	}
	if b := s.read("s1", 1, 0); !bytes.Equal(b, head) {
		s.Errorf("the segment now holds %q", b)
	}
}

func (s suite) next() {
	w, _ := s.claim("s1", 1)
	s.append(w, "mine")
	head := header("s1", 2)
	next, err := w.Next(ctx, head, 4096)
	if err != nil {
		s.Fatal(err)
	}
	defer next.Release()
	if b := s.read("s1", 2, 0); !bytes.Equal(b, head) {
		s.Errorf("the slot holds %q", b)
	}
	_, err = w.Next(ctx, header("s1", 2), 0)
	s.want(err, schema.AlreadyExists, "the second claim of one slot")
	_, err = w.Append(ctx, []byte("too late\n"), false)
	s.want(err, schema.SessionWriterLost, "an append with a successor of its own")
	if err := w.Release(); err != nil {
		s.Fatal(err)
	}
	if size, err := next.Settle(ctx, 1); err != nil || size != s.segments("s1")[0].Size {
		s.Errorf("settle gives %d, %v", size, err)
	}
	s.append(next, "on its own")
}

func (s suite) writable() {
	if err := s.store.Writable(ctx); err != nil {
		s.Error(err)
	}
	if ids := s.sessions(); len(ids) > 0 {
		s.Errorf("to ask has made %v", ids)
	}
}

func (s suite) states() {
	w, head := s.claim("s1", 1)
	claim, err := schema.DecodeClaim(bytes.TrimSuffix(head, []byte("\n")), "s1", 1)
	if err != nil {
		s.Fatal(err)
	}
	st := s.state("s1", lease.Ambiguous, schema.SessionWriterAmbiguous)
	if !st.Undecided {
		s.Errorf("a claim that may be sealed in a moment is taken for decided: %+v", st)
	}
	if st.Epoch != 1 || st.Holder == nil || *st.Holder != claim.Holder {
		s.Errorf("the lease names epoch %d, holder %v; want 1, %v", st.Epoch, st.Holder, claim.Holder)
	}
	if err := w.Release(); err != nil {
		s.Fatal(err)
	}
	s.state("s1", lease.Stale, schema.SessionWriterStale)

	j := Open(s, s.store, "s1")
	s.state("s1", lease.Active, schema.SessionWriterActive)
	Release(s, j)
	if st := s.state("s1", lease.Available, ""); st.Epoch != 2 {
		s.Errorf("the lease names epoch %d", st.Epoch)
	}
}

func (s suite) apart() {
	a, headA := s.claim("a", 1)
	b, headB := s.claim("b", 1)
	c, headC := s.claim("A", 1)
	s.append(b, "of b")
	s.append(a, "of a")
	s.append(c, "of A")
	for id, want := range map[string]string{"a": string(headA) + "of a\n", "b": string(headB) + "of b\n", "A": string(headC) + "of A\n"} {
		if got := s.read(id, 1, 0); string(got) != want {
			s.Errorf("session %s holds %q", id, got)
		}
	}
	s.claim("a", 2)
	if n := len(s.segments("b")); n != 1 {
		s.Errorf("a claim in one session has made %d segments in another", n)
	}
	s.append(b, "undisturbed")
}

func (s suite) order() {
	for _, id := range []string{"m", "z", "a-1", "Z", "a", "0", "a_1", "01J"} {
		s.claim(id, 1)
	}
	want := []string{"0", "01J", "Z", "a", "a-1", "a_1", "m", "z"}
	if ids := s.sessions(); !slices.Equal(ids, want) {
		s.Errorf("the sessions are %v, want %v", ids, want)
	}
	for id, err := range s.store.Sessions(ctx) { // a reader may stop
		if id != "0" || err != nil {
			s.Errorf("the first is %s, %v", id, err)
		}
		break
	}
}

func (s suite) cancelled() {
	Append(s, Open(s, s.store, "s1"), Note("x"))
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for id, err := range s.store.Sessions(ctx) {
		if !errors.Is(err, context.Canceled) {
			s.Errorf("the listing gives %q, %v", id, err)
		}
	}
	for it, err := range journal.NewScan(s.store, "s1", journal.ScanOptions{}).Items(ctx) {
		if !errors.Is(err, context.Canceled) {
			s.Errorf("the reading gives %v, %v", it, err)
		}
	}
}

// id with a zero time is as good as any.
func eventID(n byte) ulid.ULID { return ulid.ULID{15: n} }
