//go:build unix && !linux

package executor

import "os/exec"

const hasWalls = false

// Helper is for Linux, where a program that runs commands calls it first of
// all. Here it does nothing, and nothing is around commands.
func Helper() {}

// A wall is what is around one command: nothing, on this system.
type wall struct{}

func (*wall) failed() error       { return nil }
func (*wall) ended(*outcome) bool { return false }
func (*wall) down()               {}

// around is where the command is confined. This system has no parent-death
// signal either, so a command outlives a process that is killed.
func around(*exec.Cmd, command, *Invocation, *pipes, string) (*wall, error) { return nil, nil }

func aside(*exec.Cmd, []string, *pipes) (*wall, error) { return nil, nil }

// confinement says what is around commands.
func confinement(Commands, bounds) string { return "a process group only: this system has no walls" }
