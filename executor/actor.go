package executor

import (
	"bytes"
	"context"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// An Actor is on whose behalf something is done. The application says who that
// is, in the request beside the arguments: a model's arguments are never asked.
type Actor struct {
	ID string `json:"id"` // 1 to 256 bytes without control characters
	// Via is the door: request, queue, or go for a call by [Executor.Do]. Whatever
	// a request says, the door has the last word.
	Via string `json:"via,omitzero"`
}

const (
	viaRequest = "request"
	viaQueue   = "queue"
	viaGo      = "go"
)

// headerVia names the door of a call that another executor has passed on.
const headerVia = "Steno-Via"

type viaKey struct{}

// through says by which door a request has come; request where nobody does.
func through(ctx context.Context, door string) context.Context {
	return context.WithValue(ctx, viaKey{}, door)
}

func viaOf(ctx context.Context) string {
	if door, ok := ctx.Value(viaKey{}).(string); ok {
		return door
	}
	return viaRequest
}

// check refuses an actor that is none. Nobody, the zero Actor, may stay unsaid.
func (a *Actor) check() error {
	if *a == (Actor{}) {
		return nil
	}
	bad := a.ID == "" || len(a.ID) > maxBy || !utf8.ValidString(a.ID)
	for _, c := range a.ID {
		bad = bad || unicode.IsControl(c)
	}
	if bad {
		return schema.Errorf(schema.InvalidArgs, "actor must have an id of 1 to %d bytes, without control characters", maxBy).With("pointer", "/actor/id")
	}
	return nil
}

// via says by which door somebody has come, if somebody has.
func (a *Actor) via(door string) {
	if a.ID != "" {
		a.Via = door
	}
}

// record adds an actor to an event, if there is one.
func (a *Actor) record(o *schema.Object) {
	if a.ID == "" {
		return
	}
	var who schema.Object
	who.Grow(len(a.ID)+32).Text("id", a.ID)
	if a.Via != "" {
		who.Text("via", a.Via)
	}
	o.Raw("actor", who.Bytes())
}

// read reads what a request says of its actor where that is plain, as readRequest
// does.
func (a *Actor) read(value jsontext.Value) (plain bool) {
	f := spare.Get().(*schema.Fields)
	defer func() {
		f.Read(nil)
		spare.Put(f)
	}()
	plain = f.Read(value)
	for i := range f.Len() {
		key, value := f.At(i)
		plain = plain && value[0] == '"' && bytes.IndexByte(value, '\\') < 0
		if !plain {
			return false
		}
		switch text := string(value[1 : len(value)-1]); string(key) {
		case "id":
			a.ID = text
		case "via":
			a.Via = text
		default:
			return false
		}
	}
	return plain
}
