// Command vulnreport reads the output of govulncheck -format json and prints
// the known vulnerabilities in code that is called.
//
//	govulncheck -format json ./... | go run ./.ci/vulnreport
//
// It exits 1 if a module that go.mod requires has one. Those of the standard
// library are printed only: go.mod cannot mend them, a newer Go can, and which
// Go builds steno is for the one who builds it to choose.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// A message is what vulnreport needs of a Message of govulncheck's.
type message struct {
	Config *struct {
		GoVersion string `json:"go_version"`
		ScanLevel string `json:"scan_level"`
	} `json:"config"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module   string `json:"module"`
			Version  string `json:"version"`
			Package  string `json:"package"`
			Function string `json:"function"`
			Receiver string `json:"receiver"`
			Position *struct {
				Filename string `json:"filename"`
				Line     int    `json:"line"`
			} `json:"position"`
		} `json:"trace"`
	} `json:"finding"`
}

func main() {
	bad, err := report(os.Stdin)
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d known vulnerabilities in modules are called", bad)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulnreport:", err)
		os.Exit(1)
	}
}

func report(in io.Reader) (bad int, err error) {
	var (
		dec     = json.NewDecoder(in)
		summary = map[string]string{}
		called  = map[string]bool{}
		known   = map[string]bool{} // in a required module, called or not
		scanned bool
	)
	for {
		var m message
		if err := dec.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			return 0, err
		}
		if m.Config != nil {
			scanned = m.Config.ScanLevel == "symbol"
		}
		if m.OSV != nil {
			summary[m.OSV.ID] = m.OSV.Summary
		}
		f := m.Finding
		if f == nil || len(f.Trace) == 0 {
			continue
		}
		vuln := f.Trace[0] // the trace ends at the entry point
		key := f.OSV + " in " + vuln.Module
		known[key] = true
		if vuln.Function == "" || called[key] {
			continue
		}
		called[key] = true
		fixed := f.FixedVersion
		if fixed == "" {
			fixed = "no version yet"
		}
		line := fmt.Sprintf("%s@%s, fixed in %s: %s", key, vuln.Version, fixed, summary[f.OSV])
		if vuln.Module == "stdlib" || vuln.Module == "toolchain" {
			fmt.Println("note", line)
			continue
		}
		bad++
		fmt.Println("FAIL", line)
		for _, t := range slices.Backward(f.Trace) {
			sym := t.Function
			if t.Receiver != "" {
				sym = t.Receiver + "." + sym
			}
			fmt.Printf("       %s.%s", t.Package, sym)
			if p := t.Position; p != nil {
				fmt.Printf(" (%s:%d)", p.Filename, p.Line)
			}
			fmt.Println()
		}
	}
	if !scanned {
		return 0, errors.New("no symbol scan in the input")
	}
	for key := range maps.Keys(called) {
		delete(known, key)
	}
	fmt.Printf("%d known vulnerabilities are called, %d of them in modules; %d more are required but not called\n",
		len(called), bad, len(known))
	return bad, nil
}
