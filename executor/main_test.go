package executor_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"steno/executor"
	"steno/journal/journaltest"
)

// The test binary is also the executors that tests kill: see child_test.go.
func TestMain(m *testing.M) {
	executor.Helper()
	if len(os.Args) == 3 && os.Args[1] == "contract-tool" { // a command of contract_test.go
		if err := contractProgram(os.Args[2]); err != nil {
			fmt.Fprint(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "contract-mcp" {
		if err := contractProgramMCP(os.Args[2]); err != nil {
			fmt.Fprint(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	journaltest.Main(leakChecked{m}, map[string]func([]byte) error{"executor": childExecutor, "scribe": scribe})
}

// leakChecked runs the tests and then looks for goroutines that they left
// behind: a drained executor leaves none.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	// These tests wait for disks, processes and pauses more than they compute.
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8")
	}
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
