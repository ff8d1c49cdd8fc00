package journaltest

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"steno/replay"
	"steno/schema"
)

// Differs says in what a state that was loaded, and has gone on, is another than
// that of the whole log; "" if it is the same to a writer. events are those of
// the log, which has no holes.
func Differs(whole, loaded *replay.State, events []schema.Event) string {
	text := func(v any) string {
		b, err := json.Marshal(v, json.Deterministic(true))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	a, b := *whole, *loaded
	a.Calls, b.Calls = nil, nil
	if x, y := text(&a), text(&b); x != y {
		return fmt.Sprintf("the state is\n%s\nand should be\n%s", y, x)
	}
	if x, y := text(whole.Count()), text(loaded.Count()); x != y {
		return fmt.Sprintf("it counts %s and should %s", y, x)
	}
	if x, y := text(whole.Open()), text(loaded.Open()); x != y {
		return fmt.Sprintf("open are %s and should be %s", y, x)
	}
	if whole.Begun() != loaded.Begun() {
		return "whether it has begun"
	}
	last := uint64(0)
	for _, c := range loaded.Calls {
		if c.Seq <= last {
			return fmt.Sprintf("call %s is out of order", c.ID)
		}
		last = c.Seq
	}
	for _, c := range whole.Calls {
		is, past := loaded.Call(c.ID), loaded.Past(c.ID)
		if (is == nil) != (past != nil) {
			return fmt.Sprintf("call %s is there and past, or neither", c.ID)
		}
		if is == nil {
			var its []schema.Event
			for _, seq := range past {
				its = append(its, events[seq-1])
			}
			var err error
			if is, err = replay.Recall(c.ID, its); err != nil {
				return err.Error()
			}
		}
		if x, y := text(c), text(is); x != y {
			return fmt.Sprintf("a call is\n%s\nand should be\n%s", y, x)
		}
	}
	if loaded.Call("nobody's") != nil || loaded.Past("nobody's") != nil {
		return "it has a call that is not there"
	}
	for seq := range whole.Head.Seq + 2 {
		if x, y := whole.Splits(seq), loaded.Splits(seq); x != y {
			return fmt.Sprintf("%d lies inside the call at %d and should inside that at %d", seq, y, x)
		}
	}
	return ""
}
