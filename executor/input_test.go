package executor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

func TestBadCallsAreRefusedAtTheDoor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	for what, c := range map[string]struct {
		body string
		want schema.Kind
	}{
		"nothing":                     {``, schema.InvalidArgs},
		"broken JSON":                 {`{"call_id":"c1","name":"echo","args":{}`, schema.InvalidArgs},
		"more behind the JSON":        {`{"call_id":"c1","name":"echo"}{}`, schema.InvalidArgs},
		"no object":                   {`["c1","echo"]`, schema.InvalidArgs},
		"null":                        {`null`, schema.InvalidArgs},
		"a text":                      {`"c1"`, schema.InvalidArgs},
		"no call id":                  {`{"name":"echo"}`, schema.InvalidArgs},
		"no name":                     {`{"call_id":"c1"}`, schema.InvalidArgs},
		"a key in upper case":         {`{"CALL_ID":"c1","name":"echo"}`, schema.InvalidArgs},
		"a key in another spelling":   {`{"call_id":"c1","Name":"echo"}`, schema.InvalidArgs},
		"a call id of another type":   {`{"call_id":1,"name":"echo"}`, schema.InvalidArgs},
		"an empty call id":            {`{"call_id":"","name":"echo"}`, schema.InvalidArgs},
		"a call id with a space":      {`{"call_id":"c 1","name":"echo"}`, schema.InvalidArgs},
		"a call id with a newline":    {`{"call_id":"c\n1","name":"echo"}`, schema.InvalidArgs},
		"a call id that is no ASCII":  {`{"call_id":"cü","name":"echo"}`, schema.InvalidArgs},
		"a call id that is broken":    {`{"call_id":"c\ud800","name":"echo"}`, schema.InvalidArgs},
		"a call id that is too long":  {`{"call_id":"` + strings.Repeat("c", 257) + `","name":"echo"}`, schema.InvalidArgs},
		"a name that is too long":     {`{"call_id":"c1","name":"` + strings.Repeat("n", 257) + `"}`, schema.InvalidArgs},
		"a key that is too long":      {`{"call_id":"c1","name":"echo","key":"` + strings.Repeat("k", 257) + `"}`, schema.InvalidArgs},
		"a dry run of another type":   {`{"call_id":"c1","name":"echo","dry_run":"yes"}`, schema.InvalidArgs},
		"a key twice":                 {`{"call_id":"c1","name":"echo","args":{"a":1,"a":2}}`, schema.InvalidArgs},
		"a key twice in two spelling": {`{"call_id":"c1","name":"echo","args":{"a":1,"\u0061":2}}`, schema.InvalidArgs},
		"the call id twice":           {`{"call_id":"c1","call_id":"c2","name":"echo"}`, schema.InvalidArgs},
		"two keys that are broken":    {`{"call_id":"c1","name":"echo","args":{"\ud800":1,"\udfff":2}}`, schema.InvalidArgs},
		"args that are too deep":      {`{"call_id":"c1","name":"echo","args":` + nested(schema.MaxDepth) + `}`, schema.InvalidArgs},
		"context that is too deep":    {`{"call_id":"c1","name":"echo","context":` + nested(schema.MaxDepth) + `}`, schema.InvalidArgs},
		"a control character":         {"{\"call_id\":\"c1\",\"name\":\"echo\",\"args\":{\"a\":\"\x01\"}}", schema.InvalidArgs},
		"a broken number":             {`{"call_id":"c1","name":"echo","args":{"a":01}}`, schema.InvalidArgs},
		"not a number":                {`{"call_id":"c1","name":"echo","args":{"a":NaN}}`, schema.InvalidArgs},
		"context that is too long":    {`{"call_id":"c1","name":"echo","context":{"a":"` + strings.Repeat("a", schema.MaxLine-8<<10) + `"}}`, schema.PayloadTooLarge},
		"a turn that is too long":     {`{"call_id":"c1","name":"echo","turn":{"a":"` + strings.Repeat("a", schema.MaxLine) + `"}}`, schema.PayloadTooLarge},
	} {
		m, err := ask(t, n.conn, "steno.v1.call.s1", c.body)
		if schema.KindOf(err) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
		if m.Header.Get("Nats-Service-Error-Code") != fmt.Sprint(c.want.Info().Status) || m.Header.Get("Steno-Error-Kind") != string(c.want) {
			t.Errorf("%s: the headers are %v", what, m.Header)
		}
	}
	if types := p.types("s1"); len(types) != 0 {
		t.Errorf("what was refused is recorded: %q", types)
	}
	n.call("s1", "c1", "echo", `{"a":1}`) // the service is up
	p.wantTypes("s1", "tool_call", "permission_decision", "tool_started", "tool_result")
}

