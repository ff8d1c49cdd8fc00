package executor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxEdit   = 32 << 20 // bytes of a file that edit takes into memory, before and after
	maxPlaces = 1000     // that edit counts of a text that it will not replace
)

// Neither write nor edit is repeatable. Doing the same write twice in a row
// changes nothing, but after a crash it is not in a row: another call, a
// command or a person may have changed the file since the first attempt, and a
// second one would undo that without a trace.

func writeTool() Tool {
	return Tool{
		Name:   "write",
		DryRun: true,
		Description: "Write a file of the workspace: content becomes the whole of it. " +
			"Makes the file, and folders above it, if they are not there. To change a part of a file use edit.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the file, from the workspace"},
			"content":{"type":"string","description":"the whole new text"}},
			"required":["path","content"],"additionalProperties":false}`),
		Tier: 1, Idempotent: true,
		Phases: []string{PhaseEditing}, OpenWorld: new(false),
		Paths: []PathArg{{Pointer: "/path", Write: true}},
		Run:   runWrite,
	}
}

func editTool() Tool {
	return Tool{
		Name:   "edit",
		DryRun: true,
		Description: "Replace text in a file of the workspace. old must be in the file exactly as given, " +
			"white space included, and only once, unless replace_all is set.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the file, from the workspace"},
			"old":{"type":"string","minLength":1,"description":"the text to replace"},
			"new":{"type":"string","description":"the text to put in its place"},
			"replace_all":{"type":"boolean","description":"replace every occurrence"}},
			"required":["path","old","new"],"additionalProperties":false}`),
		Tier:   1,
		Phases: []string{PhaseEditing}, OpenWorld: new(false),
		Paths: []PathArg{{Pointer: "/path", Write: true}},
		Run:   runEdit,
	}
}

type changeResult struct {
	Path         string `json:"path"`
	Bytes        int    `json:"bytes"` // of the file afterwards
	Created      bool   `json:"created"`
	Replacements int    `json:"replacements,omitzero"`
	DryRun       bool   `json:"dry_run,omitzero"`
}

// did is the result of a change, or of a dry run of it.
func (c changeResult) did(done, plan string) Result {
	if c.DryRun {
		return Result{OK: true, Output: plan, Summary: plan, Structured: asJSON(c)}
	}
	return Result{OK: true, Output: done, Summary: done, Structured: asJSON(c), FilesChanged: []string{validText(c.Path)}}
}

func runWrite(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}](call)
	if err != nil {
		return Result{}, err
	}
	w, err := call.folder()
	if err != nil {
		return Result{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := ctxError(ctx); err != nil {
		return Result{}, err
	}
	want := makeWay
	if call.DryRun {
		want = perhapsNew
	}
	p, err := w.find(args.Path, want)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	if err := changeable(p); err != nil {
		return Result{}, fileError(schema.WriteFailed, args.Path, "cannot be written", err)
	}
	c := changeResult{Path: p.path, Bytes: len(args.Content), Created: p.info == nil, DryRun: call.DryRun}
	if !call.DryRun {
		if err := replaceFile(p, []byte(args.Content)); err != nil {
			return Result{}, fileError(schema.WriteFailed, args.Path, "cannot be written", err)
		}
	}
	name := showName(c.Path)
	if c.Created {
		return c.did(fmt.Sprintf("created %s, %d bytes", name, c.Bytes), fmt.Sprintf("would create %s, %d bytes", name, c.Bytes)), nil
	}
	return c.did(fmt.Sprintf("wrote %s, %d bytes", name, c.Bytes),
		fmt.Sprintf("would overwrite %s (%d bytes) with %d bytes", name, p.info.Size(), c.Bytes)), nil
}

func runEdit(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[struct {
		Path       string `json:"path"`
		Old        string `json:"old"`
		New        string `json:"new"`
		ReplaceAll bool   `json:"replace_all"`
	}](call)
	switch {
	case err != nil:
		return Result{}, err
	case args.Old == "":
		return Result{}, invalidArg("/old", "the text to replace may not be empty")
	case args.Old == args.New:
		return Result{}, invalidArg("/new", "the new text is the old one")
	}
	w, err := call.folder()
	if err != nil {
		return Result{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f, p, err := w.openRegular(args.Path)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	text, before, err := readAll(f)
	f.Close()
	if err != nil {
		return Result{}, fileError(schema.ReadFailed, args.Path, "cannot be read", err)
	}
	if err := changeable(p); err != nil {
		return Result{}, fileError(schema.WriteFailed, args.Path, "cannot be written", err)
	}
	old := []byte(args.Old)
	n := 1
	if args.ReplaceAll {
		n = bytes.Count(text, old)
	} else if places := countPlaces(text, old); places != 1 {
		n = places
	}
	switch {
	case n == 0:
		e := schema.Errorf(schema.NoMatch, "the text to replace is not in %s", quoted(args.Path))
		if bytes.Contains(text, []byte("\r\n")) && !bytes.Contains(old, []byte("\r\n")) && bytes.Contains(old, []byte("\n")) {
			e.Message += ", whose lines end with a carriage return and a newline"
		}
		return Result{}, e.With("path", shorten(args.Path, maxShown))
	case n > 1 && !args.ReplaceAll:
		return Result{}, schema.Errorf(schema.NotUnique, "the text to replace is in %s %d times", quoted(args.Path), n).
			With("path", shorten(args.Path, maxShown)).With("matches", n)
	}
	if grown := len(args.New) - len(args.Old); grown > 0 && n > (maxEdit-len(text))/grown {
		return Result{}, tooLarge()
	}
	text = bytes.Replace(text, old, []byte(args.New), n)
	if err := ctxError(ctx); err != nil {
		return Result{}, err
	}
	c := changeResult{Path: p.path, Bytes: len(text), Replacements: n, DryRun: call.DryRun}
	if !call.DryRun {
		// A command may have written to the file since it was read, without
		// asking for w.mu. Its work is not overwritten.
		now, err := p.dir.Lstat(p.name)
		if err == nil && (!os.SameFile(now, before) || now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime())) {
			err = errors.New("it was changed by somebody else meanwhile")
		}
		if err == nil {
			err = replaceFile(p, text)
		}
		if err != nil {
			return Result{}, fileError(schema.WriteFailed, args.Path, "cannot be written", err)
		}
	}
	name := showName(c.Path)
	return c.did(fmt.Sprintf("edited %s, %d replaced", name, n), fmt.Sprintf("would edit %s, %d to replace", name, n)), nil
}

// readAll reads a file to be edited and says how it was before.
func readAll(f *os.File) ([]byte, fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEdit+1))
	if err == nil && len(text) > maxEdit {
		err = tooLarge()
	}
	return text, info, err
}

