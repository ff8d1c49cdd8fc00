package journal

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
