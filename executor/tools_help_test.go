package executor_test

import (
	"errors"
	"testing"

	"steno/schema"
)

func wantKind(t *testing.T, err error, want schema.Kind) *schema.Error {
	t.Helper()
	e, ok := errors.AsType[*schema.Error](err)
	if !ok {
		t.Fatalf("got the error %v, want kind %s", err, want)
	}
	if e.Kind != want {
		t.Fatalf("got kind %s (%v), want %s", e.Kind, err, want)
	}
	return e
}