func tooLarge() *schema.Error {
	return schema.Errorf(schema.PayloadTooLarge, "the file is or would be too large to edit").With("limit", maxEdit)
}

// countPlaces counts where old stands in text, overlapping places too: each is
// one that the caller may have meant. It stops at maxPlaces, since the count of
// overlapping places can take a time of the product of both lengths.
func countPlaces(text, old []byte) (n int) {
	for n < maxPlaces {
		i := bytes.Index(text, old)
		if i < 0 {
			break
		}
		n++
		text = text[i+1:]
	}
	return n
}

// changeable refuses what may not be replaced by a new file: anything but a
// regular file, one that nobody may write, and one of several names. The new
// file would break the other names off, and they may be in a protected folder
// or anywhere else outside the workspace.
func changeable(p *place) error {
	switch {
	case p.info == nil:
		return nil
	case !p.info.Mode().IsRegular():
		e := notRegular(p.path, p.info)
		e.Kind = schema.WriteFailed
		return e
	case linkCount(p.info) > 1:
		return protected(p.path, "has other names (hard links) and is not written through one of them")
	case p.info.Mode().Perm()&0o222 == 0:
		return fs.ErrPermission // root may still write it; whoever made it read-only did not want that
	}
	return nil
}

// replaceFile makes data the content of p, whole or not at all: it writes a
// file beside it, syncs that, and gives it the name. It keeps the permission
// bits and, as far as it may, the owner of the file that was there; set-user-id
// bits do not outlive their content. When it returns nil the change is durable.
//
// A process that dies on the way leaves a file ".steno-….tmp" behind.
func replaceFile(p *place, data []byte) (err error) {
	mode := fs.FileMode(0o666) // less what the process's umask takes away
	if p.info != nil {
		mode = 0o600 // nobody else reads it before it has the right mode
	}
	temp := ".steno-" + rand.Text() + ".tmp"
	folder, err := p.dir.Open(".") // before anything is changed: there may be no descriptor for it
	if err != nil {
		return err
	}
	defer folder.Close()
	f, err := p.dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|openFlags, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = p.dir.Remove(temp)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if p.info != nil {
		keepOwner(f, p.info)
		if err := f.Chmod(p.info.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := p.dir.Rename(temp, p.name); err != nil {
		return err
	}
	if err := syncNames(folder); err != nil {
		return schema.Errorf(schema.WriteFailed, "%s has the new content, but that may not outlive a power cut", quoted(p.path)).
			With("outcome", "unknown").With("cause", lastWords(err)).Cause(err)
	}
	return nil
}
