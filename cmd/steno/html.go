package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"

	"steno/schema"
)

// A page writes a record as one HTML file. It has no script and loads nothing,
// and its policy tells the browser to allow neither. Nothing of the log stands
// in it but as escaped text.
type page struct {
	w io.Writer
	t timeline
	b strings.Builder // of the event at hand
}

//go:embed record.css
var recordCSS string

// maxBars bounds the calls that a page follows at a time, and those that a timeline
// remembers because their outcome is open. Beyond maxLanes they
// are not drawn anyway, and a log may leave all of its calls open.
const maxBars = 4096

// shut is how long a value may be that is not folded.
const shut = 1200

func newPage(w io.Writer) *page {
	return &page{w: w, t: timeline{open: map[string]*bar{}, past: map[string]*bar{}}}
}

func (p *page) begin(r *record) error {
	sum := sha256.Sum256([]byte(recordCSS))
	p.add(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'; base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Session `)
	p.text(r.session)
	p.add("</title>\n<style>" + recordCSS + "</style>\n</head>\n<body>\n<h1>Session ")
	p.text(r.session)
	p.add("</h1>\n<dl>\n")
	for _, f := range r.facts() {
		class := ""
		if f[0].text == schema.SeverityError || r.damage != nil && f[0].text == "checked" {
			class = ` class="error"`
		}
		p.add("<dt>")
		p.text(f[0].text)
		p.add("</dt><dd" + class + ">")
		p.words(f[1:])
		p.add("</dd>\n")
	}
	p.add("</dl>\n<p class=\"key\">A bar is a call, from the event that records it to its result: dotted while it is not started, dashed when its writer is gone. " +
		markCall + " recorded " + markAsked + " a person is asked " + markAllow + " allowed " + markDeny + " denied " + markStart + " started " +
		markOK + " ok " + markFailed + " failed " + markOpen + " open</p>\n<main>\n")
	return p.flush()
}

func (p *page) event(e *schema.Event, v passage) error {
	var ended *bar
	var mark string
	if e.Type != schema.TypeToolCall || len(p.t.open) < maxBars {
		ended, mark = p.t.take(e)
	}
	fmt.Fprintf(&p.b, `<article id="%d" class="%s">`, e.Seq, v.class)
	p.lanes(callIDOf(e), mark)
	p.t.free(ended)
	h := "h3"
	if v.class == "epoch" {
		h = "h2"
	}
	fmt.Fprintf(&p.b, `<div><time datetime="%s">%s</time><%s><a href="#%d">#%d</a>`, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), instant(e.Time), h, e.Seq, e.Seq)
	p.words(v.title)
	if ended != nil {
		fmt.Fprintf(&p.b, ` <a href="#%d">its call</a>`, ended.span.Seq)
	}
	p.add("</" + h + ">")
	if len(v.notes) > 0 {
		p.add("<ul>")
		for _, n := range v.notes {
			p.add("<li>")
			p.words(n)
		}
		p.add("</ul>")
	}
	for _, b := range v.blocks {
		open := " open"
		if len(b.text) > shut && v.class != "message" {
			open = ""
		}
		p.add("<details" + open + "><summary>")
		p.text(b.label)
		if b.note != "" {
			p.text(" (" + b.note + ")")
		} else if open == "" {
			p.text(fmt.Sprintf(" (%d bytes)", len(b.text)))
		}
		p.add("</summary><pre>\n") // HTML takes the first newline away
		p.add(html.EscapeString(inertLines(b.text)))
		p.add("</pre></details>")
	}
	p.add("</div></article>\n")
	return p.flush()
}

// lanes draws a piece of the bar of each call that is open, as high as the event.
func (p *page) lanes(id, mark string) {
	p.add(`<div class="lanes" aria-hidden="true">`)
	for _, l := range p.t.lanes[:min(len(p.t.lanes), maxLanes)] {
		if l == nil {
			p.add("<i></i>")
			continue
		}
		class, own, color := "runs", "", ""
		switch {
		case l.epoch == 0:
			class = "idle"
		case l.lost:
			class = "lost"
		}
		if l.id == id && mark != "" {
			own = mark
			switch mark {
			case markCall:
				class += " first"
			case markOK:
				class, color = class+" last", "good"
			case markFailed:
				class, color = class+" last", "bad"
			case markOpen:
				class, color = class+" last", "open"
			case markDeny:
				color = "bad"
			}
		}
		p.add(`<i class="` + class + `" title="`)
		p.text(l.id + " " + l.tool)
		p.add(`">`)
		if own != "" {
			p.add(`<b class="` + color + `">` + own + `</b>`)
		}
		p.add("</i>")
	}
	p.add("</div>")
}

func (p *page) finding(f schema.Finding) error {
	p.add(`<p class="finding ` + f.Severity + `"><strong>` + strings.ToUpper(f.Severity) + "</strong> ")
	p.text(strings.TrimPrefix(findingText(f), f.Severity+"  "))
	p.add("</p>\n")
	return p.flush()
}

func (p *page) end(r *record) error {
	p.add("</main>\n")
	for _, b := range p.t.lanes {
		if b == nil {
			continue
		}
		fmt.Fprintf(&p.b, `<p class="open"><a href="#%d">#%d</a>`, b.span.Seq, b.span.Seq)
		p.words([]word{ours("Call"), theirs(b.id), ours("of"), theirs(b.tool), ours(b.fate())})
		p.add("</p>\n")
	}
	p.add("<p>The record ends with")
	p.words([]word{event(r.head.Seq)})
	p.add(". Whole values and the lines themselves: <code>")
	p.text("steno session show " + r.session + " -o jsonl")
	p.add("</code></p>\n</body>\n</html>\n")
	return p.flush()
}

// add adds what is ours, as HTML.
func (p *page) add(s string) { p.b.WriteString(s) }

// text adds a text in a line, whatever it is.
func (p *page) text(s string) { p.b.WriteString(html.EscapeString(inert(s))) }

// words adds words, a blank before each.
func (p *page) words(words []word) {
	for _, w := range words {
		p.b.WriteByte(' ')
		switch {
		case w.theirs:
			p.add("<code>")
			p.text(w.text)
			p.add("</code>")
		case w.seq > 0:
			fmt.Fprintf(&p.b, `<a href="#%d">`, w.seq)
			p.text(w.text)
			p.add("</a>")
		default:
			p.text(w.text)
		}
	}
}

func (p *page) flush() error {
	_, err := io.WriteString(p.w, p.b.String())
	p.b.Reset()
	return err
}
