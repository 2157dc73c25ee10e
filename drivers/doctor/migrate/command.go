package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/fabric/topology"
	"gpufabric.io/drivers/node/host"
)

// patience bounds all of the command's requests: a person waits for the answer.
const patience = 2 * time.Minute

// Command is `gpufabric migrate`.
func Command(h host.Host) *cobra.Command {
	migrate := &cobra.Command{Use: "migrate", Short: "Look at what changes when gpufabric serves a cluster"}
	var kubeconfig, namespace, output string
	plan := &cobra.Command{
		Use:   "plan",
		Short: "Say for each object that is there: works unchanged, a field has to change, or not served",
		Long: "Say for each object that names GPUs, compute domains or RDMA devices whether it works unchanged when gpufabric serves the\n" +
			"cluster, which field has to change, or that it is not served. It changes nothing.\n\n" +
			"It lists nodes, pods, daemonsets, deployments, statefulsets, replicasets, jobs, cronjobs, deviceclasses, resourceslices,\n" +
			"resourceclaims, resourceclaimtemplates, computedomains, clusterpolicies and nicclusterpolicies with the rights of whoever\n" +
			"runs it, and names those that it may not. It reads no ConfigMap and no Secret.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", output)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, fmt.Errorf("the API server did not answer within %s", patience))
			defer cancel()
			return run(ctx, h, kubeconfig, namespace, output)
		},
	}
	plan.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	plan.Flags().StringVarP(&namespace, "namespace", "n", "", "objects of this namespace alone, beside those without one; empty: all")
	plan.Flags().StringVarP(&output, "output", "o", "text", "text (a table) or json")
	migrate.AddCommand(plan)
	return migrate
}

func run(ctx context.Context, h host.Host, kubeconfig, namespace, output string) error {
	config, err := topology.Reach(h, kubeconfig)
	if err != nil {
		return err
	}
	reader, err := client.New(host.Tune(config, "gpufabric-migrate"), client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	plan, err := Read(ctx, reader, namespace)
	if err != nil {
		return err
	}
	if output == "json" {
		content, err := json.MarshalIndent(plan, "", "  ")
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		_, err = fmt.Fprintf(host.Visible(h.Out()), "%s\n", content)
		return err //nolint:wrapcheck // the terminal's own words
	}
	return write(host.Visible(h.Out()), plan)
}

// write writes the table, and how many objects there are of each verdict.
func write(w io.Writer, p *Plan) error {
	var out strings.Builder
	if len(p.Findings) > 0 {
		table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "VERDICT\tOBJECT\tFIELD\tHERE")
		for _, f := range p.Findings {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Verdict, f.Object, f.Field, strings.ReplaceAll(f.Here, "\n", " "))
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	objects := map[Verdict]map[string]bool{Unchanged: {}, Change: {}, NotServed: {}}
	for _, f := range p.Findings {
		objects[f.Verdict][f.Object] = true
	}
	fmt.Fprintf(&out, "%d objects work unchanged, %d have a field that changes, %d have one that is not served.\n", len(objects[Unchanged]),
		len(objects[Change]), len(objects[NotServed]))
	if p.Dropped > 0 {
		fmt.Fprintf(&out, "%d further rows are left out; read one namespace at a time (--namespace).\n", p.Dropped)
	}
	for _, missing := range p.Missing {
		fmt.Fprintf(&out, "Not read: %s\n", missing)
	}
	_, err := io.WriteString(w, out.String())
	return err //nolint:wrapcheck // the terminal's own words
}
