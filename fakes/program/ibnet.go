package program

import (
	"github.com/spf13/cobra"

	"gpufabric.io/fakes/ibnet"
	"gpufabric.io/fakes/profile"
)

func ibnetdiscoverCommand() *cobra.Command {
	var o ibnet.Options
	var name string
	c := &cobra.Command{
		Use:   "ibnetdiscover --profile NAME|FILE --nodes N",
		Short: "Print the leaf, spine and core switches between nodes of a profile, as ibnetdiscover prints a network",
		Long: "Print the leaf, spine and core switches between nodes of a profile, as ibnetdiscover prints a network. Topograph reads the " +
			"output, and ibsim, on which ibnetdiscover and OpenSM run.",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := profile.Load(name)
			if err != nil {
				return err
			}
			o.Profile = p
			return ibnet.Write(c.OutOrStdout(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&name, "profile", "", "name of a profile (see fakefabric profiles), or path of a profile file")
	f.IntVar(&o.Nodes, "nodes", 0, "how many machines there are")
	f.StringSliceVar(&o.Names, "names", nil, "the machines' names, separated by commas, as Kubernetes has them (default: the profile's)")
	f.IntVar(&o.Ports, "switch-ports", 0,
		"ports of a switch; half of a leaf's are for nodes (default: 144 for XDR, 64 for NDR, 40 for HDR, else 36)")
	mustRequire(c, "profile", "nodes")
	return c
}
