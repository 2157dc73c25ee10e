package draplugin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/orders"
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
			sockets, err := filepath.Glob(filepath.Join(root, "*", releaseSocket))
			if err != nil {
				return fmt.Errorf("release: look for plugins below %s: %w", root, err)
			}
			if len(sockets) == 0 {
				return fmt.Errorf("release: a plugin does not answer below %s (no %s): does one run on this node, with this --state-root?",
					root, releaseSocket)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), releaseTimeout)
			defer cancel()
			arguments := url.Values{argumentClaim: {args[0]}}
			if force {
				arguments.Set(argumentForce, "")
			}
			var errs []error
			for _, socket := range sockets {
				err := orders.Send(ctx, socket, orderRelease, arguments, func(step string) { _, _ = fmt.Fprintln(h.Out(), step) })
				if err == nil {
					return nil
				}
				errs = append(errs, fmt.Errorf("plugin at %s: %w", socket, err))
			}
			return fmt.Errorf("release %s: %w", args[0], errors.Join(errs...))
		},
	}
	cmd.Flags().StringVar(&root, "state-root", "/var/lib/gpufabric", "directory with the state directories of this node's plugins")
	cmd.Flags().BoolVar(&force, "force", false, "free the devices in spite of containers that still use them")
	return cmd
}
