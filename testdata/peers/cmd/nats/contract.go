package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"peers/harness"
	"peers/internal/wal"
)

// A session is a chained log with the four lines that a call has.
type session struct {
	mu      sync.Mutex
	id      string
	seq     uint64
	prev    string
	results map[string][]byte // by call id
	buf     []byte
}

func (s *session) line(typ string, data func([]byte) []byte) {
	s.seq++
	begin, b := len(s.buf), s.buf
	b = append(b, `{"v":1,"session":"`...)
	b = append(b, s.id...)
	b = append(b, `","seq":`...)
	b = strconv.AppendUint(b, s.seq, 10)
	b = append(b, `,"epoch":1,"id":"01KBCDEFGHJKMNPQRSTVWXYZ00","ts":"`...)
	b = time.Now().UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, `","type":"`...)
	b = append(b, typ...)
	b = append(b, `","data":`...)
	b = data(b)
	b = append(b, `,"prev":"`...)
	b = append(b, s.prev...)
	b = append(b, '"')
	sum := sha256.Sum256(b[begin:])
	s.prev = hex.EncodeToString(sum[:])
	b = append(b, `,"sum":"`...)
	b = append(b, s.prev...)
	s.buf = append(b, '"', '}', '\n')
}

// take is the lines since the last take.
func (s *session) take() []byte {
	b := append([]byte(nil), s.buf...)
	s.buf = s.buf[:0]
	return b
}

func join(b []byte, parts ...string) []byte {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// contractDoor answers requests with what the contract asks for at least: the
// text is JSON, the same call is answered from the record, what is recorded is
// chained and durable before the tool runs and before anybody hears of the
// result, and no successor is there. No policy, no schema, no lost lease.
func contractDoor(worker *nats.Conn, dir string) (stop func()) {
	log, err := wal.Open(dir, 256)
	harness.Must(err)
	folder, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	harness.Must(err)
	alone := func() error {
		var st unix.Stat_t
		if err := unix.Fstatat(folder, "000002.jsonl", &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
			return errors.New("a successor")
		}
		return unix.Fstatat(folder, "s0.jsonl", &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	sessions := make([]*session, 256)
	for i := range sessions {
		sessions[i] = &session{id: "s-" + strconv.Itoa(i), prev: hex.EncodeToString(make([]byte, 32)), results: map[string][]byte{}}
	}
	answer := func(m *nats.Msg) error {
		n, err := strconv.Atoi(m.Header.Get("S"))
		if err != nil || !json.Valid(m.Data) {
			return errors.New("no request")
		}
		s, call := sessions[n%len(sessions)], m.Header.Get("C")
		sum := sha256.Sum256(m.Data)
		s.mu.Lock()
		if r, there := s.results[call]; there {
			s.mu.Unlock()
			return m.Respond(r)
		}
		s.line("tool_call", func(b []byte) []byte {
			return join(b, `{"call_id":"`, call, `","name":"echo","args":`, string(m.Data), `,"args_sha256":"`, hex.EncodeToString(sum[:]), `"}`)
		})
		s.line("permission_decision", func(b []byte) []byte {
			return join(b, `{"call_id":"`, call, `","decision":"allow","gate":"mode","by":"auto"}`)
		})
		s.line("tool_started", func(b []byte) []byte {
			return join(b, `{"call_id":"`, call, `","attempt":1,"executor":"01KBCDEFGHJKMNPQRSTVWXYZ01"}`)
		})
		lines := s.take()
		s.mu.Unlock()
		if err := errors.Join(log.Append(n, lines), alone()); err != nil {
			return err
		}
		result := harness.Tool(m.Data)
		if !json.Valid(result) {
			return errors.New("no result")
		}
		s.mu.Lock()
		s.line("tool_result", func(b []byte) []byte {
			return join(b, `{"call_id":"`, call, `","attempt":1,"ok":true,"output":`, string(result), `,"duration_us":12}`)
		})
		lines = s.take()
		s.mu.Unlock()
		if err := errors.Join(log.Append(n, lines), alone()); err != nil {
			return err
		}
		s.mu.Lock()
		s.results[call] = result
		s.mu.Unlock()
		return m.Respond(result)
	}
	sub, err := worker.QueueSubscribe("tool", "workers", func(m *nats.Msg) { go func() { harness.Must(answer(m)) }() })
	harness.Must(err)
	harness.Must(worker.Flush())
	return func() {
		_ = sub.Unsubscribe()
		log.Close()
		unix.Close(folder)
	}
}
