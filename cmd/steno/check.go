package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

func (a *app) checkCommand() *cobra.Command {
	var format string
	var logs bool
	c := &cobra.Command{
		Use: "check", Short: "tell a monitor how the store is; changes nothing",
		Long: "check counts sessions by their leases, and looks at the disk and the serve; with --logs it reads every log and counts\n" +
			"damage and calls. Where a serve runs on the store, or is named by --nats, it asks that for the queue. It is critical where a\n" +
			"session cannot be read, a log is damaged, the queue cannot be looked at or is 95 % full, or the disk has less than 64 MiB or\n" +
			"1,000 inodes; a warning where a lease is ambiguous, calls are parked, the queue is 80 % full, a call has been in it for five\n" +
			"minutes and no executor has it, or the disk has less than 1 GiB or 10,000 inodes. --format nagios exits 0, 1, 2, or 3 where\n" +
			"that cannot be told; the others 0 if it can. Of sessions and calls it says how many, and no name.\n\n" +
			"Metrics, which keep their names: " + strings.Join(metricNames(), ", ") + ".",
		Example: "  steno check\n  steno check --logs --format prometheus\n  steno check --format nagios", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case format != "" && a.format != "":
				return usage("--format and -o exclude each other")
			case format == "" && a.format != "" && a.format != "table":
				format = "json"
			}
			write := map[string]func(*health) error{"": a.checkText, "text": a.checkText, "json": func(h *health) error { return a.json(h) },
				"prometheus": a.checkPrometheus, "nagios": a.checkNagios}[format]
			if write == nil {
				return usage("--format is text, json, prometheus or nagios; got %q", format)
			}
			h, err := a.health(c.Context(), logs)
			if err != nil && format == "nagios" && c.Context().Err() == nil {
				if _, err := fmt.Fprintf(a.out, "STENO UNKNOWN - %s\n", inert(schema.AsError(err).Message)); err != nil {
					return err
				}
				return exitCode(3)
			}
			if err != nil {
				return err
			}
			return write(h)
		},
	}
	c.Flags().StringVar(&format, "format", "", "text, json, prometheus or nagios")
	c.Flags().BoolVar(&logs, "logs", false, "read every log, and count damage and calls too")
	return c
}

// A space is what a disk has left.
type space struct {
	Bytes  uint64 `json:"free_bytes"`
	Inodes uint64 `json:"free_inodes"`
	none   bool   // the file system counts no inodes
}

func spaceOf(dir string) (space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return space{}, schema.Errorf(schema.LogReadFailed, "the disk of the store cannot be looked at").Cause(err)
	}
	return space{uint64(st.Bavail) * uint64(st.Bsize), uint64(st.Ffree), st.Files == 0}, nil
}

func (s space) critical() bool { return s.Bytes < 64<<20 || !s.none && s.Inodes < 1000 }
func (s space) low() bool      { return s.Bytes < 1<<30 || !s.none && s.Inodes < 10_000 }

func (s space) String() string {
	text := fmt.Sprintf("%d MiB are free", s.Bytes>>20)
	if !s.none {
		text += fmt.Sprintf(", and %d inodes", s.Inodes)
	}
	return text
}

// A health is what a monitor is told. Its metrics have the names of metrics.
type health struct {
	Status   string         `json:"status"` // ok, warning, critical
	Reasons  []string       `json:"reasons"`
	Sessions map[string]int `json:"sessions"` // by the state of the lease, or unreadable
	Disk     space          `json:"disk"`
	Serve    bool           `json:"serve"`
	BeatAge  float64        `json:"beat_age_seconds"` // the greatest of an active holder
	Queue    *queueHealth   `json:"queue,omitzero"`
	Logs     *logHealth     `json:"logs,omitzero"`
}

// A logHealth is what the logs say.
type logHealth struct {
	Events   int            `json:"events"`
	Damaged  int            `json:"damaged"`  // sessions
	Findings map[string]int `json:"findings"` // by severity
	Calls    map[string]int `json:"calls"`    // by state
	Waiting  int            `json:"waiting"`  // for a person
	Open     int            `json:"open"`     // outcomes to settle
}

func (h *health) raise(status, reason string) {
	if h.Status != "critical" {
		h.Status = status
	}
	h.Reasons = append(h.Reasons, reason)
}

const unreadable = "unreadable"

// leaseStates are those that a reader can see.
var leaseStates = []string{string(lease.Available), string(lease.Active), string(lease.Stale), string(lease.Ambiguous), unreadable}

