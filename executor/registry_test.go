package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

func noop(context.Context, *executor.Invocation) (executor.Result, error) {
	return executor.Result{OK: true}, nil
}

func tool(name, input string) executor.Tool {
	return executor.Tool{Name: name, Description: "does nothing", Input: jsontext.Value(input), Run: noop}
}

// checking is a registry of one tool named t with this schema.
func checking(t *testing.T, input string) *executor.Registry {
	t.Helper()
	r, err := executor.NewRegistry(tool("t", input))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// violations validates and gives "pointer: message" of each, or nil.
func violations(t *testing.T, r *executor.Registry, args string) []string {
	t.Helper()
	err := r.Validate("t", jsontext.Value(args))
	if err == nil {
		return nil
	}
	e := wantKind(t, err, schema.InvalidArgs)
	var list []string
	for _, v := range e.Details["violations"].([]executor.Violation) {
		list = append(list, v.Pointer+": "+v.Message)
	}
	return list
}

func TestT1RegisterRefusesWhatIsNotATool(t *testing.T) {
	const object = `{"type":"object"}`
	change := func(f func(*executor.Tool)) executor.Tool {
		x := tool("x", object)
		f(&x)
		return x
	}
	for name, x := range map[string]executor.Tool{
		"no name":              tool("", object),
		"a dot in the name":    tool("a.b", object),
		"a space in the name":  tool("a b", object),
		"65 characters":        tool(strings.Repeat("a", 65), object),
		"no description":       change(func(x *executor.Tool) { x.Description = " \n" }),
		"no Run":               change(func(x *executor.Tool) { x.Run = nil }),
		"tier below 0":         change(func(x *executor.Tool) { x.Tier = -1 }),
		"timeout below 0":      change(func(x *executor.Tool) { x.Timeout = -1 }),
		"no schema":            tool("x", ""),
		"not JSON":             tool("x", "{"),
		"a schema of true":     tool("x", "true"),
		"an array":             tool("x", `{"type":"array"}`),
		"two types":            tool("x", `{"type":["object","null"]}`),
		"no type":              tool("x", `{"properties":{}}`),
		"duplicate names":      tool("x", `{"type":"object","type":"object"}`),
		"an unknown dialect":   tool("x", `{"type":"object","$schema":"https://example.com/mine"}`),
		"an old dialect":       tool("x", `{"type":"object","$schema":"http://json-schema.org/draft-04/schema#"}`),
		"not a schema":         tool("x", `{"type":"object","properties":7}`),
		"a reference to a URL": tool("x", `{"type":"object","properties":{"a":{"$ref":"https://example.com/a.json"}}}`),
		"a reference to a file": tool("x",
			`{"type":"object","properties":{"a":{"$ref":"file:///etc/hostname"}}}`),
		"a reference beside it":  tool("x", `{"type":"object","properties":{"a":{"$ref":"other.json"}}}`),
		"a reference to nowhere": tool("x", `{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}}}`),
		"a pattern with a back-reference": tool("x",
			`{"type":"object","properties":{"a":{"pattern":"(a)\\1"}}}`),
	} {
		r, err := executor.NewRegistry()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Register(x); !errors.Is(err, schema.InvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
		if got := r.Tools(); len(got) != 0 {
			t.Errorf("%s: registered all the same", name)
		}
	}
}

func TestT5RegisterTwiceIsRefusedAndReplaceIsNot(t *testing.T) {
	r := checking(t, `{"type":"object"}`)
	wantKind(t, r.Register(tool("t", `{"type":"object"}`)), schema.AlreadyExists)
	if err := r.Replace(tool("t", `{"type":"object","required":["a"]}`)); err != nil {
		t.Fatal(err)
	}
	if got := violations(t, r, `{}`); len(got) != 1 {
		t.Errorf("the old schema is still in use: %q", got)
	}
	if err := r.Replace(tool("new", `{"type":"object"}`)); err != nil {
		t.Errorf("replacing nothing: %v", err)
	}
	wantKind(t, r.Replace(tool("t", `{}`)), schema.InvalidConfig)
}

// A tool whose name is made of another keeps that one, in what is told of it and
// in the record, and two that would get the same name are refused by both.
func TestT1AToolKeepsTheNameThatItHasElsewhere(t *testing.T) {
	named := func(original string) executor.Tool {
		x := tool(schema.ToolName(original), `{"type":"object"}`)
		x.Original = original
		return x
	}
	for there, comes := range map[string]string{"files.read": "files/read", "files_read": "files.read", "a.b": "a b"} {
		r, err := executor.NewRegistry(named(there))
		if err != nil {
			t.Fatal(err)
		}
		bad := wantKind(t, r.Register(named(comes)), schema.AlreadyExists)
		if got := bad.Details["originals"]; !slices.Equal(got.([]string), []string{there, comes}) || !strings.Contains(bad.Error(), there) || !strings.Contains(bad.Error(), comes) {
			t.Errorf("%s and %s: %v (%v)", there, comes, bad, got)
		}
	}
	r, err := executor.NewRegistry(tool("a_b", `{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, r.Register(named("a.b")), schema.AlreadyExists)
	for _, bad := range []string{"\xff", strings.Repeat("x", 1025)} {
		wantKind(t, r.Register(named(bad)), schema.InvalidConfig)
	}

	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{named("files.read"), tool("plain", `{"type":"object"}`)})
	n.open("s1")
	n.call("s1", "c1", "files_read", `{}`)
	if started, _ := p.last("s1", schema.TypeToolStarted); field[string](t, started, "original") != "files.read" {
		t.Errorf("recorded as %s", started)
	}
	n.call("s1", "c2", "plain", `{}`)
	if started, _ := p.last("s1", schema.TypeToolStarted); strings.Contains(string(started), "original") {
		t.Errorf("recorded as %s", started)
	}
	told, err := n.client.Tools(within(t), executor.ToolsRequest{Session: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(told.Tools) != 2 || !strings.HasPrefix(string(told.Tools[0]), `{"name":"files_read","original":"files.read","description":`) ||
		strings.Contains(string(told.Tools[1]), "original") {
		t.Errorf("told are %s", told.Tools)
	}
}

func TestT5AnUnknownToolNamesTheKnown(t *testing.T) {
	r, err := executor.NewRegistry(executor.Builtin()...)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bash", "edit", "list", "read", "search", "write"}
	_, err = r.Get("rm")
	if got := wantKind(t, err, schema.UnknownTool).Details["known"]; !slices.Equal(got.([]string), want) {
		t.Errorf("known: %v", got)
	}
	wantKind(t, r.Validate("rm", jsontext.Value("{}")), schema.UnknownTool)
	var names []string
	for _, x := range r.Tools() {
		names = append(names, x.Name)
	}
	if !slices.Equal(names, want) {
		t.Errorf("tools: %v", names)
	}
}

func TestT1ARegisteredToolDoesNotChange(t *testing.T) {
	mine := tool("t", `{"type":"object"}`)
	r, err := executor.NewRegistry(mine)
	if err != nil {
		t.Fatal(err)
	}
	mine.Input[0] = 'X'
	got, err := r.Get("t")
	if err != nil {
		t.Fatal(err)
	}
	got.Input[0] = 'Y'
	r.Tools()[0].Input[0] = 'Z'
	if again, _ := r.Get("t"); string(again.Input) != `{"type":"object"}` {
		t.Errorf("the schema is now %s", again.Input)
	}
}

func TestBuiltinToolsDeclareWhatTheyAre(t *testing.T) {
	for _, x := range executor.Builtin() {
		reads := x.Name == "read" || x.Name == "list" || x.Name == "search"
		tier := map[string]int{"write": 1, "edit": 1, "bash": 3}[x.Name]
		if x.ReadOnly != reads || x.Repeatable != reads || x.Tier != tier {
			t.Errorf("%s: read-only %v, repeatable %v, tier %d", x.Name, x.ReadOnly, x.Repeatable, x.Tier)
		}
	}
}

func TestT13ValidationReportsEveryViolation(t *testing.T) {
	r := checking(t, `{
		"type":"object",
		"properties":{
			"name":{"type":"string","minLength":3,"pattern":"^[a-z]+$"},
			"count":{"type":"integer","minimum":1},
			"mode":{"enum":["fast","slow"]},
			"list":{"type":"array","items":{"type":"object","required":["id"],"properties":{"id":{"type":"integer"}}}},
			"a/b":{"type":"null"}
		},
		"required":["name","path","mode"],
		"additionalProperties":false}`)
	got := violations(t, r, `{"name":"A","count":0,"list":[{"id":1},{"id":"x"},{}],"a/b":1,"extra":1,"more":2}`)
	want := []string{
		`: "mode" is missing`,
		`: "path" is missing`,
		`/a~1b: must be null, is number`,
		`/count: must be at least 1`,
		`/extra: there is no such property`,
		`/list/1/id: must be integer, is string`,
		`/list/2: "id" is missing`,
		`/more: there is no such property`,
		`/name: must have at least 3 characters, has 1`,
		`/name: must match the pattern ^[a-z]+$`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := violations(t, r, `{"name":"abc","path":1,"mode":"fast"}`); !slices.Equal(got, []string{"/path: there is no such property"}) {
		t.Errorf("got %q", got)
	}
}

func TestT13ValidationTellsAlternativesApart(t *testing.T) {
	r, err := executor.NewRegistry(executor.Builtin()...)
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{}`:                              `exactly one of 2 alternatives must hold|alternative 1: "command" is missing|alternative 2: "argv" is missing`,
		`{"command":"true","argv":["x"]}`: `alternatives 1 and 2 both hold, only one may`,
	} {
		e := wantKind(t, r.Validate("bash", jsontext.Value(args)), schema.InvalidArgs)
		var got []string
		for _, v := range e.Details["violations"].([]executor.Violation) {
			got = append(got, v.Message)
		}
		slices.Sort(got)
		parts := strings.Split(want, "|")
		slices.Sort(parts)
		if !slices.Equal(got, parts) {
			t.Errorf("%s: got %q, want %q", args, got, parts)
		}
	}
}

func TestT13ValidationBoundsWhatItReports(t *testing.T) {
	r := checking(t, `{"type":"object","properties":{"l":{"items":{"type":"string"}}},"additionalProperties":{"type":"string"}}`)
	e := wantKind(t, r.Validate("t", jsontext.Value(`{"l":[`+strings.Repeat("1,", 249)+`1]}`)), schema.InvalidArgs)
	if got := e.Details["violations"].([]executor.Violation); len(got) != 100 {
		t.Errorf("%d listed, want 100", len(got))
	}
	if e.Details["omitted"] != 150 {
		t.Errorf("omitted is %v, want 150", e.Details["omitted"])
	}
	if !strings.Contains(e.Message, "249 more") {
		t.Errorf("the message does not count the others: %s", e.Message)
	}

	long := strings.Repeat("n", 100_000)
	e = wantKind(t, r.Validate("t", jsontext.Value(`{"`+long+`":1}`)), schema.InvalidArgs)
	if n := len(schema.Envelope(e)); n > 2000 {
		t.Errorf("the error has %d bytes", n)
	}
}

func TestT13ValidationDoesNotRepeatValues(t *testing.T) {
	r := checking(t, `{"type":"object","properties":{
		"p":{"pattern":"^x$"},"e":{"enum":["a"]},"c":{"const":1},"m":{"minLength":100}}}`)
	e := wantKind(t, r.Validate("t", jsontext.Value(`{"p":"hunter2","e":"hunter2","c":"hunter2","m":"hunter2"}`)), schema.InvalidArgs)
	if body := string(schema.Envelope(e)); strings.Contains(body, "hunter2") {
		t.Errorf("a value is in the error: %s", body)
	}
}

func TestT13NumbersAreComparedAsWritten(t *testing.T) {
	r := checking(t, `{"type":"object","properties":{
		"max":{"type":"integer","maximum":9007199254740992},
		"const":{"const":9007199254740993},
		"big":{"type":"integer","minimum":100000000000000000000000000000001},
		"cents":{"multipleOf":0.01}}}`)
	for args, ok := range map[string]bool{
		`{"max":9007199254740992}`:                       true,
		`{"max":9007199254740993}`:                       false, // equal as float64
		`{"const":9007199254740993}`:                     true,
		`{"const":9007199254740992}`:                     false,
		`{"big":100000000000000000000000000000001}`:      true,
		`{"big":100000000000000000000000000000000}`:      false,
		`{"big":1e32}`:                                   false,
		`{"big":1e33}`:                                   true,
		`{"cents":1.13}`:                                 true, // not a multiple as float64
		`{"cents":1.131}`:                                false,
		`{"max":1e999999999}`:                            false,
		`{"max":-1e-999999999}`:                          false,
		`{"other":1e999999999}`:                          true, // no schema looks at it
		`{"big":1e999999999}`:                            true,
		`{"big":-1e999999999}`:                           false,
		`{"big":0e999999999}`:                            false,
		`{"big":1e-99999999999999999999999}`:             false,
		`{"big":1` + strings.Repeat("0", 5000) + `}`:     true,
		`{"cents":0.` + strings.Repeat("0", 5000) + `1}`: false,
		`{"max":0.` + strings.Repeat("3", 5000) + `}`:    false,
		`{"max":-` + strings.Repeat("9", 390) + `}`:      true,
		`{"max":-` + strings.Repeat("9", 5000) + `}`:     true,
	} {
		if got := violations(t, r, args); (got == nil) != ok {
			t.Errorf("%.60s: %q", args, got)
		}
	}
	got := violations(t, r, `{"big":1}`)
	if want := "/big: must be at least 100000000000000000000000000000001"; !slices.Equal(got, []string{want}) {
		t.Errorf("got %q", got)
	}
}

func TestT13ArgumentsAreOneStrictObject(t *testing.T) {
	r := checking(t, `{"type":"object"}`)
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	for args, want := range map[string]string{
		``:                    ": there is no value",
		`null`:                ": must be object, is null",
		`[]`:                  ": must be object, is array",
		`"{}"`:                ": must be object, is string",
		`{} {}`:               ": this is not JSON",
		`{"a":1,}`:            ": this is not JSON",
		`{"a":{"b":1,"b":2}}`: "/a/b: the name is there twice",
		"{\"a\":\"\xff\"}":    "/a: this is not JSON",
		`{"a":NaN}`:           "/a: this is not JSON",
		deep:                  "",
	} {
		got := violations(t, r, args)
		if len(got) != 1 || want != "" && got[0] != want {
			t.Errorf("%.40q: got %q, want %q", args, got, want)
		}
	}
	if got := violations(t, r, `{"a":[{"b":null}]}`); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestT13SchemasOfBothDialects(t *testing.T) {
	// In draft-07 $ref hides its neighbours and format is asserted; in 2020-12
	// neither is so.
	const body = `"type":"object","$defs":{"s":{"type":"string"}},"properties":{
		"r":{"$ref":"#/$defs/s","maxLength":1},"m":{"format":"ipv4"}}}`
	for dialect, want := range map[string][]string{
		`{`: {"/r: must have at most 1 characters, has 2"},
		`{"$schema":"https://json-schema.org/draft/2020-12/schema",`: {"/r: must have at most 1 characters, has 2"},
		`{"$schema":"http://json-schema.org/draft-07/schema#",`:      {"/m: must be a valid ipv4"},
	} {
		if got := violations(t, checking(t, dialect+body), `{"r":"ab","m":"x"}`); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", dialect, got, want)
		}
	}
}

func TestT13APatternCannotHang(t *testing.T) {
	r := checking(t, `{"type":"object","properties":{"a":{"pattern":"^(a+)+$"}}}`)
	if got := violations(t, r, `{"a":"`+strings.Repeat("a", 50_000)+`!"}`); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

func TestT13EveryKindOfViolationHasWords(t *testing.T) {
	for _, c := range []struct{ schema, args, want string }{
		{`"minProperties":2`, `{}`, ": must have at least 2 properties, has 0"},
		{`"maxProperties":0`, `{"a":1}`, ": must have at most 0 properties, has 1"},
		{`"propertyNames":{"maxLength":1}`, `{"abc":1}`, `: a property may not be named "abc"`},
		{`"dependentRequired":{"a":["b"]}`, `{"a":1}`, `: "b" is missing, "a" needs it`},
		{`"properties":{"a":{"minItems":1}}`, `{"a":[]}`, "/a: must have at least 1 items, has 0"},
		{`"properties":{"a":{"maxItems":1}}`, `{"a":[1,2]}`, "/a: must have at most 1 items, has 2"},
		{`"properties":{"a":{"uniqueItems":true}}`, `{"a":[1,2,1.0]}`, "/a: items 0 and 2 are equal"},
		{`"properties":{"a":{"contains":{"const":1}}}`, `{"a":[2]}`, "/a: no item is as one must be"},
		{`"properties":{"a":{"contains":{"const":1},"minContains":2}}`, `{"a":[1]}`, "/a: at least 2 items must be as the schema says, 1 are"},
		{`"properties":{"a":{"contains":{"const":1},"maxContains":1}}`, `{"a":[1,1]}`, "/a: at most 1 items may be as the schema says, 2 are"},
		{`"properties":{"a":{"maximum":1.50}}`, `{"a":2}`, "/a: must be at most 1.5"},
		{`"properties":{"a":{"exclusiveMinimum":0}}`, `{"a":0}`, "/a: must be above 0"},
		{`"properties":{"a":{"exclusiveMaximum":1}}`, `{"a":1}`, "/a: must be below 1"},
		{`"properties":{"a":{"multipleOf":0.5}}`, `{"a":0.7}`, "/a: must be a multiple of 0.5"},
		{`"properties":{"a":{"maxLength":1}}`, `{"a":"äö"}`, "/a: must have at most 1 characters, has 2"},
		{`"properties":{"a":{"const":{"b":1}}}`, `{"a":1}`, `/a: must be {"b":1}`},
		{`"properties":{"a":{"enum":[1,"b"]}}`, `{"a":2}`, `/a: must be one of 1, "b"`},
		{`"properties":{"a":{"not":{"type":"string"}}}`, `{"a":""}`, "/a: must not hold what the schema excludes"},
		{`"properties":{"a":false}`, `{"a":1}`, "/a: nothing may be here"},
		{`"unevaluatedProperties":false`, `{"a":1}`, "/a: nothing may be here"},
		{`"allOf":[{"required":["a"]}]`, `{}`, `: "a" is missing`},
		{`"if":{"required":["a"]},"then":{"required":["b"]}`, `{"a":1}`, `: "b" is missing`},
	} {
		got := violations(t, checking(t, `{"type":"object",`+c.schema+`}`), c.args)
		if !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s of %s: got %q, want %q", c.schema, c.args, got, c.want)
		}
	}
}

func TestRegistryIsForManyGoroutines(t *testing.T) {
	r := checking(t, `{"type":"object","required":["a"]}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				name := fmt.Sprintf("t%d-%d", i, j)
				if err := r.Register(tool(name, `{"type":"object"}`)); err != nil {
					t.Error(err)
				}
				if err := r.Replace(tool("shared", `{"type":"object"}`)); err != nil {
					t.Error(err)
				}
				if _, err := r.Get(name); err != nil {
					t.Error(err)
				}
				if err := r.Validate("t", jsontext.Value(`{}`)); !errors.Is(err, schema.InvalidArgs) {
					t.Error(err)
				}
				r.Tools()
			}
		})
	}
	wg.Wait()
	if n := len(r.Tools()); n != 402 {
		t.Errorf("%d tools, want 402", n)
	}
}
