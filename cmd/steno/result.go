package main

import (
	"strconv"

	"steno/schema"
)

// A result is what is shown of a tool_result.
type result struct {
	OK       bool              `json:"ok"`
	Output   string            `json:"output"`
	Summary  string            `json:"summary"`
	Error    *schema.ErrorBody `json:"error"`
	ExitCode *int              `json:"exit_code"`
	Duration int64             `json:"duration_us"`
}

func resultOf(data []byte, err error) (result, error) {
	if err != nil {
		b := schema.Body(err)
		return result{Error: &b}, nil
	}
	var v result
	if err := schema.Unmarshal(schema.Previews(data), &v); err != nil {
		return result{}, schema.Errorf(schema.Internal, "a result cannot be read").Cause(err)
	}
	return v, nil
}

func (r *result) kind() schema.Kind {
	if r.Error == nil {
		return ""
	}
	return r.Error.Kind
}

func (r *result) state() string {
	switch {
	case r.Error != nil:
		return string(r.Error.Kind)
	case r.ExitCode != nil && *r.ExitCode != 0:
		return "exit " + strconv.Itoa(*r.ExitCode)
	case r.OK:
		return "ok"
	}
	return "failed"
}

func (r *result) text() string {
	switch {
	case r.Error != nil:
		return r.Error.Message
	case r.Summary != "":
		return r.Summary
	}
	return r.Output
}
