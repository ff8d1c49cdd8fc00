package executor

import "time"

// SetAckWait makes deliveries of the queue come again sooner. It must be called
// before Start.
func SetAckWait(x *Executor, d time.Duration) { x.ackWait = d }
