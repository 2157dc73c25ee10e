// Package migplan is the command that lists the claims that keep pods from MIG devices of layouts by demand. It reads the API server with
// the user's rights, and writes nothing.
package migplan

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/fabric/topology"
	"gpufabric.io/drivers/gpu/controller/demand"
	"gpufabric.io/drivers/node/host"
)

// patience bounds all of the command's requests: a person waits for the answer.
const patience = time.Minute

// Command is `gpufabric mig`.
func Command(h host.Host) *cobra.Command {
	mig := &cobra.Command{Use: "mig", Short: "Look at MIG layouts by demand"}
	var kubeconfig string
	plan := &cobra.Command{
		Use:   "plan",
		Short: "Say which claims keep waiting pods from MIG devices, where free slices would suffice",
		Long: "For MIGLayouts with auto: which shapes pods wait for and no GPU has room for, and for each the places that the end of\n" +
			"fewest claims would free. MIG instances do not move: only the end or the eviction of such a claim's pods helps, and this\n" +
			"program evicts nothing.\n\n" +
			"It lists miglayouts, nodes, pods, resourceclaims, resourceslices and deviceclasses with the rights of whoever runs it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, fmt.Errorf("the API server did not answer within %s", patience))
			defer cancel()
			return run(ctx, h, kubeconfig)
		},
	}
	plan.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	mig.AddCommand(plan)
	return mig
}

func run(ctx context.Context, h host.Host, kubeconfig string) error {
	config, err := topology.Reach(h, kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("make a client: %w", err)
		}
	}
	reader, err := client.New(host.Tune(config, "gpufabric-mig"), client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	found, err := demand.Shortages(ctx, reader, time.Now())
	if err != nil {
		return err
	}
	return write(host.Visible(h.Out()), found)
}

// write writes a paragraph for each shape.
func write(w io.Writer, found []demand.Shortage) error {
	var out strings.Builder
	if len(found) == 0 {
		out.WriteString("No pod waits for a MIG device that only the end of a claim would make room for.\n")
	}
	for _, s := range found {
		fmt.Fprintf(&out, "MIGLayout %s: pods wait for %d of %s. %d compute slices are free", s.Layout, s.Waiting, s.Shape, s.Free)
		switch {
		case s.GPUs > 0:
			fmt.Fprintf(&out, ", enough for one on %d GPUs, where instances in use are in its place.\n", s.GPUs)
		default:
			out.WriteString(", too few for one on any GPU.\n")
		}
		if len(s.Reliefs) == 0 {
			out.WriteString("  No GPU of the layout can have one.\n")
			continue
		}
		out.WriteString("  The end of fewest claims would free:\n")
		for _, r := range s.Reliefs {
			fmt.Fprintf(&out, "    %s\n", r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err //nolint:wrapcheck // the terminal's own words
}
