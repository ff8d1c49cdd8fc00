package journaltest

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/oklog/ulid/v2"

	"steno/journal"
	"steno/lease"
	"steno/schema"
)

// Memory is a store that passes TestStore and keeps nothing. It is for tests
// that read thousands of damaged logs, and it is the second store that keeps
// the suite from being about files.
type Memory struct {
	id     string
	secret []byte

	mu       sync.Mutex
	sessions map[string]map[uint64]*memorySegment
	blobs    map[string][]byte // by session and hash, with a blank between them
	policies map[string][]byte // by hash
	kept     map[string][]byte // checkpoints
}

type memorySegment struct {
	data []byte // only ever grows by append, so that a reader may keep a part of it
	held bool
}

// NewMemory makes an empty store.
func NewMemory() *Memory {
	secret := make([]byte, 32)
	rand.Read(secret)
	return &Memory{id: ulid.Make().String(), secret: secret, sessions: map[string]map[uint64]*memorySegment{}, blobs: map[string][]byte{}, policies: map[string][]byte{}, kept: map[string][]byte{}}
}

// Put makes a segment hold these bytes, with nobody holding its lock.
func (m *Memory) Put(session string, epoch uint64, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions[session] == nil {
		m.sessions[session] = map[uint64]*memorySegment{}
	}
	m.sessions[session][epoch] = &memorySegment{data: data}
}

// PutBlob makes a blob hold these bytes, whatever their hash is; nil takes it
// away.
func (m *Memory) PutBlob(session, sha256 string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.blobs[session+" "+sha256] = data; data == nil {
		delete(m.blobs, session+" "+sha256)
	}
}

// Create makes a session elsewhere and takes it over once it is whole.
func (m *Memory) Create(ctx context.Context, session string, opt journal.Options, entries iter.Seq2[journal.Entry, error]) (schema.Head, error) {
	made := NewMemory()
	head, err := journal.Fill(ctx, made, session, opt, entries)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.sessions[session] != nil {
		err = schema.Errorf(schema.AlreadyExists, "session %s is there already", session).With("session", session)
	}
	if err != nil {
		return head, err
	}
	m.sessions[session] = made.sessions[session]
	maps.Copy(m.blobs, made.blobs)
	return head, nil
}

// ID is the store's id.
func (m *Memory) ID() string { return m.id }

// Secret is the store's secret.
func (m *Memory) Secret() ([]byte, error) { return bytes.Clone(m.secret), nil }

// KeepPolicy keeps a policy document.
func (m *Memory) KeepPolicy(text []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policies[journal.PolicyHash(text)] = bytes.Clone(text)
	return nil
}

// Policy gives a policy document back.
func (m *Memory) Policy(hash string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := m.policies[hash]
	if !ok {
		return nil, schema.Errorf(schema.NotFound, "the store has no policy %s", hash)
	}
	return bytes.Clone(text), nil
}

// Writable is nil: memory can always be written.
func (m *Memory) Writable(context.Context) error { return nil }

// Sessions yields the ids in order.
func (m *Memory) Sessions(ctx context.Context) iter.Seq2[string, error] {
	m.mu.Lock()
	names := slices.Sorted(maps.Keys(m.sessions))
	m.mu.Unlock()
	return func(yield func(string, error) bool) {
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				yield("", err)
				return
			}
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (m *Memory) session(id string) (map[uint64]*memorySegment, error) {
	if err := schema.CheckSession(id); err != nil {
		return nil, err
	}
	s := m.sessions[id]
	if s == nil {
		return nil, schema.Errorf(schema.NotFound, "there is no session %s", id).With("session", id)
	}
	return s, nil
}

func (m *Memory) segment(id string, epoch uint64) (*memorySegment, error) {
	s, err := m.session(id)
	if err != nil {
		return nil, err
	}
	if s[epoch] == nil {
		return nil, schema.Errorf(schema.NotFound, "session %s has no segment %d", id, epoch).With("session", id)
	}
	return s[epoch], nil
}

// Missing is nil: memory has no archives.
func (m *Memory) Missing(context.Context, string, uint64) error { return nil }

// Segments lists the segments, oldest first.
func (m *Memory) Segments(_ context.Context, session string) ([]lease.Segment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.session(session)
	if err != nil {
		return nil, err
	}
	var list []lease.Segment
	for _, epoch := range slices.Sorted(maps.Keys(s)) {
		list = append(list, lease.Segment{Epoch: epoch, Size: int64(len(s[epoch].data))})
	}
	return list, nil
}

// Read reads a segment from an offset.
func (m *Memory) Read(_ context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, err := m.segment(session, epoch)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, schema.Errorf(schema.LogReadFailed, "a segment begins at 0").With("session", session)
	}
	return io.NopCloser(bytes.NewReader(g.data[min(offset, int64(len(g.data))):])), nil
}

