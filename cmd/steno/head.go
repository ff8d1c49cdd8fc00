package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

func (a *app) headCommand() *cobra.Command {
	var key, newKey string
	c := &cobra.Command{
		Use: "head SESSION", Short: "print the head of a session, which names its whole log; with --key as a signed note",
		Long: "head prints <epoch>.<seq>.<sum> of the last event. Keep it elsewhere: steno verify --head tells by it whether the\n" +
			"log was shortened or written anew. With --key it is a signed note (C2SP signed-note) that anybody who has the\n" +
			"verifier key can check. --new-key makes a key in the file of --key and prints its verifier key.",
		Example: "  steno head demo\n  steno head --new-key example.org/steno --key signer.key\n  steno head demo --key signer.key",
		Args: func(c *cobra.Command, args []string) error {
			if newKey != "" {
				return exactly()(c, args)
			}
			return exactly("SESSION")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if newKey != "" {
				return a.makeKey(newKey, key)
			}
			var signer note.Signer
			if key != "" {
				var err error
				if signer, err = readKey(key); err != nil {
					return err
				}
			}
			store, err := a.reader()
			if err != nil {
				return err
			}
			defer store.Close()
			id, err := a.session(c.Context(), store, args[0])
			if err != nil {
				return err
			}
			return a.head(c.Context(), store, id, signer)
		},
	}
	c.Flags().StringVar(&key, "key", "", "file of a signer's key, mode 0600")
	c.Flags().StringVar(&newKey, "new-key", "", "make a key of this name; never over a file that is there")
	return c
}

type headView struct {
	Session string `json:"session"`
	Store   string `json:"store"`
	Head    string `json:"head"`
	Note    string `json:"note,omitzero"`
}

// headOf is the head of a log that is in order: one over damage would vouch
// for it. What is tentative may yet turn out not to count.
func headOf(ctx context.Context, store journal.Store, id string, signer note.Signer) (v headView, err error) {
	var head schema.Head
	for it, err := range journal.NewScan(store, id, journal.ScanOptions{Strict: true, State: replay.NewChecker()}).Items(ctx) {
		if err != nil {
			return v, err
		}
		if it.Event != nil && !it.Tentative {
			head = it.Event.Head()
		}
	}
	if head.Seq == 0 {
		return v, schema.Errorf(schema.NotFound, "session %s has no event yet", id).With("session", id)
	}
	v = headView{Session: id, Store: store.ID(), Head: head.String()}
	if signer != nil {
		b, err := note.Sign(&note.Note{Text: v.text()}, signer)
		if err != nil {
			return v, schema.Errorf(schema.Internal, "the note cannot be signed")
		}
		v.Note = string(b)
	}
	return v, nil
}

// head prints the head of a log, or the note that signs it.
func (a *app) head(ctx context.Context, store journal.Store, id string, signer note.Signer) error {
	v, err := headOf(ctx, store, id, signer)
	if err != nil {
		return err
	}
	if a.format == "json" || a.format == "jsonl" {
		return a.json(v)
	}
	_, err = io.WriteString(a.out, cmp.Or(v.Note, v.Head+"\n"))
	return err
}

// text is what is signed. schema/FORMAT.md describes it.
func (v headView) text() string {
	return "steno head v1\nstore " + v.Store + "\nsession " + v.Session + "\nhead " + v.Head + "\n"
}

// readNote gives the session and the head of a note that this key has signed.
func readNote(file, key, store string) (session string, head schema.Head, err error) {
	bad := func(format string, args ...any) (string, schema.Head, error) {
		return "", head, schema.Errorf(schema.HeadMismatch, format, args...).With("next", "look where the note comes from, and which key signs there")
	}
	verifier, err := note.NewVerifier(key)
	if err != nil {
		return "", head, usage("--verifier is no verifier key, which is <name>+<hash>+<key>")
	}
	b, err := readSmall(file)
	if err != nil {
		return "", head, err
	}
	n, err := note.Open(b, note.VerifierList(verifier))
	if err != nil {
		return bad("the note is not signed by %s, or was changed", verifier.Name())
	}
	m := noteText.FindStringSubmatch(n.Text)
	if m == nil {
		return bad("the note is signed, and holds no head")
	}
	if head, err = schema.ParseHead(m[3]); err != nil {
		return bad("the note is signed, and holds no head")
	}
	if m[1] != store {
		return bad("the note is about the store %s; this one is %s", m[1], store)
	}
	return m[2], head, schema.CheckSession(m[2])
}

var noteText = regexp.MustCompile(`\Asteno head v1\nstore ([0-9A-Z]+)\nsession ([A-Za-z0-9_-]+)\nhead ([0-9a-f.]+)\n\z`)

// readSmall reads a file of a person's.
func readSmall(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hang us
	if err != nil {
		return nil, badFile(file, "cannot be opened")
	}
	defer f.Close()
	return readOpen(f, file)
}

func readOpen(f *os.File, file string) ([]byte, error) {
	const most = 64 << 10
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil || len(b) > most {
		return nil, badFile(file, "cannot be read, or is too large")
	}
	return b, nil
}

func badFile(file, why string) *schema.Error {
	return schema.Errorf(schema.InvalidConfig, "%s %s", file, why).With("next", "name another file, or set this one right")
}

// readKey reads a signer's key, in the form of x/mod/sumdb/note. Neither the
// key nor what that package says of it gets into an error.
func readKey(file string) (note.Signer, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, badFile(file, "cannot be opened").With("next", "make a key with: steno head --new-key NAME --key FILE")
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return nil, badFile(file, "is no regular file")
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, badFile(file, "may be read by others; a key that they have seen proves nothing").With("next", "run: chmod 600 on it, or make a new key")
	}
	b, err := readOpen(f, file)
	if err != nil {
		return nil, err
	}
	signer, err := note.NewSigner(strings.TrimSuffix(string(b), "\n"))
	if err != nil {
		return nil, badFile(file, "holds no signer's key").With("next", "make a key with: steno head --new-key NAME --key FILE")
	}
	return signer, nil
}

var keyName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\z`)

func (a *app) makeKey(name, file string) error {
	if file == "" {
		return usage("--new-key needs --key, the file to make")
	}
	if !keyName.MatchString(name) {
		return usage("a key's name is up to 128 letters, digits, '.', '_', '/' and '-', such as example.org/steno")
	}
	secret, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return schema.Errorf(schema.Internal, "no key could be made")
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return schema.Errorf(schema.AlreadyExists, "the file %s is there already", file).
			With("next", "name a file with --key that is not there yet; a key is never written over")
	}
	if err != nil {
		return badFile(file, "cannot be made")
	}
	_, err = io.WriteString(f, secret+"\n")
	if err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		os.Remove(file)
		return badFile(file, "cannot be written")
	}
	_, err = fmt.Fprintln(a.out, public)
	return err
}
