package main

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// A bundle is a session to hand on: a tar file with its segments byte for byte,
// its blobs, its head, what verify says of it, the description of the format, and
// two programs, in Python and for a shell, that check all of it and need nothing
// of steno.

//go:embed bundle/verify.py
var verifyPy string

//go:embed bundle/verify.sh
var verifySh string

// noteSh checks who signed the head, which Python and a shell cannot do by
// themselves: openssl does.
//
//go:embed bundle/note.sh
var noteSh string

// frozen is a store in which one session stands still: all that a bundle says is
// about the bytes that are in it, whoever writes on meanwhile.
type frozen struct {
	*journal.Files
	parts  []journal.Part
	status lease.Status
}

func freeze(ctx context.Context, store *journal.Files, id string) (*frozen, error) {
	parts, err := store.Parts(ctx, id)
	if err != nil {
		return nil, err
	}
	f := &frozen{Files: store, parts: parts}
	top := uint64(0)
	for _, p := range parts {
		top = max(top, p.Epoch)
	}
	// Of a holder that lives the last events are tentative. One that has another
	// segment by now writes no more in this one.
	if f.status, err = store.Lease(ctx, id); err != nil || f.status.Epoch != top {
		f.status = lease.Evidence{Epoch: top}.Status()
	}
	return f, nil
}

func (f *frozen) Segments(context.Context, string) (list []lease.Segment, err error) {
	for _, p := range f.parts {
		if p.Epoch > 0 {
			list = append(list, lease.Segment{Epoch: p.Epoch, Size: p.Size})
		}
	}
	return list, nil
}

func (f *frozen) Read(ctx context.Context, session string, epoch uint64, offset int64) (io.ReadCloser, error) {
	for _, p := range f.parts {
		if p.Epoch != epoch {
			continue
		}
		r, err := p.Open()
		if err == nil && offset > 0 {
			if _, err = io.CopyN(io.Discard, r, offset); err == io.EOF { // it is shorter; whoever reads on sees
				err = nil
			}
			if err != nil {
				r.Close()
			}
		}
		return r, err
	}
	return f.Files.Read(ctx, session, epoch, offset) // which says that it is not there
}

func (f *frozen) Lease(context.Context, string) (lease.Status, error) { return f.status, nil }

// Tail is nothing: it is laid over the parts already.
func (f *frozen) Tail(context.Context, string, uint64, string, int64) (*lease.Tail, error) {
	return nil, nil
}

// bundleTime is the time of every file in a bundle: the same session makes the
// same bytes.
var bundleTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A bundle is being written.
type bundle struct {
	a      *app
	store  *frozen
	id     string
	tar    *tar.Writer
	report report
}

func (a *app) bundle(ctx context.Context, files *journal.Files, id string, signer note.Signer) error {
	store, err := freeze(ctx, files, id)
	if err != nil {
		return err
	}
	b := &bundle{a: a, store: store, id: id, tar: tar.NewWriter(a.out)}
	if b.report, err = readSession(ctx, store, id, 0, journal.ScanOptions{State: replay.NewChecker(), Blobs: true}); err != nil {
		return err
	}
	head, signed, err := b.head(ctx, signer)
	if err != nil {
		return err
	}
	r := &record{a: a, store: store, session: id, id: store.ID()}
	if err := r.survey(ctx); err != nil {
		return err
	}
	var md bytes.Buffer
	if err := (markdown{&md}).begin(r); err != nil {
		return err
	}
	fmt.Fprintf(&md, "\nThe log is in the folder `%s`, byte for byte as it was written, with its blobs, unpacked; `FORMAT.md` describes it. To check it:\n\n```sh\npython3 verify.py\nsh verify.sh\n```\n\n"+
		"Both hold it against the file `head`, or against a head that was kept elsewhere: `python3 verify.py HEAD`. What nobody has kept elsewhere or signed, whoever changed the log may have changed too.\n", id)
	check := ""
	if signed != "" {
		check = noteSh
		fmt.Fprintf(&md, "The head is signed, in `head.note`. With the verifier key of who signed it, which must come from elsewhere, both check that too, where there is openssl: `python3 verify.py KEY`.\n")
	}
	for _, file := range []struct {
		name, text string
		mode       int64
	}{{"report.md", md.String(), 0o644}, {"head", head, 0o644}, {"head.note", signed, 0o644}, {"FORMAT.md", schema.FormatPage, 0o644}, {"KINDS.md", schema.KindsPage, 0o644},
		{"verify.py", verifyPy, 0o755}, {"verify.sh", verifySh, 0o755}, {"note.sh", check, 0o755}} {
		if file.text != "" {
			if err := b.put(file.name, file.mode, int64(len(file.text)), strings.NewReader(file.text)); err != nil {
				return err
			}
		}
	}
	if err := b.putReport(ctx); err != nil {
		return err
	}
	if err := b.putParts(ctx); err != nil {
		return err
	}
	if err := b.tar.Close(); err != nil || b.report.OK {
		return err
	}
	return damaged{b.report.damage()}
}