// nested is an object in an object, so many deep.
func nested(n int) string { return strings.Repeat(`{"a":`, n-1) + `{}` + strings.Repeat(`}`, n-1) }

func TestOddArgumentsAreKeptAsTheyAre(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{toolOf("run", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true}, nil
	})})
	n.open("s1")
	for i, c := range []struct{ args, want string }{
		{`{"n":12345678901234567890123456789012345678901234567890}`, ``},
		{`{"n":1e400,"m":-0,"o":1.10,"p":1E+2}`, ``},
		{` { "b" : 1 , "a" : [ ] } `, `{"b":1,"a":[]}`},
		{`{"a":"\u0041\/\b\u2028"}`, ``},
		{`{"a":"` + "\u2028\u202e" + `<&>"}`, ``},
		{`{"a":"\ud83d\ude00\ud83d"}`, `{"a":"\ud83d\ude00\ufffd"}`},
		{"{\"\xff\":\"\xed\xa0\x80\"}", "{\"\uFFFD\":\"\uFFFD\uFFFD\uFFFD\"}"},
		{nested(60), ``},
		{`{"a":"` + strings.Repeat("a", 1<<20-1<<10) + `"}`, ``},
		{`{"b":1e400,"a":"` + strings.Repeat(`\u0041\ud83d`, schema.MaxInline/10) + `"}`, `{"b":1e400,"a":"` + strings.Repeat(`\u0041\ufffd`, schema.MaxInline/10) + `"}`},
	} {
		id := fmt.Sprint("c", i)
		m, err := ask(t, n.conn, "steno.v1.call.s1", `{"call_id":"`+id+`","name":"run","args":`+c.args+`}`)
		if err != nil {
			t.Errorf("%.80s: %v", c.args, err)
			continue
		}
		wantKindOfResult(t, m.Data, "")
		l := p.read("s1")
		call := l.Events[len(l.Events)-4]
		if c.want == "" {
			c.want = c.args
		}
		if got := field[jsontext.Value](t, p.whole("s1", call.Data), "args"); string(got) != c.want {
			t.Errorf("%.80s is recorded as %.80s", c.args, got)
		}
	}
	// Nesting and numbers of any size that a line holds.
	for id, args := range map[string]string{"deep": nested(schema.MaxDepth - 1), "long": `{"n":1` + strings.Repeat("0", 500) + `}`, "huge": `{"n":1e999999999}`} {
		a := n.call("s1", id, "run", args)
		wantKindOfResult(t, a.Data, "")
		p.wantRecorded("s1", a)
		l := p.read("s1")
		if got := field[jsontext.Value](t, l.Events[len(l.Events)-4].Data, "args"); string(got) != args {
			t.Errorf("%s is recorded as %.80s", id, got)
		}
	}
}

