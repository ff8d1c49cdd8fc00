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
	"golang.org/x/mod/sumdb/note"

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
	"  bundle     a tar file to hand on as evidence: the segments byte for byte, the blobs, the head (with --key as a signed\n" +
	"             note too), what verify says, the description of the format, and two programs, in Python and for a shell, that\n" +
	"             check all of it and need nothing of steno. The same log makes the same bytes\n" +
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
	key     string // a signer's, of a bundle
}

// ownFormats are those that are no messages.
var ownFormats = []string{"md", "html", "jsonl", "bundle"}

func (x *sessionExport) flags(c *cobra.Command) {
	c.Flags().StringVar(&x.format, "format", "", strings.Join(ownFormats, ", ")+", anthropic, openai or steno")
	c.Flags().StringVar(&x.to, "to", "", "the file to make; never over one that is there")
	c.Flags().BoolVar(&x.lenient, "lenient", false, "messages: go on behind damage")
	c.Flags().StringVar(&x.key, "key", "", "bundle: file of a signer's key; its head gets a signed note")
	asOfFlag(c, &x.asOf)
}

func (x *sessionExport) check(c *cobra.Command, a *app) error {
	if slices.Contains(ownFormats, x.format) {
		if x.lenient {
			return usage("--lenient is for messages; --format %s goes on behind damage by itself", x.format)
		}
		if a.format != "" {
			return usage("-o says how messages are given; --format %s has one form", x.format)
		}
	}
	switch {
	case x.key != "" && x.format != "bundle":
		return usage("--key is for --format bundle")
	case x.format == "bundle" && x.to == "" && a.onTerminal():
		return usage("a bundle is a tar file, and nothing for a terminal").With("next", "name a file with --to")
	case x.format == "bundle" && c.Flags().Changed("as-of"):
		return usage("a bundle holds the whole log; --format bundle excludes --as-of")
	}
	return checkAsOf(c, x.asOf)
}

func (a *app) exportSession(ctx context.Context, store *journal.Files, id string, x sessionExport) error {
	switch x.format {
	case "md":
		return a.record(ctx, store, id, x.asOf, markdown{a.out})
	case "bundle":
		var signer note.Signer
		if x.key != "" {
			var err error
			if signer, err = readKey(x.key); err != nil {
				return err
			}
		}
		return a.bundle(ctx, store, id, signer)
	case "html":
		return a.record(ctx, store, id, x.asOf, newPage(a.out))
	case "jsonl":
		a.format = "jsonl"
		err := a.showSession(ctx, store, id, x.asOf, false)
		if err == exitCode(schema.ExitCorrupt) {
			err = damaged{err}
		}
		return err
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
	done := write()
	if _, whole := errors.AsType[damaged](done); done != nil && !whole {
		return errors.Join(done, f.Close())
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
	return done
}

// damaged is the error of a session that was given as a whole, with its damage.
type damaged struct{ error }

func (d damaged) Unwrap() error { return d.error }

func existsAlready(file string) error {
	return schema.Errorf(schema.AlreadyExists, "%s is there already", file).With("next", "name a file that is not there yet; an export is never written over")
}
