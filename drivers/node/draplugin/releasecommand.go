package draplugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/node/host"
)

// ReleaseCommand is the subcommand release.
func ReleaseCommand(h host.Host) *cobra.Command {
	var root string
	var force bool
	cmd := &cobra.Command{
		Use:   "release CLAIM",
		Short: "Free the devices of a claim that is gone, on this node",
		Long: `Run it where the node's plugins run: on the node, or with kubectl exec in the pod of the plugin. CLAIM is NAMESPACE/NAME or a UID.
Devices of a claim that was deleted are free when no container on the node can use them any more. This command looks once more, and names
the containers. With --force it frees the devices in spite of them: a process that still runs then shares them with the next claim. Try
crictl rm --force, or a reboot of the node, first.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			order := orderRelease
			if force {
				order = orderForce
			}
			sockets, err := filepath.Glob(filepath.Join(root, "*", ReleaseSocket))
			if err != nil {
				return fmt.Errorf("release: look for plugins below %s: %w", root, err)
			}
			if len(sockets) == 0 {
				return fmt.Errorf("release: no plugin answers below %s (no %s): does one run on this node, with this --state-root?",
					root, ReleaseSocket)
			}
			var errs []error
			for _, socket := range sockets {
				answer, err := send(cmd.Context(), socket, order+" "+args[0])
				done, isDone := strings.CutPrefix(answer, "released: ")
				switch {
				case err != nil:
					errs = append(errs, err)
				case isDone:
					_, err := fmt.Fprintln(h.Out(), "released: "+done)
					return err
				default:
					errs = append(errs, errors.New(answer))
				}
			}
			return fmt.Errorf("release %s: %w", args[0], errors.Join(errs...))
		},
	}
	cmd.Flags().StringVar(&root, "state-root", "/var/lib/gpufabric", "directory with the state directories of this node's plugins")
	cmd.Flags().BoolVar(&force, "force", false, "free the devices in spite of containers that still use them")
	return cmd
}

// send sends one order to a plugin, and returns its answer.
func send(ctx context.Context, socket, order string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("plugin at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintln(conn, order); err != nil {
		return "", fmt.Errorf("plugin at %s: %w", socket, err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("plugin at %s: %w", socket, err)
	}
	return strings.TrimSpace(answer), nil
}
