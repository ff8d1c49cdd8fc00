package executor

import (
	"path"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// sensitiveNames are the files and folders that hold secrets by custom. The
// list is a seat belt: what keeps a tool in its place is the workspace.
var sensitiveNames = []string{
	".env", ".env.*",
	"*.pem", "*.key", "*.p12", "*.pfx",
	"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
	".ssh", ".aws", ".gnupg",
	".netrc", ".npmrc", ".pypirc",
	"credentials*", "secrets",
}

// sensitive reports whether one component of a path is such a name, in any
// case. File systems that fold case fold more than ASCII (ſ is an s, ß is ss),
// and some leave out characters that do not show, so the name is also compared
// in that form.
func sensitive(name string) bool {
	if matchesSensitive(strings.ToLower(name)) {
		return true
	}
	for i := range len(name) {
		if name[i] >= 0x80 {
			return matchesSensitive(plainName(name))
		}
	}
	return false
}

func matchesSensitive(name string) bool {
	for _, pattern := range sensitiveNames {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

func plainName(s string) string {
	s = norm.NFKC.String(s)
	s = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return -1
		}
		return r
	}, s)
	return norm.NFKC.String(cases.Fold().String(s))
}
