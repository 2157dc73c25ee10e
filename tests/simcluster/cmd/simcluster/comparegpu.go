package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/gpucompare"
)

func compareGPUCommand() *cobra.Command {
	var peer string
	cmd := &cobra.Command{
		Use:   "compare-gpu",
		Short: "Measure our GPU plugin beside another gpu.nvidia.com driver's (see drivers/gpu/bench/compare.sh)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := repository.Root()
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("/tmp", "gpu") // short, because of the unix sockets below it
			if err != nil {
				return fmt.Errorf("make a directory for the comparison: %w", err)
			}
			results, err := gpucompare.Run(cmd.Context(), gpucompare.Options{
				Dir: dir, Ours: filepath.Join(root, "bin/gpufabric-node"), Theirs: peer,
				FakeFabric: filepath.Join(root, "fakes/build/fakefabric"), Libraries: filepath.Join(root, "fakes/build/lib"),
				Progress: func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) },
			})
			if err != nil {
				return fmt.Errorf("%w (logs are in %s)", err, dir)
			}
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove the comparison's directory: %w", err)
			}
			return gpucompare.Report(cmd.OutOrStdout(), results)
		},
	}
	cmd.Flags().StringVar(&peer, "peer", "", "the other driver's gpu-kubelet-plugin")
	_ = cmd.MarkFlagRequired("peer") // there is such a flag
	return cmd
}