func (a *app) health(ctx context.Context, logs bool) (*health, error) {
	store, err := a.reader()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	h := &health{Status: statusOK, Reasons: []string{}, Sessions: map[string]int{}}
	for _, s := range leaseStates {
		h.Sessions[s] = 0
	}
	if logs {
		h.Logs = &logHealth{Findings: map[string]int{schema.SeverityError: 0, schema.SeverityNotice: 0}, Calls: map[string]int{}}
		for _, s := range callStates {
			h.Logs.Calls[string(s)] = 0
		}
	}
	for id, err := range store.Sessions(ctx) {
		if err != nil {
			return nil, err
		}
		st, err := store.Lease(ctx, id)
		switch {
		case errors.Is(err, schema.NotFound):
			continue // removed
		case err != nil:
			h.Sessions[unreadable]++
			continue
		}
		h.Sessions[string(st.State)]++
		if age, ok := st.BeatAge(); ok && st.State == lease.Active {
			h.BeatAge = max(h.BeatAge, age.Seconds())
		}
		if logs {
			if err := h.read(ctx, store, id); ctx.Err() != nil {
				return nil, context.Cause(ctx)
			} else if err != nil {
				h.Sessions[string(st.State)]--
				h.Sessions[unreadable]++
			}
		}
	}
	if h.Disk, err = spaceOf(a.dir); err != nil {
		return nil, err
	}
	if h.Serve, err = a.served(); err != nil {
		return nil, err
	}
	if h.Serve || a.nats != "" {
		h.Queue = a.queueHealth(ctx)
	}
	h.judge()
	return h, nil
}

var callStates = []replay.CallState{replay.Pending, replay.Unknown, replay.OK, replay.Failed, replay.Interrupted}

func (h *health) read(ctx context.Context, store *journal.Files, id string) error {
	t := newTally()
	scan := journal.NewScan(store, id, journal.ScanOptions{State: t})
	for it, err := range scan.Items(ctx) {
		if err != nil {
			return err
		}
		if it.Finding != nil {
			h.Logs.Findings[it.Finding.Severity]++
		}
	}
	h.Logs.Events += scan.Events
	if scan.FirstError != nil {
		h.Logs.Damaged++
	}
	for state, n := range t.over {
		h.Logs.Calls[string(state)] += n
	}
	open, err := t.open(ctx, store, id)
	for _, c := range open {
		h.Logs.Calls[string(c.State)]++
		if c.Waiting != nil {
			h.Logs.Waiting++
		}
		if c.Result != nil && c.Result.Open() {
			h.Logs.Open++
		}
	}
	return err
}

// judge says what all that amounts to.
func (h *health) judge() {
	if n := h.Sessions[unreadable]; n > 0 {
		h.raise("critical", many(n, "session")+" cannot be read")
	}
	if h.Logs != nil && h.Logs.Damaged > 0 {
		h.raise("critical", many(h.Logs.Damaged, "log")+" damaged")
	}
	if h.Disk.critical() {
		h.raise("critical", "the disk is full: "+h.Disk.String())
	} else if h.Disk.low() {
		h.raise("warning", "the disk fills up: "+h.Disk.String())
	}
	if n := h.Sessions[string(lease.Ambiguous)]; n > 0 {
		h.raise("warning", many(n, "lease")+" ambiguous")
	}
	if h.Queue != nil {
		h.Queue.judge(h)
	}
}

// A metric is one number for a monitor. Its name is a promise.
type metric struct {
	name, help, label string
	of                func(h *health) (values []string, numbers map[string]float64) // by the label's value, "" without one
}

func one(n float64) ([]string, map[string]float64) {
	return []string{""}, map[string]float64{"": n}
}

func byLabel(values []string, m map[string]int) ([]string, map[string]float64) {
	numbers := map[string]float64{}
	for _, v := range values {
		numbers[v] = float64(m[v])
	}
	return values, numbers
}

