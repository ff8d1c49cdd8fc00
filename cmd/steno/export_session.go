package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"steno/journal"
	"steno/schema"
)

const sessionExportHelp = "With a --format it gives one session, on standard output or in the file of --to, which must not be there yet. It\n" +
	"reads only, and while a session is written too.\n" +
	"  md         a record to read: who allowed each call and by which rule, attempts, results, what is synthetic, was\n" +
	"             superseded, taken back or redacted; epochs; each damaged place where it stands. Long values are cut, with\n" +
	"             their size. What tools and people said is text whatever it is: no link and no image of theirs is one\n" +
	"  html       the same as one file for a browser, with the calls as bars side by side, epochs as bands and a link for\n" +
	"             each event (#SEQ); without script, and it asks the network for nothing\n" +
	"  jsonl      the recorded lines, as steno session show -o jsonl gives them\n" +
	"  anthropic, openai, steno\n" +
	"             the messages that the agent goes on with, in that provider's form: every call is answered once, directly\n" +
	"             behind the turn that made it; where no result is recorded a synthetic answer says so. The latest\n" +
	"             compaction's summary stands first, and what rewinds took back is left out. Calls have their provider's\n" +
	"             ids. It ends at the first damaged line, with exit 4; --lenient goes on. -o jsonl gives a message a line\n" +
	"All others go on behind damage, and end with exit 4 then."

// sessionExport says what to give of a session, and where to.
type sessionExport struct {
	format  string
	asOf    uint64
	lenient bool
	to      string
}

// ownFormats are those that are no messages.
var ownFormats = []string{"md", "html", "jsonl"}

func (x *sessionExport) flags(c *cobra.Command) {
	c.Flags().StringVar(&x.format, "format", "", strings.Join(ownFormats, ", ")+", anthropic, openai or steno")
	c.Flags().StringVar(&x.to, "to", "", "the file to make; never over one that is there")
	c.Flags().BoolVar(&x.lenient, "lenient", false, "messages: go on behind damage")
	asOfFlag(c, &x.asOf)
}

func (x *sessionExport) check(c *cobra.Command, output string) error {
	if slices.Contains(ownFormats, x.format) {
		if x.lenient {
			return usage("--lenient is for messages; --format %s goes on behind damage by itself", x.format)
		}
		if output != "" {
			return usage("-o says how messages are given; --format %s has one form", x.format)
		}
	}
	return checkAsOf(c, x.asOf)
}

func (a *app) exportSession(ctx context.Context, store *journal.Files, id string, x sessionExport) error {
	switch x.format {
	case "md":
		return a.record(ctx, store, id, x.asOf, markdown{a.out})
	case "html":
		return a.record(ctx, store, id, x.asOf, newPage(a.out))
	case "jsonl":
		a.format = "jsonl"
		return a.showSession(ctx, store, id, x.asOf, false)
	}
	return a.exportMessages(ctx, store, id, x)
}

// into lets what write goes to standard output go to a file. That gets its name
// once all of it is on the disk, of a damaged session too: the error says that.
func (a *app) into(file string, write func() error) (err error) {
	out := a.out
	defer func() { a.out = out }()
	if file == "" {
		b := bufio.NewWriterSize(out, 64<<10)
		a.out = b
		err := write()
		return errors.Join(err, b.Flush())
	}
	failed := func(what string, err error) error {
		return schema.Errorf(schema.WriteFailed, "%s %s", file, what).With("next", "look at its folder, and at the disk; then export again").Cause(err)
	}
	if _, err := os.Lstat(file); err == nil {
		return existsAlready(file)
	}
	tmp := filepath.Join(filepath.Dir(file), ".steno-export-"+ulid.Make().String())
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return failed("cannot be made", err)
	}
	defer os.Remove(tmp) // its other name stays
	b := bufio.NewWriterSize(f, 64<<10)
	a.out = b
	damaged := write()
	if code := exitCode(0); damaged != nil && !errors.As(damaged, &code) && schema.KindOf(damaged).Info().Exit != schema.ExitCorrupt {
		return errors.Join(damaged, f.Close())
	}
	if err := errors.Join(b.Flush(), f.Sync(), f.Close()); err != nil {
		return failed("cannot be written", err)
	}
	switch err := os.Link(tmp, file); {
	case errors.Is(err, os.ErrExist):
		return existsAlready(file)
	case err != nil: // a file system without links
		if err := os.Rename(tmp, file); err != nil {
			return failed("cannot get its name", err)
		}
	}
	if d, err := os.Open(filepath.Dir(file)); err == nil {
		err = errors.Join(d.Sync(), d.Close())
		if err != nil {
			return failed("is made, and its name may not outlast a power cut", err)
		}
	}
	return damaged
}

func existsAlready(file string) error {
	return schema.Errorf(schema.AlreadyExists, "%s is there already", file).With("next", "name a file that is not there yet; an export is never written over")
}