func TestT11ARefusedCallIsACallAndAResult(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	ran := false
	strict := toolOf("strict", func(context.Context, *executor.Invocation) (executor.Result, error) {
		ran = true
		return executor.Result{OK: true}, nil
	})
	strict.Input = jsontext.Value(`{"type":"object","required":["a","b"],"properties":{"a":{"type":"integer"},"c":{"enum":["x"]}},"additionalProperties":false}`)
	n := p.node([]executor.Tool{strict, echo})
	n.open("s1")
	for _, c := range []struct {
		id, tool, args string
		want           schema.Kind
	}{
		{"unknown", "no_such_tool", `{}`, schema.UnknownTool},
		{"odd-name", "no such\ntool\x00", `{}`, schema.UnknownTool},
		{"list", "echo", `[1]`, schema.InvalidArgs},
		{"null", "echo", `null`, schema.InvalidArgs},
		{"strict", "strict", `{"a":"1","c":"y","d":0}`, schema.InvalidArgs},
	} {
		a := n.call("s1", c.id, c.tool, c.args)
		p.wantRecorded("s1", a)
		wantKindOfResult(t, a.Data, c.want)
		if ok := field[bool](t, a.Data, "ok"); ok || field[int](t, a.Data, "attempt") != 0 {
			t.Errorf("%s is answered %s", c.id, a.Data)
		}
		if types := p.types("s1"); !slices.Equal(types[len(types)-2:], []string{"tool_call", "tool_result"}) {
			t.Errorf("%s has the events %q", c.id, types)
		}
		if again := n.call("s1", c.id, c.tool, c.args); string(again.Data) != string(a.Data) {
			t.Errorf("%s is answered %s the second time", c.id, again.Data)
		}
	}
	if ran {
		t.Error("a refused call has run")
	}
	body := field[schema.ErrorBody](t, p.result("s1", "strict"), "error")
	var pointers []string
	for _, v := range body.Details["violations"].([]any) {
		pointers = append(pointers, v.(map[string]any)["pointer"].(string))
	}
	if want := []string{"", "/a", "/c", "/d"}; !slices.Equal(pointers, want) {
		t.Errorf("the violations are at %q, want %q", pointers, want)
	}
	if body = field[schema.ErrorBody](t, p.result("s1", "unknown"), "error"); fmt.Sprint(body.Details["known"]) != "[echo strict]" || body.Details["session"] != "s1" {
		t.Errorf("the details are %v", body.Details)
	}
}

// A tool that was there when a call was made, and is no longer.
func TestARecordedCallOutlivesItsTool(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	a := n.call("s1", "c1", "echo", `{}`)
	n.stop()
	n = p.node(nil)
	if again := n.call("s1", "c1", "echo", `{}`); string(again.Data) != string(a.Data) {
		t.Errorf("the answer is %s", again.Data)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		`{"call_id":"c1","name":"echo","args":{"a":1}}`,
		` { "call_id" : "c1" , "name" : "x" , "key" : "k" , "dry_run" : true , "context" : [ ] , "turn" : null } `,
		`{"call_id":"c1","name":"\ud800","args":{"\u0061":"\udc00"}}`,
		"{\"call_id\":\"c1\",\"name\":\"\xff\",\"args\":{\"a\":\"\xed\xa0\x80\"}}",
		`{"call_id":"c1","name":"n","args":{"a":1,"a":2}}`,
		`{"call_id":"c1","name":"n","args":` + nested(249) + `}`,
		`{"call_id":"~","name":"n","args":{"n":1e400},"unknown":{}}`,
		`{"call_id":"a","name":"n","actor":{"id":"ada","via":"go"}}`, `{"call_id":"a","name":"n","actor":{"id":"\u0061da","who":1}}`, `{"call_id":"a","name":"n","actor":{}}`,
		`{"call_id":"c\u0031","name":"\"","args":null,"key":"","dry_run":false,"context":1,"turn":{"n":[{}]}}`,
		`{"call_id":null}`, `{"dry_run":null}`, `{"key":1}`, `{"nam\u0065":"n"}`, `{}`, `null`, `[]`, ``, `{`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if text, _, err := schema.Compact(nil, payload, 1); err == nil {
			if quick, plain, slow, err := executor.ReadRequest(text); plain && (err != nil || !reflect.DeepEqual(quick, slow)) {
				t.Errorf("%s is read as %+v, and strictly as %+v, %v", text, quick, slow, err)
			}
		}
		typ, data, sum, err := executor.ParseRequest(payload)
		if err != nil {
			if k := schema.KindOf(err); k != schema.InvalidArgs && k != schema.PayloadTooLarge {
				t.Fatalf("refused with %v", err)
			}
			if json.Unmarshal(schema.Envelope(err), new(any)) != nil {
				t.Fatal("the refusal has no JSON form")
			}
			return
		}
		if err := schema.CheckData(typ, data); err != nil {
			t.Fatalf("accepted, and the entry %s is refused: %v", data, err)
		}
		e := schema.Event{Session: strings.Repeat("s", 128), Seq: math.MaxInt64, Epoch: math.MaxInt64, Type: typ, Data: data}
		line := e.Append(nil)
		var got schema.Event
		if err := got.Decode(line[:len(line)-1]); err != nil {
			t.Fatalf("accepted, and the line does not decode: %v\n%s", err, line)
		}
		if field[string](t, got.Data, "args_sha256") != sum || len(sum) != 64 {
			t.Fatalf("the sum of the arguments is %q", sum)
		}
		// What is recorded is the same call.
		again, err := executor.RecordedRequest(got.Data)
		if err != nil || again != sum {
			t.Fatalf("read back, the sum is %q, %v", again, err)
		}
	})
}

