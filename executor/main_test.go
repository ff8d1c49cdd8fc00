package executor_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"steno/journal/journaltest"
)

// The test binary is also the executors that tests kill: see child_test.go.
func TestMain(m *testing.M) {
	journaltest.Main(leakChecked{m}, map[string]func([]byte) error{"executor": childExecutor})
}

// leakChecked runs the tests and then looks for goroutines that they left
// behind: a drained executor leaves none.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
