package executor_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"steno/executor"
	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

// A registry holds the built-in tools and one of our own, and says everything
// that is wrong with the arguments of a call.
func ExampleRegistry() {
	r, err := executor.NewRegistry(executor.Builtin()...)
	if err != nil {
		log.Fatal(err)
	}
	err = r.Register(executor.Tool{
		Name:        "add",
		Description: "Add two whole numbers.",
		Input: jsontext.Value(`{"type":"object",
			"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
			"required":["a","b"]}`),
		Repeatable: true,
		ReadOnly:   true,
		Run: func(ctx context.Context, call *executor.Invocation) (executor.Result, error) {
			return executor.Result{OK: true, Output: "42"}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range r.Tools() {
		fmt.Println(t.Name, t.Tier)
	}
	err = r.Validate("add", jsontext.Value(`{"a":"one"}`))
	if e, ok := errors.AsType[*schema.Error](err); ok {
		fmt.Println(e.Kind)
		for _, v := range e.Details["violations"].([]executor.Violation) {
			fmt.Printf("%q %s\n", v.Pointer, v.Message)
		}
	}
	// Output:
	// add 0
	// bash 3
	// edit 1
	// list 0
	// read 0
	// search 0
	// write 1
	// invalid_args
	// "" "b" is missing
	// "/a" must be integer, is string
}
