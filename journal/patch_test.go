package journal_test

import (
	"errors"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A patch must be had in memory by whoever folds a log, so a longer one than
// that is meant for is refused at the door, with and without a state.
func TestAPatchHasABound(t *testing.T) {
	t.Parallel()
	patch := func(n int) journal.Entry {
		var o schema.Object
		return journal.Entry{Type: schema.TypeStateChanged, Data: o.Raw("patch", []byte(`{"a":"`+strings.Repeat("z", n-8)+`"}`)).Bytes()}
	}
	for name, opt := range map[string]journal.Options{"folded": journaltest.Options(), "not folded": {Holder: journaltest.Options().Holder, Create: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := journaltest.OpenWith(t, journaltest.Files(t), "s1", opt)
			before := j.Head()
			if _, err := j.Append(ctx, patch(schema.MaxPatch+1)); !errors.Is(err, schema.LineTooLong) || j.Head() != before {
				t.Errorf("a patch of one byte more: %v, and the head is %v, before %v", err, j.Head(), before)
			}
			journaltest.Append(t, j, patch(schema.MaxPatch))
		})
	}
}
