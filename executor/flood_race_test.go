//go:build race

package executor_test

// flood is less with the race detector, which looks at each byte.
const flood = 512 << 20
