// Package journal keeps the log of a session: one line for each event, on disk
// before anyone acts on it, in an order that only one writer at a time can
// extend.
//
// # Promises
//
// A line that Append returned is there after a crash or a power cut, with the
// same bytes and the same number. Two writers never both extend a session: one
// that has lost its lease cannot add an acknowledged line, whatever it was
// paused for. Every changed, missing, repeated, reordered or foreign byte is
// found by a [Scan] and located by segment, line and offset. Nothing here
// truncates, renames or changes a segment; [Files.Pack] and [Files.Remove] take
// older ones away when they are asked to. Durable may be a line in the commit log of its
// process alone; a Scan and whoever opens the session look there too. A write or sync that fails ends its
// segment, and the journal goes on in the next; a full disk is waited for.
//
// # Not promised
//
// A log cannot tell that its end was cut off at a line, or that an old backup
// was restored; keep the Head of an answer to see that. [Open] goes by a
// checkpoint where a session has one that fits, and does not read again what that
// covers; a Scan always reads all. Network file systems are refused.
package journal

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// moves the state after an append; there is no second way.
type State interface {
	// Check says whether these events may follow, as if each were applied
	// before the next; it changes nothing. The error has the kind that an
	// append is refused with.
	Check(events []schema.Event) error
	// Apply moves the state by one event that Check has accepted, or one that it
	// has refused with ResultWithoutCall, where the call may lie in a hole. It
	// must not keep e or its Data.
	Apply(e *schema.Event)
	// Hole says that events are missing here.
	Hole()
	// Broken says that the last event applied does not follow the one before as
	// that stands there now: either may be another one than was written.
	Broken()
}

// A Journal is a session open for writing. It may be used from many
// goroutines. Whoever has the lane appends, one at a time and maybe for as
// long as the disk is full; mu guards what appends move, and is never held
// while one writes.
type Journal struct {
	store   Store
	session string
	how     string
	holder  schema.Holder
	by      string
	tell    func(Record)
	waiting func(error)

	lane    chan struct{} // holds one token while somebody appends
	closing chan struct{} // closed once nobody may wait for room any more
	once    sync.Once     // closes closing
	writer  Writer        // of whoever has the lane

	mu     sync.Mutex
	queue  []*part // appends that wait for the lane, to share a write
	epoch  uint64
	state  State
	full   error         // why an append waits for room; nil if none does
	stuck  chan struct{} // closed once one does, then made anew
	seq    uint64        // of the last event, which is durable
	sum    schema.Sum
	size   int64   // of our segment
	places places  // of every event
	dead   error   // why it takes no more appends
	keeper *keeper // nil if no checkpoints are made; set before anybody else has the journal
}

// An Entry is an event that is yet to be written. Data must come from
// [schema.Compact], and is the caller's again once it is appended; values in it that are too large for a line become blobs,
// see [schema.TakeOut]. A zero ID is given by the journal; an entry whose ID is
// recorded already is not written again.
type Entry struct {
	ID    ulid.ULID
	Type  string
	Data  []byte
	Taken []schema.Blob // blobs whose references stand in Data; see [schema.TextBlob]
}

// A Record is a durable event and its line, without the newline.
type Record struct {
	schema.Event
	Line []byte
}

// Session is the id of the session.
func (j *Journal) Session() string { return j.session }

// Epoch is the epoch this journal writes. It grows when the journal rolls.
func (j *Journal) Epoch() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.epoch
}

// How says how the session was come by: new, resumed, takeover or forced. A
// roll does not change it.
func (j *Journal) How() string { return j.how }

// Head is the head of the log.
func (j *Journal) Head() schema.Head {
	j.mu.Lock()
	defer j.mu.Unlock()
	return schema.Head{Epoch: j.epoch, Seq: j.seq, Sum: j.sum}
}

// View calls f with the state while it does not move. f must not call back
// into the Journal.
func (j *Journal) View(f func(State)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(j.state)
}

// Err is why the journal takes no more appends, nil while it does.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dead
}

// Append writes entries as one write of whole lines, makes them durable, checks
// that there is no successor, and only then applies the events and returns them.
// Appends that arrive while one is under way share the next write.
//
// What the fold refuses, what does not fit its type (InvalidArgs) and a line
// over MaxLine (LineTooLong) change nothing, and neither does a blob that
// cannot be stored (LogWriteFailed, UnsafeStatePath): the journal goes on. So it
// does where a line is too long only with the numbers of a new epoch, into which
// it rolled: details.outcome is recorded_in_part then if the roll has found the
// beginning of the batch on the disk. No other append is refused by that.
//
// Entries whose ids are recorded are not written again. Where they are the
// beginning of the batch and the end of the log, which is what a writer leaves
// that died while it appended, the rest is written; any other part of a batch
// is AlreadyExists, with the recorded ids in details.recorded.
//
// After a write or sync of lines that fails the journal rolls: it goes on in
// the next epoch, and what is returned was found on the disk or written again
// under the same ids, so epoch and numbers are those of the records. A full
// disk is waited for. ctx ends such waits and nothing else: what is begun is
// done.
//
// LogWriteFailed and SyncFailed, where the roll failed too, and
// SessionWriterLost end the journal, as Err then says. details.outcome says
// what became of the lines: not_stored, unknown, recorded or recorded_in_part;
// what is unknown whoever opens the session next knows.
func (j *Journal) Append(ctx context.Context, entries ...Entry) ([]Record, error) {
	return j.append(ctx, entries)
}

