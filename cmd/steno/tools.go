package main

import (
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

// toolsFlag lets a command with an executor of its own bring tools.
func (a *app) toolsFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.tools, "tools", "", "a YAML file of commands that become tools, besides the built-in ones")
}

// ownFlags are for a command that has an executor of its own where there is no
// serve: it may run what the session has left open.
func (a *app) ownFlags(c *cobra.Command) {
	a.toolsFlag(c)
	a.policyFlag(c)
	a.redactFlag(c)
}

// allTools are those of this command's own executor.
func (a *app) allTools() ([]executor.Tool, error) {
	tools, _, err := a.toolsAndCommands()
	return tools, err
}

// toolsAndCommands says besides how they run commands.
func (a *app) toolsAndCommands() (tools []executor.Tool, commands executor.Commands, err error) {
	if a.tools != "" {
		tools, commands, err = executor.LoadTools(a.tools)
	}
	return append(commands.Builtin(), tools...), commands, err
}

// notElsewhere refuses what has no effect on somebody else's executor.
func (a *app) notElsewhere() error {
	for flag, file := range map[string]string{"--policy": a.policy, "--redact": a.redact, "--tools": a.tools} {
		if file != "" { // it would be read by nobody
			return schema.Errorf(schema.InvalidConfig, "%s is for tools that run in this process, and a serve runs them here", flag).
				With("next", "give "+flag+" to that serve")
		}
	}
	return nil
}