var metrics = []metric{
	{"steno_status", "0 is ok, 1 a warning, 2 critical", "", func(h *health) ([]string, map[string]float64) { return one(float64(h.code())) }},
	{"steno_sessions", "sessions by the state of their lease", "state", func(h *health) ([]string, map[string]float64) { return byLabel(leaseStates, h.Sessions) }},
	{"steno_disk_free_bytes", "room on the disk of the store", "", func(h *health) ([]string, map[string]float64) { return one(float64(h.Disk.Bytes)) }},
	{"steno_disk_free_inodes", "files that it can take", "", func(h *health) ([]string, map[string]float64) { return one(float64(h.Disk.Inodes)) }},
	{"steno_serve_up", "1 while a serve runs on the store", "", func(h *health) ([]string, map[string]float64) {
		if h.Serve {
			return one(1)
		}
		return one(0)
	}},
	{"steno_beat_age_seconds", "the greatest age of an active holder's beat", "", func(h *health) ([]string, map[string]float64) { return one(h.BeatAge) }},
	{"steno_queue_up", "1 while the queue can be looked at; this and the following where a serve runs, or is named", "", ofQueue(func(q *queueHealth) float64 { return map[bool]float64{true: 1}[q.Error == nil] })},
	{"steno_queue_messages", "calls in the queue", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Messages) })},
	{"steno_queue_pending", "of these, those that nobody has had yet", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Pending) })},
	{"steno_queue_in_flight", "those that an executor has, or that come again after a pause", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.InFlight) })},
	{"steno_queue_redelivered", "those that were delivered more than once", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Redelivered) })},
	{"steno_queue_oldest_age_seconds", "the age of the oldest call in the queue", "", ofQueueUp(func(q *executor.QueueState) float64 { return q.OldestAge })},
	{"steno_queue_asking", "requests of executors that have room for more", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Asking) })},
	{"steno_queue_full_ratio", "how much of its limits the queue has used", "", ofQueueUp(fullness)},
	{"steno_queue_parked", "calls that are parked, to be queued again", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Parked) })},
	{"steno_queue_dead", "messages that can never work", "", ofQueueUp(func(q *executor.QueueState) float64 { return float64(q.Dead) })},
	{"steno_log_events", "events of all logs; this and the following with --logs", "", ofLogs(func(l *logHealth) ([]string, map[string]float64) { return one(float64(l.Events)) })},
	{"steno_log_damaged", "sessions whose log is damaged", "", ofLogs(func(l *logHealth) ([]string, map[string]float64) { return one(float64(l.Damaged)) })},
	{"steno_log_findings", "findings in logs", "severity", ofLogs(func(l *logHealth) ([]string, map[string]float64) {
		return byLabel([]string{schema.SeverityError, schema.SeverityNotice}, l.Findings)
	})},
	{"steno_calls", "calls by their state", "state", ofLogs(func(l *logHealth) ([]string, map[string]float64) {
		values := make([]string, len(callStates))
		for i, s := range callStates {
			values[i] = string(s)
		}
		return byLabel(values, l.Calls)
	})},
	{"steno_calls_waiting", "calls that wait for a person", "", ofLogs(func(l *logHealth) ([]string, map[string]float64) { return one(float64(l.Waiting)) })},
	{"steno_calls_open", "calls whose outcome is to be settled", "", ofLogs(func(l *logHealth) ([]string, map[string]float64) { return one(float64(l.Open)) })},
}

// ofLogs is a metric that is there where the logs were read.
func ofLogs(of func(*logHealth) ([]string, map[string]float64)) func(*health) ([]string, map[string]float64) {
	return func(h *health) ([]string, map[string]float64) {
		if h.Logs == nil {
			return nil, nil
		}
		return of(h.Logs)
	}
}

func metricNames() (names []string) {
	for _, m := range metrics {
		name := m.name
		if m.label != "" {
			name += "{" + m.label + "}"
		}
		names = append(names, name)
	}
	return names
}

// code is the status as Nagios has it.
func (h *health) code() int {
	return map[string]int{statusOK: 0, "warning": 1, "critical": 2}[h.Status]
}

// summary says the reasons, or that there are none.
func (h *health) summary() string {
	if len(h.Reasons) == 0 {
		n := 0
		for _, of := range h.Sessions {
			n += of
		}
		return many(n, "session") + ", " + h.Disk.String()
	}
	return strings.Join(h.Reasons, "; ")
}

func (a *app) checkText(h *health) error {
	rows := [][]string{{"status", h.Status}, {"", h.summary()}}
	for _, m := range metrics {
		values, numbers := m.of(h)
		for _, v := range values {
			name := strings.ReplaceAll(strings.TrimPrefix(m.name, "steno_"), "_", " ")
			if v != "" {
				name += ", " + v
			}
			if m.name != "steno_status" {
				rows = append(rows, []string{name, number(numbers[v])})
			}
		}
	}
	return a.table(nil, rows)
}

func (a *app) checkPrometheus(h *health) error {
	for _, m := range metrics {
		values, numbers := m.of(h)
		if len(values) == 0 {
			continue
		}
		fmt.Fprintf(a.out, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		for _, v := range values {
			label := ""
			if v != "" {
				label = fmt.Sprintf("{%s=%q}", m.label, v)
			}
			if _, err := fmt.Fprintf(a.out, "%s%s %s\n", m.name, label, number(numbers[v])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *app) checkNagios(h *health) error {
	var data []string
	for _, m := range metrics {
		values, numbers := m.of(h)
		for _, v := range values {
			name := strings.TrimPrefix(m.name, "steno_")
			if v != "" {
				name += "_" + v
			}
			unit := ""
			switch {
			case strings.HasSuffix(name, "_bytes"):
				unit = "B"
			case strings.HasSuffix(name, "_seconds"):
				unit = "s"
			}
			data = append(data, fmt.Sprintf("%s=%s%s", name, number(numbers[v]), unit))
		}
	}
	if _, err := fmt.Fprintf(a.out, "STENO %s - %s | %s\n", strings.ToUpper(h.Status), h.summary(), strings.Join(data, " ")); err != nil || h.code() == 0 {
		return err
	}
	return exitCode(h.code())
}

// number is a number as monitors read it.
func number(n float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", n), "0"), ".")
}
