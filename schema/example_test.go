package schema_test

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// A line says by itself whether it is whole.
func Example() {
	args, replaced, err := schema.Compact(nil, []byte(`{ "path": "a.txt", "offset": 12345678901234567890123 }`), 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	sum, err := schema.ArgsSHA256(args)
	if err != nil {
		fmt.Println(err)
		return
	}
	var data schema.Object
	e := schema.Event{
		Session: "s1", Seq: 3, Epoch: 1, Dur: 2,
		ID:   ulid.MustParseStrict("01KDYAK623R4DAPT6SZ6GP1RRW"),
		Time: time.Date(2026, 11, 30, 8, 30, 0, 0, time.UTC),
		Type: schema.TypeToolCall,
		Data: data.Text("call_id", "c1").Text("name", "read").Raw("args", args).Text("args_sha256", sum).Bytes(),
	}
	line := e.Append(nil)
	line = line[:len(line)-1]

	var back schema.Event
	fmt.Println(back.Decode(line), back.Type, replaced)
	line[100]++
	fmt.Println(back.Decode(line))
	// Output:
	// <nil> tool_call 0
	// sum_mismatch
}

// Programs branch on kinds, also behind a connection.
func ExampleParseEnvelope() {
	sent := schema.Errorf(schema.SessionWriterActive, "another process holds the session").With("session", "s1").Cause(os.ErrExist)
	got := schema.ParseEnvelope(schema.Envelope(sent))
	fmt.Println(errors.Is(got, schema.SessionWriterActive))
	fmt.Println(schema.AsError(got).Details["next"])
	// Output:
	// true
	// send it through the holder, which details name, or wait until it lets go
}
