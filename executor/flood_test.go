//go:build !race

package executor_test

// flood is how many bytes a command says that says too much.
const flood = 4 << 30
