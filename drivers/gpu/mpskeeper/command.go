// Package mpskeeper is the role mps-keeper: the parent of a node's MPS control daemons, which therefore outlive gpu-plugin.
//
// # What a pod of this role needs
//
// One pod on every node with gpu-plugin, as root and privileged: the device cgroup lets no other container open GPUs, and each
// daemon has its own root and PID namespace. No hostPID: a control daemon only needs the PIDs of its servers, which are its
// children. No service account token: the role uses the API server only where metrics need authentication. updateStrategy:
// OnDelete, since its daemons, and the work of their clients, end with it.
//
// Volumes: the driver's places and --dev-root as gpu-plugin has them, read-only; --mps-dir at the same path inside as outside.
package mpskeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

// Role is the subcommand's name.
const Role = "mps-keeper"

// driverProgram is the subcommand with which the role starts itself to run a program of the driver.
const driverProgram = "driver-program"

// Command is the subcommand mps-keeper.
func Command(h host.Host) *cobra.Command {
	var driverRoot, devRoot, procDevices, dir, size, metricsAddress string
	var metricsAuthentication bool
	cmd := &cobra.Command{
		Use:   Role,
		Short: "Keep a node's MPS control daemons running while gpu-plugin restarts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node := options.Node{DriverRoot: driverRoot, DevRoot: devRoot, ProcDevices: procDevices}
			_, rootErr := driver.ParsePlaces(driverRoot)
			_, devErr := driver.ParsePlace(devRoot)
			if err := errors.Join(rootErr, devErr); err != nil {
				return fmt.Errorf("--driver-root, --dev-root: %w", err)
			}
			bounds, err := sharing.ParseBounds(size)
			if err != nil {
				return err
			}
			runner := programs.Runner{Driver: node.Driver().Locate, Enter: programs.Reexec(Role, driverProgram)}
			access, err := h.MetricsAccess(metricsAuthentication, Role)
			if err != nil {
				return err
			}
			return run(cmd.Context(), &sharing.MPS{Dir: dir, Programs: runner, Bounds: bounds}, metricsAddress, access)
		},
	}
	flags := cmd.Flags()
	text := func(target *string, flag, fallback, usage string) {
		options.Text(flags, h.Env, target, flag, fallback, usage)
	}
	text(&driverRoot, "driver-root", "/", "directories that may hold the NVIDIA driver's usr/lib64 and usr/bin, comma-separated; PATH=HOST "+
		"where the node has one at another path")
	text(&devRoot, "dev-root", "/dev", "directory that stands for /dev; PATH=HOST where the node has it at another path")
	text(&procDevices, "proc-devices", "/proc/devices", "file that stands for /proc/devices; the rest of /proc is read beside it")
	text(&dir, "mps-dir", "/run/gpufabric/mps", "directory, at the same path on the host, where MPS control daemons and their clients meet")
	text(&size, "mps-size", "", "how much the containers of a claim with MPS may put into their /dev/shm, which they share with its "+
		"daemon, such as 1Gi: each is a tmpfs of its own, which takes CAP_SYS_ADMIN and a volume that propagates mounts; 0: no bound")
	text(&metricsAddress, "metrics-address", "", "address of /metrics and /healthz, such as :8080; empty: none")
	flags.BoolVar(&metricsAuthentication, "metrics-authentication", false, "serve /metrics by TLS, and only to those whose token may get "+
		"that path, of which the API server is asked")
	flags.IntP("v", "v", 0, "log level: 0 for operators, up to 4 for developers")
	cmd.AddCommand(&cobra.Command{
		Use: driverProgram + " ENCLOSURE PROGRAM [ARG]...", Short: "Run a program of the driver in a root directory of its own", Hidden: true,
		Args: cobra.MinimumNArgs(2), DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return programs.Enter(args[0], args[1], args[2:]...) },
	})
	return cmd
}

// alivePatience is how long the keeper may take to answer before it counts as dead.
const alivePatience = 5 * time.Second

// run keeps daemons running, and reports their states, until ctx ends.
func run(ctx context.Context, mps *sharing.MPS, metricsAddress string, access *metrics.Access) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(mps, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	group, ctx := errgroup.WithContext(ctx)
	// Over the socket, as the node plugin does.
	alive := func() error {
		soon, done := context.WithTimeout(ctx, alivePatience)
		defer done()
		return sharing.Kept{Dir: mps.Dir}.Alive(soon)
	}
	group.Go(func() error { return access.Serve(ctx, metricsAddress, registry, alive) })
	group.Go(func() error { return sharing.Keeper{MPS: mps, Metrics: registry}.Run(ctx) })
	return group.Wait()
}
