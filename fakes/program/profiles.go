package program

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/profile"
)

func profilesCommand() *cobra.Command {
	var origin bool
	c := &cobra.Command{
		Use:   "profiles [NAME|FILE...]",
		Short: "List the machine models that ship with fakefabric, and with --origin the origin of each of their values",
		RunE: func(c *cobra.Command, names []string) error {
			if len(names) == 0 {
				names = profile.Names()
			}
			for _, name := range names {
				p, err := profile.Load(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%-14s %s\n", p.Name, p.Summary)
				if origin {
					printOrigins(c.OutOrStdout(), p)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&origin, "origin", false,
		"print each value with its origin: captured on a machine, datasheet (a vendor's document or source), or invented")
	return c
}

func printOrigins(w io.Writer, p *profile.Profile) {
	count := map[string]int{}
	for _, v := range p.Origins() {
		origin := v.Origin
		if origin == "" {
			origin = "unknown"
		}
		count[origin]++
		fmt.Fprintf(w, "  %-10s %s: %v\n", origin, v.Path, v.Value)
	}
	var sums []string
	for _, origin := range []string{"captured", "datasheet", "invented", "unknown"} {
		if count[origin] > 0 {
			sums = append(sums, fmt.Sprintf("%d %s", count[origin], origin))
		}
	}
	fmt.Fprintf(w, "  values: %s\n", strings.Join(sums, ", "))
}
