package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxMatches    = 1000    // lines that search shows
	maxMatchText  = 300     // bytes of a line that it shows
	maxSearchFile = 4 << 20 // bytes of a file that it looks into
)

func searchTool() Tool {
	return Tool{
		Name:   "search",
		DryRun: true,
		Description: "Search the text files of the workspace for lines that match a regular expression (RE2 syntax, as in Go). " +
			"Gives path:line: text, sorted by path, for at most 1000 lines. " +
			"Leaves out .git, binary files, files above 4 MiB, links and files with sensitive names.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"pattern":{"type":"string","minLength":1,"maxLength":4096,"description":"the regular expression; (?i) at its start ignores case"},
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the file or folder to search, from the workspace; by default the workspace itself"}},
			"required":["pattern"],"additionalProperties":false}`),
		Repeatable: true,
		ReadOnly:   true,
		OpenWorld:  new(false),
		Paths:      []PathArg{{Pointer: "/path"}},
		Run:        runSearch,
	}
}

type searchResult struct {
	Matches  int  `json:"matches"`  // lines shown
	Files    int  `json:"files"`    // that have one
	Searched int  `json:"searched"` // files looked into
	Skipped  int  `json:"skipped"`  // files and folders that were not: too large, binary, sensitive, unreadable
	Stopped  bool `json:"stopped"`  // there was no room for more; files after the last one shown were not looked into
}

// A searching is one run of search.
type searching struct {
	ctx   context.Context
	w     *Workspace
	re    *regexp.Regexp
	store storeFiles
	out   strings.Builder
	files []string
	searchResult
}

func runSearch(ctx context.Context, call *Invocation) (Result, error) {
	args, err := decodeArgs[struct {
		Pattern string  `json:"pattern"`
		Path    *string `json:"path"`
	}](call)
	if err != nil {
		return Result{}, err
	}
	path := "."
	if args.Path != nil {
		path = *args.Path
	}
	re, err := regexp.Compile(args.Pattern)
	if err != nil {
		return Result{}, invalidArg("/pattern", shorten(err.Error(), maxShown))
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
	s := &searching{ctx: ctx, w: w, re: re, store: storeFiles{w: w}}
	if p.info.IsDir() {
		err = s.place(p)
	} else {
		err = s.file(p.dir, p.path, folderEntry{p.name, p.info})
	}
	if stop := ctxError(ctx); stop != nil {
		return Result{}, stop
	}
	if err != nil && err != errEnough {
		return Result{}, fileError(schema.ReadFailed, path, "cannot be searched", err)
	}
	summary := fmt.Sprintf("%d matches in %d files; %d files searched, %d skipped", s.Matches, s.Files, s.Searched, s.Skipped)
	if s.Stopped {
		summary += "; stopped, there may be more"
		s.out.WriteString("… stopped here, there may be more matches\n")
	}
	if s.Matches == 0 {
		s.out.WriteString("no matches\n")
	}
	return Result{
		OK:         true,
		Output:     s.out.String(),
		Summary:    summary,
		Structured: asJSON(s.searchResult),
		FilesRead:  s.files,
	}, nil
}

// errEnough ends a search that has no room for more.
var errEnough = errors.New("enough")

func (s *searching) place(p *place) error {
	dir, err := openPlace(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	return s.folder(dir, components(p.path))
}

// folder searches an open folder. What cannot be read in it is skipped, for it
// is one of many and may be gone already.
func (s *searching) folder(dir *os.Root, at []string) error {
	entries, more, err := s.w.entries(s.ctx, dir, &s.store)
	if err != nil {
		return err
	}
	s.Skipped += more
	for _, e := range entries {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		switch {
		case strings.EqualFold(e.name, ".git"):
		case sensitive(e.name):
			s.Skipped++
		case e.info.IsDir():
			if len(at) >= maxSteps {
				s.Skipped++
				continue
			}
			sub, err := openFolder(dir, e.name, e.info)
			if err == nil {
				err = s.folder(sub, append(at[:len(at):len(at)], e.name))
				sub.Close()
			}
			if err == errEnough || s.ctx.Err() != nil || noFiles(err) {
				return err
			}
			if err != nil {
				s.Skipped++
			}
		case e.info.Mode().IsRegular():
			err := s.file(dir, joinPath(at, e.name), e)
			if err == errEnough || s.ctx.Err() != nil || noFiles(err) {
				return err
			}
			if err != nil {
				s.Skipped++
			}
		}
	}
	return nil
}

// file searches one file; path is its name in the output.
func (s *searching) file(dir *os.Root, path string, e folderEntry) error {
	if e.info.Size() > maxSearchFile {
		s.Skipped++
		return nil
	}
	f, err := s.w.openAt(dir, e.name, e.info, &s.store)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSearchFile))
	f.Close()
	if err != nil {
		return err
	}
	if isBinary(text) {
		s.Skipped++
		return nil
	}
	s.Searched++
	found, n := false, 0
	for line := range bytes.Lines(text) {
		if n++; n%1000 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		line = bytes.TrimRight(line, "\r\n")
		if !s.re.Match(line) {
			continue
		}
		hit := fmt.Sprintf("%s:%d: %s\n", showName(path), n, shorten(string(line[:min(len(line), 4*maxMatchText)]), maxMatchText))
		if s.Matches >= maxMatches || s.out.Len()+len(hit) > MaxWindow-100 {
			s.Stopped = true
			return errEnough
		}
		s.out.WriteString(hit)
		s.Matches++
		if !found {
			found = true
			s.Files++
			s.files = append(s.files, validText(path))
		}
	}
	return nil
}
