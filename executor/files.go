package executor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

// readLines is how many lines read shows if the call does not say.
const readLines = 2000

func readTool() Tool {
	return Tool{
		Name:   "read",
		DryRun: true,
		Description: "Read a text file of the workspace. Gives the lines from offset (counted from 1) on, " +
			"at most limit of them (2000 by default) and at most 256 KiB. " +
			"structured says which lines these are and how many the file has.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the file, from the workspace"},
			"offset":{"type":"integer","minimum":1,"maximum":1000000000,"description":"the first line to show"},
			"limit":{"type":"integer","minimum":1,"maximum":1000000000,"description":"how many lines to show"}},
			"required":["path"],"additionalProperties":false}`),
		Repeatable: true,
		ReadOnly:   true,
		OpenWorld:  new(false),
		Paths:      []PathArg{{Pointer: "/path"}},
		Run:        runRead,
	}
}

type readResult struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`    // of the file
	Lines    int    `json:"lines"`    // of the file
	First    int    `json:"first"`    // line shown, 0 if none is
	Last     int    `json:"last"`     // line shown, 0 if none is
	Cut      bool   `json:"cut"`      // the last line shown is not shown to its end
	Replaced bool   `json:"replaced"` // bytes that are not UTF-8 are shown as U+FFFD
}

func runRead(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[struct {
		Path   string `json:"path"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}](call)
	if err != nil {
		return Result{}, err
	}
	w, err := call.folder()
	if err != nil {
		return Result{}, err
	}
	f, p, err := w.openRegular(args.Path)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	defer f.Close()

	win := window{first: max(args.Offset, 1), limit: args.Limit}
	if win.limit < 1 {
		win.limit = readLines
	}
	if err := win.scan(ctx, f); err != nil {
		if stop := ctxError(ctx); stop != nil {
			return Result{}, stop
		}
		return Result{}, fileError(schema.ReadFailed, args.Path, "cannot be read", err)
	}
	text := validText(string(win.text))
	res := readResult{Path: p.path, Bytes: win.bytes, Lines: win.lines, Cut: win.cut, Replaced: !utf8.Valid(win.text)}
	shown := "none shown"
	if win.shown > 0 {
		res.First, res.Last = win.first, win.first+win.shown-1
		shown = fmt.Sprintf("%d to %d shown", res.First, res.Last)
	}
	if res.Cut {
		shown += ", the last not to its end"
	}
	text, _ = schema.Truncate(text, MaxWindow) // replacing can make it longer
	return Result{
		OK:         true,
		Output:     text,
		Summary:    fmt.Sprintf("%s: %d lines (%s), %d bytes", showName(p.path), res.Lines, shown, res.Bytes),
		Structured: asJSON(res),
		FilesRead:  []string{validText(p.path)},
	}, nil
}

// A window is the part of a text that read shows, and the totals of the whole.
// It needs memory for the part alone.
type window struct {
	first, limit int // lines wanted

	text  []byte // of the lines shown, at most MaxWindow
	shown int    // lines in text
	cut   bool   // the last of them is not complete
	lines int    // of the whole
	bytes int64  // of the whole
}

func (win *window) scan(ctx context.Context, r io.Reader) error {
	b := bufio.NewReaderSize(r, 64<<10)
	full := false     // nothing more fits
	lineStart := true // the next chunk begins a line
	textStart := 0    // where the current line begins in text
	next := int64(0)  // when to look at ctx again
	const every = 1 << 20
	for {
		if win.bytes >= next {
			if err := ctx.Err(); err != nil {
				return err
			}
			next = win.bytes + every
		}
		chunk, err := b.ReadSlice('\n')
		if len(chunk) > 0 {
			win.bytes += int64(len(chunk))
			if lineStart {
				win.lines++
				textStart = len(win.text)
			}
			if at := win.lines; at >= win.first && at-win.first < win.limit && !full {
				if lineStart {
					win.shown++
				}
				room := MaxWindow - len(win.text)
				win.text = append(win.text, chunk[:min(room, len(chunk))]...)
				if full = len(chunk) > room; full && win.shown > 1 {
					// Whole lines only, so that a later call can go on from there.
					win.text = win.text[:textStart]
					win.shown--
				} else if full {
					win.cut = true
					win.text = trimPartialRune(win.text)
				}
			}
			lineStart = chunk[len(chunk)-1] == '\n'
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// trimPartialRune takes a character off the end of b that was cut through.
func trimPartialRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}
