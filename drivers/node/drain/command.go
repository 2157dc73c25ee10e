package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/orders"
)

// Command is the subcommand drain.
func Command(h host.Host) *cobra.Command {
	var at place
	var procRoot string
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Make this node's plugins release its GPUs, so that they can be reset or their driver unloaded",
		Long: `Run it where the node's gpu-plugin runs: on the node, or with kubectl exec in the plugin's pod. New claims get no GPU of the node
(taint ` + Taint + `), and vgpu-plugin and compute-domain-plugin give nothing new either. What stands is waited for and named; then
every role of the node closes NVML and leaves it closed until gpufabric undrain, over restarts and reboots too. What else has the GPUs open
is named as far as it can be seen from here. Interrupted while it waits, it leaves everything as it was.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), patience)
			defer cancel()
			if err := at.order(ctx, orderDrain, h.Out()); err != nil {
				return err
			}
			for _, line := range openedBy(procRoot, os.Getpid()) {
				if _, err := fmt.Fprintln(h.Out(), line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	at.bind(cmd)
	cmd.Flags().StringVar(&procRoot, "proc-root", "/proc",
		"directory that stands for /proc, where to look for programs that have a GPU open")
	cmd.Flags().DurationVar(&patience, "timeout", 10*time.Minute, "how long to wait for present claims")
	return cmd
}

// UndrainCommand is the subcommand undrain.
func UndrainCommand(h host.Host) *cobra.Command {
	var at place
	cmd := &cobra.Command{
		Use:   "undrain",
		Short: "Make this node's plugins offer its GPUs again after gpufabric drain",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return at.order(cmd.Context(), orderUndrain, h.Out()) },
	}
	at.bind(cmd)
	return cmd
}

// place is where the roles of a node take commands.
type place struct {
	stateDir, drainDir string
	// alone: no gpu-plugin is installed on the node.
	alone bool
}

func (at *place) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&at.stateDir, "state-dir", "/var/lib/gpufabric/gpu-plugin", "the plugin's --state-dir on this node")
	cmd.Flags().StringVar(&at.drainDir, "drain-dir", "", "the --drain-dir of the node's plugins; empty: drain, beside --state-dir")
	cmd.Flags().BoolVar(&at.alone, "without-gpu-plugin", false, "the node has no gpu-plugin: order the other roles alone")
}

// order sends an order to the node's roles, and prints its steps.
func (at *place) order(ctx context.Context, order string, out io.Writer) error {
	report := func(step string) { _, _ = fmt.Fprintln(out, step) }
	if at.alone {
		return at.executeAlone(ctx, order, report)
	}
	path := filepath.Join(at.stateDir, controlSocket)
	err := orders.Send(ctx, path, order, nil, report)
	switch {
	case errors.Is(err, orders.ErrUnreachable):
		return fmt.Errorf("%s: no gpu-plugin answers at %s: %w (does it run on this node, with this --state-dir? "+
			"Where none is installed: --without-gpu-plugin)", order, path, err)
	case err != nil:
		return fmt.Errorf("%s: %w", order, err)
	}
	return nil
}

// executeAlone executes an order on a node without gpu-plugin.
func (at *place) executeAlone(ctx context.Context, order string, report func(step string)) error {
	d := Directory{Path: cmp.Or(at.drainDir, SharedDirectory(at.stateDir)), Files: &filewatch.Watcher{}}
	if order == orderUndrain {
		return errors.Join(d.Set(None), d.Disown(ctx))
	}
	if err := d.TakeOver(ctx); err != nil {
		return err
	}
	none := func(context.Context, orders.Report) (func(), error) { return func() {}, nil }
	if err := d.empty(ctx, none, func(format string, arguments ...any) { report(fmt.Sprintf(format, arguments...)) }); err != nil {
		return err
	}
	return d.Set(Drained)
}

// openedBy lists in sentences the programs that have a device node of the driver open, except one.
func openedBy(procRoot string, self int) []string {
	entries, err := os.ReadDir(procRoot)
	if err != nil {
		return []string{fmt.Sprintf("what else has the GPUs open is not known: %v", err)}
	}
	var out []string
	hidden := 0
	for _, e := range entries {
		if e.Name() == fmt.Sprint(self) || strings.Trim(e.Name(), "0123456789") != "" {
			continue
		}
		nodes, err := nodesOf(filepath.Join(procRoot, e.Name(), "fd"))
		if err != nil {
			hidden++
			continue
		}
		if len(nodes) > 0 {
			name, _ := os.ReadFile(filepath.Join(procRoot, e.Name(), "comm")) // without a name the number must do
			out = append(out, fmt.Sprintf("process %s (%s) still has %s open", e.Name(), strings.TrimSpace(string(name)), strings.Join(nodes, ", ")))
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		out = append(out, "no program that can be seen from here has a GPU open; in a pod those of other pods and of the node cannot be seen: "+
			"run fuser -v /dev/nvidia* on the node")
	}
	if hidden > 0 {
		out = append(out, fmt.Sprintf("%d processes could not be looked at: run it as root", hidden))
	}
	return out
}

// nodesOf are the driver's device nodes among a process's open files.
func nodesOf(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if os.IsNotExist(err) {
		return nil, nil // it has ended
	}
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(directory, e.Name()))
		if err == nil && strings.HasPrefix(target, "/dev/nvidia") && !slices.Contains(nodes, target) {
			nodes = append(nodes, target)
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}
