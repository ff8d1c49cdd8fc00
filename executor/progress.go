package executor

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"steno/executor/redact"
	"steno/schema"
)

// maxProgress bounds what a tool says of its progress at a time, maxLive how much
// of it may wait to be sent, of all tools of a process: what is more is shed, for
// nobody waits for who only listens. maxUnfinished bounds a line of which no end
// has come.
const (
	maxProgress   = 4 << 10
	maxLive       = 1024
	maxUnfinished = 8 << 10
)

// Progress tells whoever listens how far the call is, as an event tool_progress
// that is in no log. It never waits: where more is said than can be sent it is
// left out, and the next one that is sent says how many were. Longer text loses
// its middle. It may be called from many goroutines.
//
// A line goes out when it ends, with a line feed or a carriage return: what is
// secret may come in two texts, and half of it would not be found. What is left goes
// out when the call ends; a line of more than 8 KiB of which no end has come is left out.
func (call *Invocation) Progress(text string) {
	if call.says != nil {
		call.says.add(call, text)
	} else if call.tell != nil {
		call.tell(text)
	}
}

// speech is what a tool has said of its progress in one call and nobody has heard.
type speech struct {
	mu   sync.Mutex
	line string // without its end
	long bool   // it was too long, and the rest of it is left out too
	key  string // the beginning of a private key, of which more may come
}

// add takes what a tool says, and tells the lines that have ended.
func (sp *speech) add(call *Invocation, text string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.long {
		end := strings.IndexAny(text, "\n\r")
		if end < 0 {
			return
		}
		text, sp.long = text[end+1:], false
	}
	text = sp.line + text
	end := strings.LastIndexAny(text, "\n\r") + 1
	sp.line = strings.Clone(text[end:]) // which keeps no other memory
	text = text[:end]
	if sp.long = len(sp.line) > maxUnfinished; sp.long {
		text += fmt.Sprintf("[a line of more than %d bytes is left out]", maxUnfinished)
		sp.line = ""
	}
	sp.tell(call, text)
}

// end tells what is left when a tool has returned.
func (call *Invocation) end() {
	if sp := call.says; sp != nil {
		sp.mu.Lock()
		defer sp.mu.Unlock()
		sp.tell(call, sp.line)
		sp.line = ""
	}
}

// tell sends whole lines without what is secret in them. Of a private key, which has
// many lines, the beginning is known when the rest comes.
func (sp *speech) tell(call *Invocation, text string) {
	if text == "" {
		return
	}
	text, replaced := schema.ValidUTF8(text)
	r := call.of.x.redact
	before, _ := r.Text(sp.key, "", nil)
	text = sp.key + text
	sp.key = redact.OpenKey(text)
	text, _ = r.Text(text, "", nil) // without a mark: it is in no record
	n := 0
	for n < min(len(before), len(text)) && before[n] == text[n] {
		n++
	}
	if text = strings.Trim(text[n:], "\n\r"); text != "" {
		text, _ = schema.Truncate(text, maxProgress)
		call.of.progress(call, text, replaced)
	}
}

// A told counts what the tools of a session have said of their progress.
type told struct {
	said uint64 // all of it
	shed uint64 // what was left out since the last that was not
}

func (s *session) progress(call *Invocation, text string, replaced int) {
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