// head is the head of a log that is in order, and a note that signs it: one over
// damage would vouch for it.
func (b *bundle) head(ctx context.Context, signer note.Signer) (head, signed string, err error) {
	if !b.report.OK || b.report.Head == nil {
		if signer != nil {
			fmt.Fprintf(b.a.err, "session %s is damaged, or has no event: its head is not signed\n", b.id)
		}
		return "", "", nil
	}
	v, err := headOf(ctx, b.store, b.id, signer)
	return v.Head + "\n", v.Note, err
}

// put adds a file.
func (b *bundle) put(name string, mode, size int64, r io.Reader) error {
	err := b.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: b.id + ".bundle/" + name, Mode: mode, Size: size, ModTime: bundleTime})
	if err != nil {
		return err
	}
	_, err = io.CopyN(b.tar, r, size)
	if errors.Is(err, io.EOF) {
		return schema.Errorf(schema.LogReadFailed, "%s of session %s is shorter than it was", name, b.id).With("session", b.id)
	}
	return err
}

// putReport adds what verify says as JSON. That may be long, so it is made twice
// and never kept.
func (b *bundle) putReport(ctx context.Context) error {
	a := *b.a
	a.format = "json"
	var size counter
	a.out = &size
	if err := a.printReport(ctx, b.store, b.report); err != nil {
		return err
	}
	r, w := io.Pipe()
	a.out = w
	go func() { w.CloseWithError(a.printReport(ctx, b.store, b.report)) }()
	defer r.Close()
	return b.put("report.json", 0o644, int64(size)+1, io.MultiReader(r, strings.NewReader("\n")))
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// putParts adds the segments and the blobs.
func (b *bundle) putParts(ctx context.Context) error {
	done := "" // a blob may be stored in both forms; the first counts
	for _, p := range b.store.parts {
		if err := ctx.Err(); err != nil {
			return err
		}
		open, name, size := p.Open, p.Name, p.Size
		if p.Epoch == 0 {
			sum := strings.TrimSuffix(strings.TrimPrefix(p.Name, "blobs/"), ".zst")
			if sum == done {
				continue
			}
			done = sum
			// The value itself, so that nobody needs to unpack it. One that is not what
			// its name says stays as it is stored.
			value := func() (io.ReadCloser, error) {
				return journal.OpenBlob(ctx, b.store, b.id, schema.Ref{SHA256: sum, Bytes: -1})
			}
			if n, err := length(value); err == nil {
				open, name, size = value, "blobs/"+sum, n
			} else if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		r, err := open()
		if err != nil {
			return err
		}
		err = b.put(b.id+"/"+name, 0o644, size, r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// length reads a value to its end.
func length(open func() (io.ReadCloser, error)) (int64, error) {
	r, err := open()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(io.Discard, r)
}
