package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"steno/schema"
)

// named is a steno command in a sentence, up to its last word.
var named = regexp.MustCompile(`(^|[^/\w.-])steno((?: [a-z]+)+)`)

// storeless are the commands that no --dir of another one is for.
var storeless = map[string]bool{"version": true, "help": true, "demo": true}

// here makes a next step one of this command line: about the same store, where
// --dir named it, and with the reason that was given. Whoever made the step may
// be a service, which knows neither.
func (a *app) here(next string) string {
	parts := strings.Split(next, "--reason WHY")
	for i, part := range parts {
		parts[i] = a.inStore(part)
	}
	why := "WHY"
	if strings.TrimSpace(a.reason) != "" {
		why = shellWord(a.reason)
	}
	return strings.Join(parts, "--reason "+why)
}

// inStore puts --dir behind the words of each command.
func (a *app) inStore(text string) string {
	if !a.dirGiven {
		return text
	}
	var b strings.Builder
	for {
		m := named.FindStringSubmatchIndex(text)
		if m == nil {
			return b.String() + text
		}
		c, end := (&app{}).root(), m[4]
		for word := range strings.FieldsSeq(text[m[4]:m[5]]) { // those behind the command's are its arguments
			sub, _, err := c.Find([]string{word})
			if err != nil || sub == c {
				break
			}
			c, end = sub, end+1+len(word)
		}
		b.WriteString(text[:end])
		path := strings.Fields(c.CommandPath())
		rest, _, _ := strings.Cut(text[end:], ";")
		if len(path) > 1 && !storeless[path[1]] && !strings.Contains(rest, " --dir ") && !strings.Contains(rest, " --nats ") && !strings.HasPrefix(rest, " --help") {
			b.WriteString(" --dir " + shellWord(a.dir))
		}
		b.WriteString(text[end:m[5]])
		text = text[m[5]:]
	}
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[\w./:@%+=,-]+$`)

// shellWord is a text as one word of a shell.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// local is an error as this command shows it.
func (a *app) local(err error) error {
	e := *schema.AsError(err)
	if owner := a.owner(); owner != "" && errors.Is(err, fs.ErrPermission) {
		e.Message += fmt.Sprintf("; the store belongs to %s, and this is %s", owner, byUser())
		e.Details = maps.Clone(e.Details)
		e.With("next", "run it as the owner: sudo -u "+owner+" COMMAND")
	}
	if session, _ := e.Details["session"].(string); e.Kind == schema.SessionWriterActive && a.nats == "" && e.Details["pid"] != nil {
		if served, err := a.served(); err == nil && !served { // the holder is no serve of this store, and not to be reached from here
			e.Details = maps.Clone(e.Details)
			e.With("next", "if the holder serves on a NATS server, send it there with --nats CONTEXT (a URL, a context file or the name of a context), or ask it to let go: steno lease release "+
				session+" --nats CONTEXT; else wait until its process has ended")
		}
	}
	next, ok := schema.Body(&e).Details["next"].(string)
	if !ok {
		return &e
	}
	e.Details = maps.Clone(e.Details)
	return e.With("next", a.here(next))
}

// owner is whose the store is, as sudo takes it; "" where that is us, or nobody
// can tell.
func (a *app) owner() string {
	fi, err := os.Stat(a.dir)
	if err != nil {
		return ""
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() {
		return ""
	}
	id := strconv.FormatUint(uint64(st.Uid), 10)
	if u, err := user.LookupId(id); err == nil && u.Username != "" {
		return u.Username
	}
	return "'#" + id + "'"
}

// tellNext says what to do here about a result whose recorded next step, which
// is printed as it stands in the log, names another store.
func (a *app) tellNext(r result) {
	if r.Error == nil {
		return
	}
	if next, ok := r.Error.Details["next"].(string); ok && a.here(next) != next {
		fmt.Fprintln(a.err, "next    "+inert(a.here(next)))
	}
}
