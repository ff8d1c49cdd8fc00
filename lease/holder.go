package lease

import (
	"bytes"
	"os"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"

	"steno/schema"
)

// Self describes this process as a holder of leases. Call it once: the id is
// new each time. pid_started is the process's start in clock ticks since boot,
// field 22 of proc(5) stat, which tells a pid from its next bearer; it and the
// boot id are empty where there is no /proc.
func Self(program string) schema.Holder {
	h := schema.Holder{ID: ulid.Make().String(), PID: os.Getpid(), Program: program}
	h.Host, h.BootID = hostname(), here().BootID
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		// The command's name may hold spaces and brackets; count from behind it.
		if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 19 {
			h.PIDStarted = string(f[19])
		}
	}
	return h
}

// hostname is information, but where the locks of a storage tell nothing of
// other machines.
func hostname() string {
	name, _ := os.Hostname()
	return name
}

// clockOf names the steady clock of this process, once: neither the boot nor
// the time namespace of a running process changes.
var clockOf = sync.OnceValue(func() (c Clock) {
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		c.BootID = strings.TrimSpace(string(b))
	}
	// A kernel without time namespaces has one clock for all.
	c.TimeNS, _ = os.Readlink("/proc/self/ns/time")
	return c
})

// here is our own steady clock now.
func here() Clock {
	c := clockOf()
	c.Nanos = monotonic()
	return c
}
