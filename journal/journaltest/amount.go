package journaltest

import (
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Variables that say how much the tests try. They are read here only.
const (
	amountEnv = "STENO_TRY"  // "" as go test does, "ci", or "long"
	seedEnv   = "STENO_SEED" // repeats the choices of a run
)

// Amount is how much of something a test tries: a little on every go test,
// more in .ci/run, the long amount in make crash, power, damage.
func Amount(little, ci, long int) int {
	switch how := os.Getenv(amountEnv); how {
	case "":
		return little
	case "ci":
		return ci
	case "long":
		return long
	default:
		panic(amountEnv + " is ci or long, not " + how)
	}
}

// Seed is what all choices of a test come from. It is told if the test fails.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv(seedEnv); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with %s=%d", seedEnv, seed)
		}
	})
	return seed
}

// Rand gives choices from a seed. The same seed and words give the same
// choices, whatever runs beside.
func Rand(seed uint64, words ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, words...)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Tried says on standard output, in one line, how much was tried. It is seen
// with -v, and where go test is run in the package's folder.
func Tried(format string, args ...any) {
	fmt.Printf("tried "+format+"\n", args...)
}

// Lacks ends a test that this machine cannot run, and says what it lacks. It
// is a skip, which .ci/run counts and lists; any other skip as root on Linux
// fails there.
func Lacks(t testing.TB, what string) {
	t.Helper()
	t.Skip("this machine lacks " + what)
}

// Keep copies a folder where it outlives the test, if the test fails.
func Keep(t testing.TB, dir string) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		to, err := os.MkdirTemp("", "steno-failed-"+strings.ReplaceAll(t.Name(), "/", "-")+"-")
		if err == nil {
			err = copyTree(to, dir)
		}
		t.Logf("the log is kept in %s (%v)", to, err)
	})
}

func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}
