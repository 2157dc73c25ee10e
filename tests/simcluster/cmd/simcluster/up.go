package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/simnode"
)

// longestDir leaves room for "/n1007/k/plugins_registry/compute-domain.nvidia.com-<36 bytes>-reg.sock".
const longestDir = 25

type upFlags struct {
	nodes    int
	machines cluster.Machines
	port     int
	audit    []string

	kubernetes string
}

func (f *upFlags) bind(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.nodes, "nodes", 18, "how many nodes")
	cmd.Flags().StringVar(&f.machines.Profile, "profile", "gb200-nvl72", "what each node is: a profile's name or file")
	cmd.Flags().BoolVar(&f.machines.Features, "features", true,
		"give the nodes the labels of GPU feature discovery and node feature discovery, and the profile's capacity")
	cmd.Flags().BoolVar(&f.machines.Extended, "extended", false,
		"put nvidia.com/gpu into the nodes' allocatable, without a device plugin")
	cmd.Flags().BoolVar(&f.machines.NVIDIAPlugins, "nvidia-plugins", false,
		"put device nodes into the driver roots, where NVIDIA's DRA driver looks for them")
	cmd.Flags().StringVar(&f.machines.Slices, "slices", "", "publish ResourceSlices without a driver: gpufabric, or nvidia (whole GPUs as "+
		"NVIDIA's DRA driver 0.5 shapes them). No DRA driver can register then, and pods with claims start without devices")
	f.bindMode(cmd, fabric.AsGoroutines)
	cmd.Flags().StringVar(&f.kubernetes, "kubernetes", "", "the earlier minor version that the control plane emulates, such as 1.35")
	cmd.Flags().IntVar(&f.port, "port", 0, "the API server's port; 0: any that is free")
	cmd.Flags().StringSliceVar(&f.audit, "audit", nil, "namespaces whose service accounts' requests are written to DIR/audit.log")
}

func (f *upFlags) bindMode(cmd *cobra.Command, mode fabric.Mode) {
	cmd.Flags().StringVar(&f.machines.Mode, "containers", string(mode),
		fmt.Sprintf("how containers of gpufabric run: one of %v", fabric.Modes()))
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
	// Before anything is started.
	machines := flags.machines
	if !machines.Features && (machines.Extended || machines.Slices != "") {
		return errors.New("--extended and --slices need --features")
	}
	if _, err := fabric.New(fabric.Mode(machines.Mode), machines.Profile, flags.nodes); err != nil {
		return err
	}
	if _, err := fabric.Describe(machines.Profile, machines.Slices, machines.Extended); err != nil {
		return err
	}
	racks, err := fabric.Racks(machines.Profile, flags.nodes)
	if err != nil {
		return err
	}
	progress("%s", racks)
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		return err
	}
	if err := cluster.UpDetached(ctx, cluster.DetachedOptions{
		Dir: dir, Nodes: flags.nodes, Machines: machines, Binaries: binaries, Port: flags.port, Audit: flags.audit,
		Kubernetes: flags.kubernetes,
		Progress:   progress,
	}); err != nil || machines.Slices == "" {
		return err
	}
	return makeClass(ctx, dir)
}

// makeClass makes the DeviceClass that charts of GPU drivers bring, for slices that no driver publishes.
func makeClass(ctx context.Context, dir string) error {
	client, _, err := clients(dir)
	if err != nil {
		return err
	}
	ofDriver := &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", devices.Driver)}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: devices.Driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: ofDriver}}}}
	if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make DeviceClass %s: %w", class.Name, err)
	}
	return nil
}

// addCommand is up's for a cluster that runs.
func addCommand(dir *string) *cobra.Command {
	var count int
	var profile string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add nodes to a cluster that is up; `kubectl delete node` removes one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if count < 1 {
				return fmt.Errorf("--nodes %d: 1 or more can be added", count)
			}
			if _, err := cluster.ReadRecord(*dir); err != nil {
				return fmt.Errorf("%w; bring one up with `simcluster up`", err)
			}
			if profile != "" {
				if _, err := fabric.Racks(profile, count); err != nil { // before numbers are taken
					return err
				}
			}
			names, err := cluster.Add(cmd.Context(), *dir, profile, count)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d nodes more are Ready: %s to %s\n", count, names[0], names[len(names)-1])
			return nil
		},
	}
	cmd.Flags().IntVar(&count, "nodes", 1, "how many nodes more")
	cmd.Flags().StringVar(&profile, "profile", "", "what they are: a profile's name or file; empty: as those of up")
	return cmd
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
	var machines cluster.Machines
	var nodes int
	options := cluster.FleetOptions{Leaves: true}
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
			setup, err := fabric.New(fabric.Mode(machines.Mode), machines.Profile, nodes)
			if err != nil {
				return err
			}
			if machines.NVIDIAPlugins {
				setup = setup.WithDriverDevices()
			}
			if machines.Features {
				if options.Describe, err = fabric.Describe(machines.Profile, machines.Slices, machines.Extended); err != nil {
					return err
				}
			}
			options.Dir, options.Access, options.Runtime, options.Hardware = *dir, access, setup.Runtime, setup.Hardware
			fleet, err := cluster.NewFleet(cmd.Context(), options)
			if err != nil {
				return err
			}
			return fleet.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&machines.Profile, "profile", "", "as in up")
	cmd.Flags().StringVar(&machines.Mode, "containers", "", "as in up")
	cmd.Flags().BoolVar(&machines.Features, "features", false, "as in up")
	cmd.Flags().StringVar(&machines.Slices, "slices", "", "as in up")
	cmd.Flags().BoolVar(&machines.Extended, "extended", false, "as in up")
	cmd.Flags().BoolVar(&machines.NVIDIAPlugins, "nvidia-plugins", false, "as in up")
	cmd.Flags().IntVar(&nodes, "nodes", 0, "how many the whole cluster has")
	cmd.Flags().IntVar(&options.First, "first", 0, "number of the first")
	cmd.Flags().IntVar(&options.Count, "count", 0, "how many")
	cmd.Flags().IntVar(&options.Block, "block", 0, "the cluster's block of addresses")
	return cmd
}
