package program

import (
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/scenario"
)

func injectCommand() *cobra.Command {
	var root string
	c := &cobra.Command{
		Use:   "inject --root DIR EVENT [name=value...]",
		Short: "Make an event happen on a node",
		Long:  "Make an event happen on a node. Events and their arguments:\n\n" + eventHelp(),
		Args:  wants(true, "an event and its arguments, such as xid gpu=0 code=79"),
		RunE: func(_ *cobra.Command, args []string) error {
			with := fault.Arguments{}
			for _, a := range args[1:] {
				name, value, ok := strings.Cut(a, "=")
				if !ok {
					return fmt.Errorf("argument %q: want name=value", a)
				}
				if earlier, twice := with[name]; twice {
					return fmt.Errorf("argument %q: %s is %q already", a, name, earlier)
				}
				with[name] = value
			}
			return fault.Apply(root, args[0], with)
		},
	}
	c.Flags().StringVar(&root, "root", "", "the node's directory")
	mustRequire(c, "root")
	return c
}

func eventHelp() string {
	var b strings.Builder
	for _, k := range fault.Kinds() {
		fmt.Fprintf(&b, "  %-16s %s\n", k.Name, k.Summary)
		for _, p := range k.Parameters {
			fmt.Fprintf(&b, "  %16s   %s: %s", "", p.Name, p.Summary)
			if p.Default != "" {
				fmt.Fprintf(&b, " (default %s)", p.Default)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func playCommand() *cobra.Command {
	var root string
	var speed float64
	c := &cobra.Command{
		Use:   "play --root DIR SCENARIO",
		Short: "Play a scenario file of events against a node",
		Args:  wants(false, "one scenario file"),
		RunE: func(c *cobra.Command, args []string) error {
			if speed < 0 || math.IsNaN(speed) {
				return fmt.Errorf("--speed is %v, want a number of 0 or more", speed)
			}
			steps, err := scenario.Load(args[0])
			if err != nil {
				return err
			}
			return scenario.Play(c.Context(), root, steps, scenario.RealTime(speed), c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&root, "root", "", "the node's directory")
	c.Flags().Float64Var(&speed, "speed", 1, "how many times as fast as real time; 0: without waiting")
	mustRequire(c, "root")
	return c
}

// mustRequire marks flags that were defined just before.
func mustRequire(c *cobra.Command, names ...string) {
	for _, name := range names {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
}
