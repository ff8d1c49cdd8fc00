package lease

import (
	"bytes"
	"os"
	"strings"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// Self describes this process as a holder of leases. Call it once: the id is
// new each time. pid_started is the process's start in clock ticks since boot,
// field 22 of proc(5) stat, which tells a pid from its next bearer; it and the
// boot id are empty where there is no /proc.
func Self(program string) schema.Holder {
	h := schema.Holder{ID: ulid.Make().String(), PID: os.Getpid(), Program: program}
	h.Host, _ = os.Hostname() // information; nothing is decided by it
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		h.BootID = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The command's name may hold spaces and brackets; count from behind it.
		if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 19 {
			h.PIDStarted = string(f[19])
		}
	}
	return h
}
