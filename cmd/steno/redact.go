package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/executor/redact"
	"steno/journal"
	"steno/schema"
)

// redactFlag lets a command that may run tools name more secrets.
func (a *app) redactFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.redact, "redact", "", "rules of redaction besides the built-in ones: a YAML file; the README has its form")
}

// redactor has the rules of --redact and the secret of the store.
func (a *app) redactor(store *journal.Files) (*redact.Redactor, error) {
	var more redact.Rules
	if a.redact != "" {
		var err error
		if more, err = executor.LoadRedaction(a.redact); err != nil {
			return nil, err
		}
	}
	if a.tools != "" { // what its tools get must not come back
		file, err := executor.LoadTools(a.tools)
		if err != nil {
			return nil, err
		}
		more.Values = append(more.Values, file.Secrets()...)
	}
	secret, err := store.Secret()
	if err != nil {
		return nil, err
	}
	return redact.New(secret, more)
}

// ids make call ids for lines without one, each its own for equal lines, and
// know the ids that lines had of themselves. No id
// is made from a secret: whoever reads it could try out what the secret is.
type ids struct {
	seen   map[string]int
	redact *redact.Redactor
	store  bool // redact has the store's secret
}

// ids of the calls that b runs.
func (a *app) ids(b *backend) (n *ids, err error) {
	n = &ids{seen: map[string]int{}, store: a.nats == ""}
	switch {
	case !n.store: // its secret is not to be had
		n.redact, err = redact.New(nil, redact.Rules{})
	case b.store != nil:
		n.redact, err = a.redactor(b.store)
	default: // a serve has it
		var store *journal.Files
		if store, err = a.store(false); err == nil {
			n.redact, err = a.redactor(store)
			err = errors.Join(err, store.Close())
		}
	}
	return n, err
}

// stood reports whether a line before had this call id.
func (n *ids) stood(callID string) bool {
	h := sha256.Sum256([]byte(callID))
	key := "id " + string(h[:16])
	n.seen[key]++
	return n.seen[key] > 1
}

// id is the call id of a line: made from its tool and arguments, for what is
// secret in them from its hash under the store's secret, and from how many
// equal lines came before.
func (n *ids) id(name string, args []byte) (string, error) {
	stored, marks := n.redact.JSON(args, "/args", nil)
	if len(marks) > 0 && !n.store {
		return "", schema.Errorf(schema.InvalidArgs, "the line has no call_id, and none can be made of a call with a secret, which the rule %s finds", marks[0].Rule).
			With("next", "give the line a call_id")
	}
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(stored)
	for _, m := range marks {
		h.Write([]byte(m.Hash))
	}
	key := hex.EncodeToString(h.Sum(nil))[:16]
	n.seen[key]++
	return "a-" + key + "-" + strconv.Itoa(n.seen[key]), nil
}