// fold moves the state by records that are durable, from the end of what is
// applied on. The caller holds mu.
func (j *Journal) fold(records []Record, fresh []schema.Event) {
	for i := range records {
		r := &records[i]
		j.places.note(r.ID, r.Seq, place{j.epoch, j.size})
		j.size += int64(len(r.Line)) + 1
		j.seq, j.sum = r.Seq, r.Sum
		if j.state != nil {
			j.state.Apply(&fresh[i])
		}
	}
}

// apply is fold, and tells.
func (j *Journal) apply(records []Record, fresh []schema.Event) {
	j.fold(records, fresh)
	for i := range records {
		if j.tell != nil {
			j.tell(records[i])
		}
	}
}

func (j *Journal) die(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dead = err
}

// now is the time as a line holds it, so that the state moves as it does from
// the stored line.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// encode checks entries and makes their lines, behind those of a batch that is
// yet to be written. The caller has the lane, and nobody else moves anything; mu is not held while this reads or hashes, for
// others look at the journal meanwhile.
func (j *Journal) encode(ctx context.Context, entries []Entry, before *batch) (batch, error) {
	if err := j.Err(); err != nil {
		e := *schema.AsError(err)
		e.Details = maps.Clone(e.Details)
		return batch{}, e.With("outcome", NotStored.String())
	}
	known, err := j.recorded(ctx, entries)
	if err != nil || len(known) == len(entries) {
		return batch{known: known}, err
	}
	entries = entries[len(known):]
	small, blobs, err := takeOut(entries)
	if err != nil {
		return batch{}, err
	}
	now, seq, prev := now(), j.seq, j.sum
	if n := len(before.records); n > 0 {
		seq, prev = before.records[n-1].Seq, before.records[n-1].Sum
	}
	total := 0
	for _, in := range small {
		if j.state == nil { // a state checks the data too
			if err := schema.CheckData(in.Type, in.Data); err != nil {
				return batch{}, err
			}
		}
		total += len(in.Data) + 384
	}
	lines := make([]byte, 0, total)
	records := make([]Record, len(entries))
	r := rooms.Get().(*room)
	for len(r.fields) < len(entries) {
		r.fields = append(r.fields, new(schema.Fields))
	}
	fresh := r.fresh[:0]
	for i, in := range small {
		e := &records[i].Event
		*e = schema.Event{Session: j.session, Seq: seq + uint64(i) + 1, Epoch: j.epoch, ID: in.ID, Time: now,
			Type: in.Type, Data: in.Data, Dur: j.seq, Prev: prev}
		if e.ID == (ulid.ULID{}) {
			e.ID = NewID()
		}
		at := len(lines)
		lines = e.Append(lines)
		records[i].Line, prev = lines[at:len(lines)-1:len(lines)-1], e.Sum
		if n := len(records[i].Line); n > schema.MaxLine {
			return batch{known: known}, schema.Errorf(schema.LineTooLong, "%s would be a line of %d bytes; the limit is %d", in.Type, n, schema.MaxLine).
				With("session", j.session).With("bytes", n).With("limit", schema.MaxLine).With("outcome", outcomeOf(len(known), len(known)+len(entries)))
		}
		fresh = append(fresh, *e)
		fresh[i].Read(r.fields[i]) // once, to be checked and applied
		// What is given out does not refer to what the caller may use again.
		from := bytes.Index(records[i].Line, []byte(`,"data":`)) + len(`,"data":`)
		e.Data = records[i].Line[from : from+len(in.Data) : from+len(in.Data)]
	}
	r.fresh = fresh
	if j.state != nil {
		j.mu.Lock()
		all := fresh
		if len(before.fresh) > 0 {
			all = slices.Concat(before.fresh, fresh)
		}
		err := j.state.Check(all)
		j.mu.Unlock()
		if err != nil {
			return batch{}, err
		}
	}
	for i := range fresh {
		if fresh[i].Type == schema.TypeStateChanged { // the one value that the state itself keeps
			fresh[i].Data = entries[i].Data
		}
	}
	return batch{known, records, fresh, lines, blobs, r}, nil
}

// Release ends the epoch in good order: it writes writer_released and gives
// the lease back, in a long session behind a checkpoint. Appends that wait for room on the disk end; a release waits
// for none, and does not roll.
func (j *Journal) Release(ctx context.Context, reason string) error {
	j.once.Do(func() { close(j.closing) })
	if reason == schema.ReasonPacked || reason == schema.ReasonRemoved { // what Pack and Remove alone may say
		reason = "asked for: " + reason
	}
	_, err := j.appendAlone(ctx, []Entry{{Type: schema.TypeWriterReleased, Data: schema.Released{Reason: reason}.Data()}})
	if err == nil {
		j.keepLast(ctx)
	}
	return errors.Join(err, j.Close())
}

// Close gives the lease back without a word; the session is stale from then
// on. It is what to do with a journal that has failed or lost. Appends that
// wait for room on the disk end.
func (j *Journal) Close() error {
	j.once.Do(func() { close(j.closing) })
	j.lane <- struct{}{}
	defer func() { <-j.lane }()
	if j.writer == nil {
		return nil
	}
	j.quitKeeping()
	if j.Err() == nil {
		j.die(schema.Errorf(schema.SessionWriterLost, "session %s is closed in this process", j.session).With("session", j.session))
	}
	err := j.writer.Release()
	j.writer = nil
	return err
}
