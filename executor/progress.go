package executor

import (
	"time"

	"steno/schema"
)

// maxProgress bounds what a tool says of its progress at a time, maxLive how much
// of it may wait to be sent, of all tools of a process. What is more is shed:
// nobody waits for who only listens.
const (
	maxProgress = 4 << 10
	maxLive     = 1024
)

// Progress tells whoever listens how far the call is, as an event tool_progress
// that is in no log. It never waits: where more is said than can be sent it is
// left out, and the next one that is sent says how many were. Longer text loses
// its middle. It may be called from many goroutines.
func (call *Invocation) Progress(text string) {
	if s := call.of; s != nil && text != "" {
		s.progress(call, text)
	}
}

// A told counts what the tools of a session have said of their progress.
type told struct {
	said uint64 // all of it
	shed uint64 // what was left out since the last that was not
}

func (s *session) progress(call *Invocation, text string) {
	text, replaced := schema.ValidUTF8(text)
	text, _ = s.x.redact.Text(text, "", nil) // each by itself, and without a mark: it is in no record
	text, _ = schema.Truncate(text, maxProgress)
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	s.told.said++
	var data schema.Object
	data.Text("call_id", call.CallID).Uint("attempt", uint64(call.Attempt)).Uint("n", s.told.said).Text("text", text)
	if s.told.shed > 0 {
		data.Uint("dropped", s.told.shed)
	}
	if replaced > 0 {
		data.Uint("replaced", uint64(replaced))
	}
	var e schema.Object
	e.Uint("v", schema.Version).Text("session", s.id).Text("ts", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")).
		Text("type", typeProgress).Raw("data", data.Bytes())
	select {
	case s.x.live <- outgoing{session: s, typ: typeProgress, line: e.Bytes()}:
		s.told.shed = 0
	default:
		s.told.shed++
	}
	s.x.relay.Do(func() { go s.x.sendLive() })
}

const typeProgress = "tool_progress"

// sendLive sends what is only ever live, beside the answers and the durable
// events, which never wait for it.
func (x *Executor) sendLive() {
	for {
		select {
		case o := <-x.live:
			x.announce(o)
		case <-x.hush: // what is left nobody misses
			return
		}
	}
}
