// Command checknote checks a signed head as somebody would who has only the
// verifier key: it imports nothing of steno.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: checknote VERIFIER-KEY-FILE NOTE")
	}
	key, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(string(key)))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	n, err := note.Open(text, note.VerifierList(verifier))
	if err != nil {
		return err
	}
	fmt.Print(n.Text)
	return nil
}
