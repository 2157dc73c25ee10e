package program

import (
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/state"
)

func agentCommand() *cobra.Command {
	o := agent.Options{NodeName: os.Getenv("NODE_NAME")}
	c := &cobra.Command{
		Use:   "agent",
		Short: "In a pod: render the node that the Kubernetes node's labels ask for, and again when they change",
		Long: "In a pod: render the node that the Kubernetes node's labels ask for, and again when they change.\n\nLabels: " +
			agent.LabelProfile + " (a profile's name), " + agent.LabelIndex + " (which machine, from 0), " + agent.LabelNodes + " (how many).",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.NodeName == "" {
				return errors.New("NODE_NAME is not set; give the pod its spec.nodeName")
			}
			if err := findPrograms(&o.Tree); err != nil {
				return err
			}
			api, err := agent.InCluster()
			if err != nil {
				return err
			}
			o.API = api
			o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			return agent.Run(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.NodeName, "node-name", o.NodeName, "the Kubernetes node's name (default: NODE_NAME)")
	pluginsFlag(c, &o.Tree)
	f.StringVar(&o.Root, "root", state.FallbackRoot, "where to render")
	f.StringVar(&o.Listen, "listen", ":8089", "address of /healthz")
	f.StringVar(&o.Control, "control", "127.0.0.1:8090", "address of /node and /events, of loopback; empty for none")
	f.StringVar(&o.Sysfs, "sysfs", "/sys", "where the machine's own sysfs is, which is searched for real GPUs")
	f.BoolVar(&o.Faults, "faults", false, "let FabricFaults that select the node happen to it; the cluster needs their CRD")
	f.StringVar(&o.CDIRoot, "cdi-root", "", "the container runtime's directory of CDI specifications, as /var/run/cdi; empty: write none")
	f.StringVar(&o.Profile, "profile", "", "the profile of nodes without the label of one, numbered by age; empty: they have no hardware")
	f.BoolVar(&o.BesideGPUs, "beside-gpus", false, "render though the machine has real GPUs of NVIDIA's")
	f.StringVar(&o.Tree.LibraryDir, "library-dir", "",
		"where the built libraries are (default: FAKEFABRIC_LIBRARY_DIR, else lib beside the program)")
	return c
}
