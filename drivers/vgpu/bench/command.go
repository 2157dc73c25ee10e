package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/options"
)

// mostSeconds limits --seconds, so that a whole run takes less than an hour.
const mostSeconds = 300

// worker is the name of the subcommand that runs one process of the benchmark.
const worker = "bench-worker"

// Command is `gpufabric vgpu`, with subcommands for shares of GPUs on this node.
func Command(h host.Host) *cobra.Command {
	command := &cobra.Command{
		Use:   "vgpu",
		Short: "Measure what limits of shared GPUs cost on this node, and how exact they are",
		Args: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("%q is not a subcommand: only gpufabric vgpu bench is", args)
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // Args refuses a call without a subcommand.
	}
	command.AddCommand(benchCommand(h), &cobra.Command{
		Use: worker, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return work(cmd.InOrStdin(), cmd.OutOrStdout()) },
	})
	return command
}

func benchCommand(h host.Host) *cobra.Command {
	var node options.Node
	var o Options
	var limit uint64
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what limits of a GPU's memory and cores cost, and how exact they are, and print tables",
		Long: "Runs the same work without a limit, under this project's library, and under NVIDIA's own driver where that limits memory, and\n" +
			"prints a table. Then it keeps the GPU busy with processes that have percentages of its cores, alone and two at a time, and prints\n" +
			"what each had: some ten times --seconds. Run it where vgpu-plugin runs (kubectl exec in its pod), with the same --driver-root. It\n" +
			"allocates --memory of one GPU for some seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.Bytes = limit << 20
			o.Cgroups.Self = filepath.Join(node.ProcRoot(), "self/cgroup")
			o.LoadAverage = filepath.Join(node.ProcRoot(), "loadavg")
			o.CUDA = filepath.Join(filepath.Dir(node.Driver().Locate().Library), "libcuda.so.1")
			if o.Program, err = os.Executable(); err != nil {
				return err
			}
			o.Arguments = []string{"vgpu", worker}
			o.Together, o.Progress = everything(), cmd.ErrOrStderr()
			o.NVML = h.Library(node.Driver())
			if ret := o.NVML.Init(); ret != nvml.SUCCESS {
				return fmt.Errorf("find the GPUs of this node by NVIDIA's driver in %s: %w: run it on a node with a GPU and its driver, and give "+
					"--driver-root as vgpu-plugin has it", node.DriverRoot, ret)
			}
			defer func() { _ = o.NVML.Shutdown() }() // the process ends
			result, err := Run(cmd.Context(), o)
			if result != nil {
				err = errors.Join(err, result.Write(cmd.OutOrStdout()))
			}
			return err
		},
		PreRunE: func(*cobra.Command, []string) error {
			if o.Rounds == 0 || o.Repeats == 0 {
				return errors.New("--rounds and --repeats: must be 1 or more")
			}
			if o.Seconds == 1 || o.Seconds > mostSeconds {
				return fmt.Errorf("--seconds=%d: 2 to %d are allowed, and 0 for no measurement of cores", o.Seconds, mostSeconds)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	text := func(target *string, flag, fallback, usage string) {
		options.Text(flags, h.Env, target, flag, fallback, usage)
	}
	text(&node.DriverRoot, "driver-root", "/", "directories that may hold the NVIDIA driver's usr/lib64, comma-separated; PATH=HOST as for "+
		"vgpu-plugin")
	text(&node.DevRoot, "dev-root", "/dev", "directory that stands for /dev")
	text(&node.ProcDevices, "proc-devices", "/proc/devices", "file that stands for /proc/devices; the rest of /proc is read beside it")
	text(&o.Library, "limiter-library", limiter.Program, "libvgpu.so of this project; empty: it is not measured")
	text(&o.Cgroups.Root, "cgroup-root", memorylimits.DefaultCgroups, "where cgroup v2 is mounted; the driver's limit is measured in a "+
		"cgroup below this process's own")
	flags.StringVar(&o.GPU, "gpu", "", "UUID of the GPU to measure; empty: the first")
	flags.Uint64Var(&limit, "memory", 1024, "the limit, in MiB")
	flags.UintVar(&o.Seconds, "seconds", 30, fmt.Sprintf("how long each percentage of the cores is measured: 2 to %d; 0: none is",
		mostSeconds))
	flags.BoolVar(&o.InUse, "in-use", false, "measure cores although other processes use the GPU: they are slowed down, and their work is in "+
		"the figures")
	flags.UintVar(&o.Repeats, "repeats", 200, "how often each thing is done in a batch; the median of 15 batches counts")
	flags.UintVar(&o.Rounds, "rounds", 5, "how often each process is run; the table has their median")
	return cmd
}