// A client sends the same bytes whichever way it makes them.
func FuzzEncodeRequest(f *testing.F) {
	for _, r := range []executor.Request{
		{CallID: "c1", Name: "echo", Args: []byte(`{"a":[1,"\u00e9\ud800"]}`), Key: "k", DryRun: true},
		{CallID: "\"<\x00\u2028", Name: "\xff\xed\xa0\x80", Args: []byte(`{}`)}, {},
		{CallID: "c", Args: []byte(`{}`), Actor: executor.Actor{ID: "ad\xffa", Via: "go"}}, {Args: []byte(`{}`), Actor: executor.Actor{ID: "ada"}},
		{Args: []byte(`{ "a" : 1 }`)}, {Args: []byte(`{},"dry_run":true`)}, {Args: []byte("{\"a\":\"\xff\"}")}, {Args: []byte(`[]`), Context: []byte(`1`)},
	} {
		f.Add(r.CallID, r.Name, r.Key, []byte(r.Args), []byte(r.Context), r.DryRun, r.Actor.ID, r.Actor.Via)
	}
	f.Fuzz(func(t *testing.T, id, name, key string, args, context []byte, dry bool, actor, via string) {
		r := executor.Request{CallID: id, Name: name, Key: key, Args: args, Context: context, DryRun: dry, Actor: executor.Actor{ID: actor, Via: via}}
		quick, general, err, generalErr := executor.EncodeRequest(r)
		if string(quick) != string(general) || (err == nil) != (generalErr == nil) {
			t.Errorf("%+v is sent as %s, %v, not %s, %v", r, quick, err, general, generalErr)
		}
	})
}

// What is read without another look is what the strict reader makes of it.
func FuzzReadArgs(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":[1,-2.5e3,1e999999,{"b":[]}],"c":"\"\\\u0041\n","":null,"t":true,"f":false}`,
		`"\\"`, `"a\"b\\"`, `[[],[[]],""]`, `{"\u0061":"\ud83d\ude00"}`, `"\ud800"`, `0`, nested(200), "{\"\xc3\xa9\":\"\xf0\x9f\x98\x80\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		args, _, err := schema.Compact(nil, b, 2)
		if err != nil {
			return
		}
		for _, args := range [][]byte{args, bytes.ReplaceAll(args, []byte(`\ufffd`), []byte(`\udc00`))} { // as a log may have it
			quick, strict, bad, strictlyBad := executor.ReadArgs(args)
			if !reflect.DeepEqual(quick, strict) || !reflect.DeepEqual(bad, strictlyBad) {
				t.Errorf("%s is read as %#v, %v, and strictly as %#v, %v", args, quick, bad, strict, strictlyBad)
			}
		}
	})
}
