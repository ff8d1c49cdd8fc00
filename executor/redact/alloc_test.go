//go:build !race

package redact_test

import (
	"strings"
	"testing"
)

// The race detector makes pools forget at random.

// Nothing is allocated for what has no secret, as for nearly all.
func TestRedactionOfNothingAllocatesNothing(t *testing.T) {
	r := redactor(t, operatorRules)
	text := "line 1\n" + strings.Repeat("password of the token: x\n", 10)
	b := []byte(`{"cmd":"go test ./...\n","n":[1,2,{"a":true}],"deep":"{\"x\":1}"}`)
	if n := testing.AllocsPerRun(200, func() {
		r.Text(text, "/output", nil)
		r.JSON(b, "/args", nil)
	}); n >= 1 { // a collection may empty the pool
		t.Errorf("%v allocations", n)
	}
}
