package journal

import "github.com/oklog/ulid/v2"

// MakeDir makes a store's folder, with the sync that it uses.
var MakeDir = makeDir

// Waiting is why appends wait for room on the disk, nil while they do not.
func (j *Journal) Waiting() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.full
}

// Queued is how many appends wait for the one that is under way.
func Queued(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue)
}

// Judged sets how many judge lines ahead, none below 0, and how much is read at
// once.
func (o ScanOptions) Judged(workers, chunk int) ScanOptions {
	o.workers, o.chunk = workers, chunk
	return o
}

// Places are where the events of a log stand.
type Places struct{ places }

func (p *Places) Note(id ulid.ULID, seq, epoch uint64, offset int64) {
	p.note(id, seq, place{epoch, offset})
}

func (p *Places) Seq(seq uint64) (epoch uint64, offset int64, ok bool) {
	at, ok := p.seq(seq)
	return at.epoch, at.offset, ok
}

func (p *Places) ID(id ulid.ULID) (seq, epoch uint64, offset int64, ok bool) {
	seq, at, ok := p.id(id)
	return seq, at.epoch, at.offset, ok
}

func (p *Places) Move(from uint64, at int64, to uint64, offset int64) {
	p.move(place{from, at}, place{to, offset})
}

// Every says how many events are between checkpoints at least.
func (o Options) Every(n uint64) Options {
	o.every = n
	return o
}

// Kept waits for the checkpoint that is under way, and says up to where the last
// one goes.
func Kept(j *Journal) uint64 {
	j.awaitKept()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.keeper.covered
}

// MACCheckpoint is what stands at the end of a checkpoint.
var MACCheckpoint = macCheckpoint
