package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// maxHeard bounds what is heard and not shown yet of what is only ever live. More
// is left out, which its numbers tell.
const maxHeard = 256

// A liveEvent is one that is in no log.
type liveEvent struct {
	Time time.Time      `json:"ts"`
	Type string         `json:"type"`
	Data jsontext.Value `json:"data"`
}

// overhear takes what was published and is no recorded event: progress of tools,
// and whatever else is only ever live. It is for people: in no other form has it a
// place among recorded lines.
func (t *tail) overhear(b []byte) {
	var e liveEvent
	if !t.a.forPeople() || schema.Unmarshal(b, &e) != nil || !errors.Is(schema.Appendable(e.Type), schema.EphemeralNotLoggable) {
		return
	}
	select {
	case t.live <- e:
	default: // nobody waits for who only listens
	}
}

// tellLive shows one, marked as what it is. Those of the tools of a session have
// numbers, so that it shows what was shed on the way.
func (t *tail) tellLive(e liveEvent) error {
	var d struct {
		CallID string `json:"call_id"`
		N      uint64 `json:"n"`
		Text   string `json:"text"`
	}
	text := string(e.Data)
	if schema.Unmarshal(e.Data, &d) == nil && d.Text != "" {
		text = d.Text
		if d.CallID != "" {
			text = d.CallID + "  " + text
		}
	}
	text = short(text, 80) + "  (live, not recorded"
	if t.heard > 0 && d.N > t.heard+1 {
		text += fmt.Sprintf("; %d before it were shed", d.N-t.heard-1)
	}
	if d.N > 0 { // another holder begins anew
		t.heard = d.N
	}
	_, err := fmt.Fprintf(t.a.out, "%6s  %-23s  %-19s  %s)\n", "", e.Time.UTC().Format("2006-01-02 15:04:05.000"), inert(e.Type), inert(text))
	return err
}
