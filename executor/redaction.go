package executor

import (
	"os"
	"path/filepath"

	"steno/executor/redact"
	"steno/schema"
)

// LoadRedaction reads a file of --redact, which is YAML:
//
//	version: 1
//	keys: [badge_number]
//	patterns:
//	  - {name: ticket, match: 'TCK-[0-9]{12}'}
//	env: [DEPLOY_PASS] # variables whose values are secret
//	files: [db.env]    # files whose content is secret, and each line NAME=value
//
// What is not absolute of files is beside the file itself.
//
// InvalidConfig says what is wrong; also a variable that is not set, and a file
// that cannot be read, for else it would be taken for hidden and is not.
func LoadRedaction(path string) (redact.Rules, error) {
	bad := func(err error) (redact.Rules, error) {
		e := schema.AsError(err)
		e.Message = path + ": " + e.Message
		return redact.Rules{}, e.With("next", "mend the file; the README has its form")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return redact.Rules{}, schema.Errorf(schema.InvalidConfig, "the rules of redaction cannot be read: %s", path).With("next", "check the path of --redact").Cause(err)
	}
	var doc struct {
		Version  int              `json:"version"`
		Keys     []string         `json:"keys"`
		Patterns []redact.Pattern `json:"patterns"`
		Env      []string         `json:"env"`
		Files    []string         `json:"files"`
	}
	if err := readYAML(text, &doc); err != nil {
		return bad(err)
	}
	if doc.Version != 1 {
		return bad(schema.Errorf(schema.InvalidConfig, "version must be 1"))
	}
	r := redact.Rules{Keys: doc.Keys, Patterns: doc.Patterns}
	for _, name := range doc.Env {
		v, set := os.LookupEnv(name)
		if !set {
			return bad(schema.Errorf(schema.InvalidConfig, "the variable %s of env is not set", quoted(name)))
		}
		r.Values = append(r.Values, redact.Secret{Name: name, Value: v})
	}
	for _, name := range doc.Files {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		b, err := os.ReadFile(name)
		if err != nil || len(b) > maxYAML {
			return bad(schema.Errorf(schema.InvalidConfig, "%s of files cannot be read, or has more than %d bytes", quoted(name), maxYAML).Cause(err))
		}
		r.Values = append(r.Values, redact.FileSecrets(name, string(b))...)
	}
	if _, err := redact.New(nil, r); err != nil {
		return bad(err)
	}
	return r, nil
}
