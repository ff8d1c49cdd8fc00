package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxListed  = 1000    // entries that list shows
	maxEntries = 100_000 // entries of one folder that are looked at
)

func listTool() Tool {
	return Tool{
		Name:   "list",
		DryRun: true,
		Description: "List a folder of the workspace: one name a line, sorted, folders with a slash at the end. " +
			"Shows at most 1000 entries and says how many more there are.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the folder, from the workspace; by default the workspace itself"}},
			"additionalProperties":false}`),
		Repeatable: true,
		ReadOnly:   true,
		OpenWorld:  new(false),
		Paths:      []PathArg{{Pointer: "/path"}},
		Run:        runList,
	}
}

type listResult struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"` // in the folder
	Shown   int    `json:"shown"`
}

func runList(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[struct {
		Path *string `json:"path"`
	}](call)
	if err != nil {
		return Result{}, err
	}
	path := "."
	if args.Path != nil {
		path = *args.Path
	}
	w, err := call.folder()
	if err != nil {
		return Result{}, err
	}
	p, err := w.find(path, existing)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	dir, err := openPlace(p)
	if err != nil {
		return Result{}, fileError(schema.ReadFailed, path, "cannot be listed", err)
	}
	defer dir.Close()
	entries, more, err := w.entries(ctx, dir, &storeFiles{w: w})
	if err != nil {
		if stop := ctxError(ctx); stop != nil {
			return Result{}, stop
		}
		return Result{}, fileError(schema.ReadFailed, path, "cannot be listed", err)
	}
	res := listResult{Path: p.path}
	var out strings.Builder
	for _, e := range entries {
		slash := ""
		switch {
		case e.info.IsDir():
			slash = "/"
		case e.info.Mode()&fs.ModeSymlink != 0:
			// A link to what is protected does not show either. One that leads
			// nowhere or outside shows as a name; it cannot be used.
			to, err := w.find(joinPath(components(p.path), e.name), existing)
			if errors.Is(err, schema.ProtectedPath) && !sensitive(e.name) {
				continue
			}
			if noFiles(err) {
				return Result{}, err
			}
			if err == nil {
				if to.info.IsDir() {
					slash = "/"
				}
				to.close()
			}
		}
		res.Entries++
		if line := showName(e.name) + slash + "\n"; res.Entries == res.Shown+1 && res.Shown < maxListed && out.Len()+len(line) < MaxWindow {
			out.WriteString(line)
			res.Shown++
		}
	}
	if res.Entries += more; res.Entries > res.Shown {
		fmt.Fprintf(&out, "… and %d more\n", res.Entries-res.Shown)
	}
	return Result{
		OK:         true,
		Output:     out.String(),
		Summary:    fmt.Sprintf("%s: %d entries, %d shown", showName(p.path), res.Entries, res.Shown),
		Structured: asJSON(res),
	}, nil
}

// openPlace opens the folder that p is.
func openPlace(p *place) (*os.Root, error) {
	if !p.info.IsDir() {
		return nil, schema.Errorf(schema.ReadFailed, "%s is not a folder", quoted(p.path)).
			With("path", shorten(p.path, maxShown)).With("cause", "not a folder")
	}
	return openFolder(p.dir, p.name, p.info)
}

// A folderEntry is one name in a folder; info is of the name, not of what a
// link leads to.
type folderEntry struct {
	name string
	info fs.FileInfo
}

// entries gives what is in an open folder and may be seen, sorted as paths are,
// and how many entries of a huge folder it did not look at. Protected folders,
// and files that are theirs under another name, are left out.
func (w *Workspace) entries(ctx context.Context, dir *os.Root, store *storeFiles) (list []folderEntry, more int, err error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		batch, err := f.ReadDir(1000)
		for _, e := range batch {
			if len(list) >= maxEntries {
				more++
				continue
			}
			info, err := dir.Lstat(e.Name())
			if errors.Is(err, fs.ErrNotExist) {
				continue // gone meanwhile
			}
			if err != nil {
				return nil, 0, err
			}
			if !w.isGuarded(info) && !store.has(info) {
				list = append(list, folderEntry{e.Name(), info})
			}
			if noFiles(store.err) {
				return nil, 0, store.err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0, err
		}
	}
	slices.SortFunc(list, func(a, b folderEntry) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	return list, more, nil
}

// sortKey puts folders where the paths in them belong: "a-b" before "a/c".
func (e folderEntry) sortKey() string {
	if e.info.IsDir() {
		return e.name + "/"
	}
	return e.name
}

// showName is a file name or path on one line: quoted, as in Go, if it holds
// characters that would move the cursor, end the line or be invisible.
func showName(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
