package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/simnode"
)

// longestDir leaves room for "/n1007/k/plugins_registry/compute-domain.nvidia.com-<36 bytes>-reg.sock".
const longestDir = 25

type upFlags struct {
	nodes   int
	profile string
	mode    string
	port    int
	audit   []string

	kubernetes string
}

func (f *upFlags) bind(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.nodes, "nodes", 18, "how many nodes")
	cmd.Flags().StringVar(&f.profile, "profile", "gb200-nvl72", "what each node is: a profile's name or file")
	f.bindMode(cmd, fabric.AsGoroutines)
	cmd.Flags().StringVar(&f.kubernetes, "kubernetes", "", "the earlier minor version that the control plane emulates, such as 1.35")
	cmd.Flags().IntVar(&f.port, "port", 0, "the API server's port; 0: any that is free")
	cmd.Flags().StringSliceVar(&f.audit, "audit", nil, "namespaces whose service accounts' requests are written to DIR/audit.log")
}

func (f *upFlags) bindMode(cmd *cobra.Command, mode fabric.Mode) {
	cmd.Flags().StringVar(&f.mode, "containers", string(mode), fmt.Sprintf("how containers of gpufabric run: one of %v", fabric.Modes()))
}

func upCommand(dir *string) *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up and leave it running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if err := up(cmd.Context(), *dir, flags, func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }); err != nil {
				return err
			}
			fmt.Fprintf(out, "look around:  kubectl --kubeconfig %s/kubeconfig get nodes\nend it:       simcluster down --dir %s\n", *dir, *dir)
			return nil
		},
	}
	flags.bind(cmd)
	return cmd
}

// up brings the cluster up in processes that outlive this one.
func up(ctx context.Context, dir string, flags upFlags, progress func(string, ...any)) error {
	if flags.nodes < 1 || flags.nodes > simnode.MostNodes {
		return fmt.Errorf("--nodes %d: a simulated cluster has 1 to %d", flags.nodes, simnode.MostNodes)
	}
	if len(dir) > longestDir {
		return fmt.Errorf("--dir %s has %d bytes; more than %d leave no room for the unix sockets below it", dir, len(dir), longestDir)
	}
	if _, err := fabric.New(fabric.Mode(flags.mode), flags.profile, flags.nodes); err != nil { // before anything is started
		return err
	}
	racks, err := fabric.Racks(flags.profile, flags.nodes)
	if err != nil {
		return err
	}
	progress("%s", racks)
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		return err
	}
	return cluster.UpDetached(ctx, cluster.DetachedOptions{
		Dir: dir, Nodes: flags.nodes, Profile: flags.profile, Mode: flags.mode, Binaries: binaries, Port: flags.port, Audit: flags.audit,
		Kubernetes: flags.kubernetes,
		Progress:   progress,
	})
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End a cluster, or what a crash left of it, and remove its directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, none := cluster.ReadRecord(*dir)
			ended, err := cluster.Remove(*dir)
			if err != nil {
				return err
			}
			if len(ended) == 0 && errors.Is(none, cluster.ErrNone) {
				fmt.Fprintf(cmd.OutOrStdout(), "there is %v, so nothing was removed\n", none)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "ended %d processes; %s is gone\n", len(ended), *dir)
			return nil
		},
	}
}

// nodesCommand is a shard of a cluster that `up` started: some of its nodes, in one process.
func nodesCommand(dir *string) *cobra.Command {
	var profile, mode string
	var nodes int
	options := cluster.FleetOptions{}
	cmd := &cobra.Command{
		Use:    "nodes",
		Short:  "Simulate some of a cluster's nodes (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			access, err := controlplane.OpenAccess(*dir)
			if err != nil {
				return err
			}
			setup, err := fabric.New(fabric.Mode(mode), profile, nodes)
			if err != nil {
				return err
			}
			options.Dir, options.Access, options.Runtime, options.Hardware = *dir, access, setup.Runtime, setup.Hardware
			fleet, err := cluster.NewFleet(cmd.Context(), options)
			if err != nil {
				return err
			}
			return fleet.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "", "as in up")
	cmd.Flags().StringVar(&mode, "containers", "", "as in up")
	cmd.Flags().IntVar(&nodes, "nodes", 0, "how many the whole cluster has")
	cmd.Flags().IntVar(&options.First, "first", 0, "number of the first")
	cmd.Flags().IntVar(&options.Count, "count", 0, "how many")
	cmd.Flags().IntVar(&options.Block, "block", 0, "the cluster's block of addresses")
	return cmd
}
