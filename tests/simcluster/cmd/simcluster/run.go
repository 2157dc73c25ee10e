package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/role"
)

func runCommand(dir *string) *cobra.Command {
	var eachNode bool
	cmd := &cobra.Command{
		Use:   "run -- PROGRAM [ARGUMENT...]",
		Short: "Run a program of another project in the cluster: a scheduler, a controller, or a kubelet plugin on each node",
		Long: "Run a program until it ends or is interrupted. In its arguments {kubeconfig} and {cluster} stand for the administrator's " +
			"kubeconfig, which KUBECONFIG names too, and the cluster's directory.\n\nWith --each-node it runs on every node, also on " +
			"nodes that are added, and is started again when it ends; its output is in DIR/logs. Its arguments may have {node} (the name, " +
			"also in NODE_NAME), {hardware} (the directory of fake sys, proc, dev and driver), {kubelet}, {cdi}, {state} and {dir} (the " +
			"node's directory). A program that loads NVML needs a cluster with --containers=processes, whose driver has the C libraries.",
		Example: "  simcluster run -- my-scheduler --kubeconfig={kubeconfig}\n  simcluster run --each-node -- my-plugin --node-name={node} " +
			"--sysfs={hardware}/sys --cdi-root={cdi} --kubelet-root={kubelet}",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := clients(*dir)
			if err != nil {
				return err
			}
			r := role.Role{Cluster: *dir, Command: args, Output: cmd.ErrOrStderr()}
			if !eachNode {
				return r.Once(cmd.Context())
			}
			if record, err := cluster.ReadRecord(*dir); err == nil && record.Slices != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "the nodes of this cluster publish ResourceSlices themselves (--slices), so no DRA driver can register")
			}
			return r.OnEachNode(cmd.Context(), client)
		},
	}
	cmd.Flags().BoolVar(&eachNode, "each-node", false, "run it on each node, as a DaemonSet")
	return cmd
}
