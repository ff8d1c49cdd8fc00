package executor_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"steno/executor"

	"github.com/go-json-experiment/json/jsontext"
)

// CountWords is what the model fills in. The tag jsonschema is what it reads.
type CountWords struct {
	Text string `json:"text" jsonschema:"the text whose words are counted"`
}

// A tool is made of a function. Its name and its schema come from the type of
// the arguments.
func ExampleDefine() {
	t := executor.Define("", "Count the words of a text.", func(ctx context.Context, in CountWords) (int, error) {
		return len(strings.Fields(in.Text)), nil
	})
	t.ReadOnly, t.Repeatable = true, true // it may be run again
	tools, err := executor.NewRegistry(t)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.Name)
	fmt.Println(string(t.Input))
	fmt.Println(tools.Validate("count_words", jsontext.Value(`{"words":"one two"}`)))
	// Output:
	// count_words
	// {"type":"object","properties":{"text":{"type":"string","description":"the text whose words are counted"}},"required":["text"],"additionalProperties":false}
	// invalid_args: the arguments are not valid: "text" is missing; and 1 more
}
