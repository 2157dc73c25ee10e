package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/node/host"
)

// bundleCommand is `gpufabric doctor bundle`.
func (o *options) bundleCommand(h host.Host) *cobra.Command {
	var file string
	var logs bool
	command := &cobra.Command{
		Use:   "bundle",
		Short: "Write one archive for a support case: objects, Events, versions and gpufabric's own logs",
		Long: "Write one archive for a support case, which gpufabric doctor --from reads without a cluster. In it are the objects that the\n" +
			"doctor reads, and the last lines of gpufabric's own pods. Not in it: Secrets, ConfigMaps, environment variables, arguments and\n" +
			"annotations of your pods, what containers wrote, the configuration of others' drivers, and the API server's address.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), o.total)
			defer cancel()
			config, _, err := o.reach(h)
			if err != nil {
				return err
			}
			scope := snapshot.Scope{Namespace: o.namespace, System: o.system, Timeout: o.timeout}
			reader, err := snapshot.NewReader(config, scope)
			if err != nil {
				return err
			}
			taken, err := reader.Read(ctx, scope)
			if err != nil {
				return err
			}
			var files []snapshot.File
			if logs {
				if files, err = reader.Logs(ctx, taken); err != nil {
					return err
				}
			}
			if file == "" {
				file = "gpufabric-" + taken.Server.Taken.UTC().Format(time.RFC3339)[:10] + ".tar.gz"
			}
			return write(file, taken, files, h)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "archive to write, which must not be there; empty: gpufabric-DATE.tar.gz")
	command.Flags().BoolVar(&logs, "logs", true, "with the last lines of gpufabric's own pods")
	return command
}

// write writes the archive. It leaves an existing file alone, and never leaves part of an archive behind.
func write(name string, taken *snapshot.Snapshot, files []snapshot.File, h host.Host) error {
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the archive: %w; choose another file with --file", err)
	}
	if err := errors.Join(taken.Save(out, files), out.Close()); err != nil {
		return fmt.Errorf("write the archive %s: %w", name, errors.Join(err, os.Remove(name)))
	}
	_, err = fmt.Fprintf(host.Visible(h.Out()), "%s: %d nodes, %d pods, %d Events, %d logs. Read it with gpufabric doctor --from=%s\n", name,
		len(taken.Nodes), len(taken.Pods), len(taken.Events), len(files), name)
	return err
}

// load reads an archive, whose author may be a stranger.
func (o *options) load(name string) (*snapshot.Snapshot, error) {
	most, err := resource.ParseQuantity(o.fromMemory)
	if err != nil || most.Sign() <= 0 {
		return nil, fmt.Errorf("--from-memory %q: want a quantity above 0, such as 64Mi", o.fromMemory)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	taken, err := snapshot.Load(file, most.Value())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return taken, nil
}
