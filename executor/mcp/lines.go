package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// maxMessage is how many bytes a message of a server may have. It is some ten times
// that in memory for an instant.
const maxMessage = 32 << 20

// errLong says that a message is longer, and that it cannot be told whose answer
// it is.
var errLong = fmt.Errorf("a message of more than %d MiB", maxMessage>>20)

// codeLong is the code of the error that stands in place of an answer that is too
// long.
const codeLong = -32099

// lines is what a server prints, as far as it can be a message: one a line. What
// begins in another way is left out and told: programs print greetings there. An
// answer that is too long becomes an error under its id, so that other calls go on.
type lines struct {
	from *os.File
	in   *bufio.Reader
	line []byte // what is left to give of it
	held []byte
	odd  func(text []byte)
}

func newLines(from *os.File, odd func([]byte)) *lines {
	return &lines{from: from, in: bufio.NewReaderSize(from, 64<<10), odd: odd}
}

func (l *lines) Close() error { return l.from.Close() }

func (l *lines) Read(p []byte) (int, error) {
	for len(l.line) == 0 {
		if err := l.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, l.line)
	l.line = l.line[n:]
	return n, nil
}

// next reads a line that can be a message.
func (l *lines) next() error {
	if cap(l.held) > 1<<20 {
		l.held = nil
	}
	var long bool
	var err error
	if l.held, long, err = readLine(l.in, l.held[:0]); err != nil && len(l.held) == 0 { // the last line may have no end
		return err
	}
	text := bytes.TrimSpace(l.held)
	switch {
	case long:
		id := idOf(text[:min(len(text), 4<<10)])
		if id == nil {
			return errLong
		}
		l.line = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"too long"}}`+"\n", id, codeLong)
	case len(text) == 0:
	case text[0] != '{' && text[0] != '[':
		l.odd(text)
	default:
		l.line = l.held
	}
	return nil
}

// idOf is the id of a message, if its beginning has it.
func idOf(beginning []byte) jsontext.Value {
	d := jsontext.NewDecoder(bytes.NewReader(beginning))
	t, err := d.ReadToken()
	if err != nil || t.Kind() != '{' {
		return nil
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil
		}
		its := name.String() == "id"
		v, err := d.ReadValue()
		switch {
		case err != nil:
			return nil
		case its && (v.Kind() == '0' || v.Kind() == '"'):
			return v.Clone()
		case its:
			return nil
		}
	}
	return nil
}

// writeWait is how long a program may leave what it is sent unread.
const writeWait = 20 * time.Second

// errUnread says that a program does not take what it is sent. The half of a message
// may be on its way to it, so that nothing can be said behind it.
var errUnread = errors.New("it does not read")

// A patientWriter gives up on a program that does not read.
type patientWriter struct {
	to   *os.File
	wait time.Duration
}

func (w patientWriter) Write(p []byte) (int, error) {
	if err := w.to.SetWriteDeadline(time.Now().Add(w.wait)); err != nil {
		return 0, err
	}
	n, err := w.to.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", errUnread, err)
	}
	return n, err
}

func (w patientWriter) Close() error { return w.to.Close() }
