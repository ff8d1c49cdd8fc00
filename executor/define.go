package executor

import (
	"context"
	stdjson "encoding/json" // what the schema package encodes itself with
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
)

// Define makes a tool of a function. Its schema is inferred from In, a struct
// or a map: the JSON names of the fields, all of which are required but for
// those with omitzero or omitempty, and of each the text of its tag jsonschema,
// which is what the model reads. Other properties are refused. Where name is
// empty it is the name of the type In in snake case: SendMail gives send_mail.
//
// Run gets the arguments once they have been validated. What it returns is the
// result, which is OK unless there is an error: a string is its output, a
// [Result] is used as it is, and anything else becomes its structured answer,
// whose JSON is the output too. If that is an object, its schema is the tool's
// Output. [InvocationOf] gives the call: its session, key and attempt.
//
// The tool that Define returns has the safe flags, and tier 0. Set what is
// different before it is registered: Tier, ReadOnly, Repeatable, Timeout.
// Numbers keep their digits in a field of type jsontext.Value only. What
// cannot be defined is refused by [Registry.Register], kind invalid_config: a
// type without a JSON schema, or with one that is not what it is encoded as.
func Define[In, Out any](name, description string, run func(ctx context.Context, in In) (Out, error)) Tool {
	in, out := reflect.TypeFor[In](), reflect.TypeFor[Out]()
	t := Tool{Name: name, Description: description}
	if name == "" {
		t.Name, t.bad = derivedName(in)
	}
	var err error
	if t.Input, err = inferred(in, *new(In)); err != nil {
		t.bad = errors.Join(t.bad, fmt.Errorf("its arguments: %w", err))
	}
	if out != reflect.TypeFor[string]() && out != reflect.TypeFor[Result]() {
		answer := out
		for answer.Kind() == reflect.Pointer { // a nil one is no answer
			answer = answer.Elem()
		}
		if t.Output, err = inferred(answer, reflect.Zero(answer).Interface()); err != nil {
			t.bad = errors.Join(t.bad, fmt.Errorf("its answer: %w", err))
		} else if _, err := compile(t.Output); err != nil {
			t.Output = nil // it is no object
		}
	}
	if run == nil {
		return t // which has no Run
	}
	t.Run = func(ctx context.Context, call *Invocation) (Result, error) {
		args, err := decodeArgs[In](call)
		if err != nil {
			return Result{}, err
		}
		v, err := run(context.WithValue(ctx, invocationKey{}, call), args)
		if err != nil {
			return Result{}, err
		}
		switch v := any(v).(type) {
		case string:
			return Result{OK: true, Output: v}, nil
		case Result:
			return v, nil
		}
		b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return Result{}, fmt.Errorf("its answer is no JSON: %w", err)
		}
		return Result{OK: true, Output: string(b), Structured: b}, nil
	}
	return t
}

// InvocationOf is the call that a function of [Define] runs for, with the
// context that it was given; nil anywhere else.
func InvocationOf(ctx context.Context) *Invocation {
	call, _ := ctx.Value(invocationKey{}).(*Invocation)
	return call
}

type invocationKey struct{}

// inferred is the schema of a type. What a tool gets and gives is encoded by
// another package than the one that infers, so the zero value must fit.
func inferred(t reflect.Type, zero any) (jsontext.Value, error) {
	anything := &jsonschema.Schema{}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[jsontext.Value]():     anything,
		reflect.TypeFor[stdjson.RawMessage](): anything,
		reflect.TypeFor[[]byte]():             {Type: "string", ContentEncoding: "base64"},
	}})
	if err != nil {
		return nil, err
	}
	b, err := stdjson.Marshal(s)
	if err != nil {
		return nil, err
	}
	compiled, err := compile(b)
	if err != nil {
		return b, nil // Register says so, if it must be an object
	}
	example, err := json.Marshal(zero, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return nil, err
	}
	if found := violations(compiled, example, parseStrict); len(found) > 0 {
		return nil, fmt.Errorf("a %s is encoded in another way than its schema says: %s %s", t, found[0].Pointer, found[0].Message)
	}
	return b, nil
}

// derivedName is the name of a type in snake case.
func derivedName(t reflect.Type) (string, error) {
	name := t.Name()
	if name == "" || strings.ContainsRune(name, '[') {
		return "", fmt.Errorf("it has no name, and none can be made of the type %s", t)
	}
	return snake(name), nil
}

// snake writes a Go name in snake case: HTTPGet is http_get.
func snake(name string) string {
	letters := []rune(name)
	var b strings.Builder
	for i, c := range letters {
		if unicode.IsUpper(c) && i > 0 && letters[i-1] != '_' {
			ends := i+1 < len(letters) && unicode.IsLower(letters[i+1]) // of a row of capitals
			if !unicode.IsUpper(letters[i-1]) || ends {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