// Blob reads a blob.
func (m *Memory) Blob(_ context.Context, session, sha256 string) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := schema.ParseSum(sha256); err != nil {
		return nil, 0, err
	}
	if _, err := m.session(session); err != nil {
		return nil, 0, err
	}
	b, ok := m.blobs[session+" "+sha256]
	if !ok {
		return nil, 0, schema.Errorf(schema.NotFound, "session %s has no blob %s", session, sha256).With("session", session)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

// Tail is nil: there is no commit log.
func (m *Memory) Tail(context.Context, string, uint64, string, int64) (*lease.Tail, error) {
	return nil, nil
}

// Checkpoint gives the checkpoint of a session.
func (m *Memory) Checkpoint(_ context.Context, session string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.kept[session]), nil
}

// KeepCheckpoint keeps a checkpoint.
func (m *Memory) KeepCheckpoint(_ context.Context, session string, _ uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[session] = bytes.Clone(b)
	return nil
}

// Lease derives the state of a session's newest segment.
func (m *Memory) Lease(_ context.Context, session string) (lease.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.session(session)
	if err != nil {
		return lease.Status{}, err
	}
	if len(s) == 0 {
		return lease.Evidence{}.Status(), nil
	}
	epoch := slices.Max(slices.Collect(maps.Keys(s)))
	g := s[epoch]
	e, err := lease.ReadSegment(session, epoch, bytes.NewReader(g.data), int64(len(g.data)))
	if err != nil {
		return lease.Status{}, err
	}
	e.Held, e.Moved = g.held, true // what holds it is this process
	st := e.Status()
	return st, st.Gone(session)
}

// Claim takes a free slot.
func (m *Memory) Claim(_ context.Context, session string, epoch uint64, header []byte) (journal.Writer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := schema.CheckSession(session); err != nil {
		return nil, err
	}
	if m.sessions[session] == nil && epoch == 1 {
		m.sessions[session] = map[uint64]*memorySegment{}
	}
	s, err := m.session(session)
	if err != nil {
		return nil, err
	}
	if s[epoch] != nil {
		return nil, schema.Errorf(schema.AlreadyExists, "epoch %d of session %s is claimed", epoch, session).With("session", session)
	}
	s[epoch] = &memorySegment{data: bytes.Clone(header), held: true}
	return &memoryWriter{store: m, session: session, epoch: epoch}, nil
}

type memoryWriter struct {
	store   *Memory
	session string
	epoch   uint64
	dead    error
}

func (w *memoryWriter) Settle(_ context.Context, epoch uint64) (int64, error) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	g, err := w.store.segment(w.session, epoch)
	if err != nil {
		return 0, err
	}
	return int64(len(g.data)), nil
}

func (w *memoryWriter) Put(_ context.Context, blob *schema.Blob) error {
	var b bytes.Buffer
	if _, err := blob.WriteTo(&b); err != nil {
		return err
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.dead != nil {
		return w.dead
	}
	w.store.blobs[w.session+" "+blob.SHA256] = b.Bytes()
	return nil
}

func (w *memoryWriter) Carry(ctx context.Context, lines []byte) error {
	_, err := w.Append(ctx, lines, false)
	return err
}

func (w *memoryWriter) Append(_ context.Context, lines []byte, _ bool) (journal.Outcome, error) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.dead != nil {
		return journal.Unknown, w.dead
	}
	s := w.store.sessions[w.session]
	s[w.epoch].data = append(s[w.epoch].data, lines...)
	if s[w.epoch+1] != nil {
		w.dead = schema.Errorf(schema.SessionWriterLost, "epoch %d of session %s is claimed", w.epoch+1, w.session).
			With("session", w.session).With("outcome", journal.Unknown.String())
		return journal.Unknown, w.dead
	}
	return journal.Stored, nil
}

func (w *memoryWriter) Next(ctx context.Context, header []byte, _ int64) (journal.Writer, error) {
	return w.store.Claim(ctx, w.session, w.epoch+1, header)
}

func (w *memoryWriter) Release() error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.sessions[w.session][w.epoch].held = false
	if w.dead == nil {
		w.dead = schema.Errorf(schema.SessionWriterLost, "this writer is closed").With("session", w.session)
	}
	return nil
}
