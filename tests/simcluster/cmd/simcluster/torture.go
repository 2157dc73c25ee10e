package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
	"gpufabric.io/tests/simcluster/torture"
)

func tortureCommand() *cobra.Command {
	var drivers []string
	var profileName string
	options := torture.Options{}
	cmd := &cobra.Command{
		Use:   "torture",
		Short: "Do to kubelet plugins of DRA drivers what clusters do to them, and print a table",
		Long: "Start the kubelet plugin of each driver on a fake node of a real API server, call it as the kubelet does, and disturb it. The " +
			"table has a row for each case: held, fell or not applicable, and what the driver did.\n\nCases:\n  " +
			strings.Join(torture.Names(), "\n  "),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := repository.Root()
			if err != nil {
				return err
			}
			for _, name := range drivers {
				driver, err := describedDriver(cmd.Context(), root, name)
				if err != nil {
					return err
				}
				options.Drivers = append(options.Drivers, driver)
			}
			if options.Render, err = rendering(root, profileName); err != nil {
				return err
			}
			if options.Dir, err = os.MkdirTemp("/tmp", "tor"); err != nil { // short, because of the unix sockets below it
				return fmt.Errorf("make a directory for the nodes: %w", err)
			}
			options.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			results, err := torture.Run(cmd.Context(), options)
			if err != nil {
				_ = os.Remove(options.Dir) // it has logs where anything was started, and stays then
				return err
			}
			if err := torture.WriteTable(cmd.OutOrStdout(), results); err != nil {
				return fmt.Errorf("write the table: %w", err)
			}
			for _, r := range results {
				if r.Outcome == torture.Fell {
					return fmt.Errorf("a driver fell; logs are in %s/*/log", options.Dir)
				}
			}
			return os.RemoveAll(options.Dir)
		},
	}
	cmd.Flags().StringArrayVar(&drivers, "driver", []string{"gpufabric"},
		"gpufabric, nvidia (release 0.5, which the toolchain builds), or a YAML file that describes another driver; may be repeated")
	cmd.Flags().StringVar(&profileName, "profile", "h100-hgx", "the machine: a profile's name or file")
	cmd.Flags().StringArrayVar(&options.Cases, "case", nil, "a case to run; may be repeated; none: all")
	cmd.Flags().DurationVar(&options.Patience, "patience", torture.DefaultPatience, "how long a plugin may take for one step")
	return cmd
}

// describedDriver is a driver that the kit knows, or one of a file.
func describedDriver(ctx context.Context, root, name string) (torture.Driver, error) {
	switch name {
	case "gpufabric":
		program := filepath.Join(root, "bin/gpufabric-node")
		if _, err := os.Stat(program); err != nil {
			return torture.Driver{}, errors.Join(errors.New("`make build` builds gpufabric"), err)
		}
		return torture.Gpufabric(program), nil
	case "nvidia":
		paths, err := toolchain.Ensure(ctx, "gpu-kubelet-plugin")
		if err != nil {
			return torture.Driver{}, err
		}
		return torture.NVIDIA(paths["gpu-kubelet-plugin"]), nil
	}
	return torture.Read(name)
}

// rendering renders nodes of a profile, with the C libraries.
func rendering(root, name string) (func(context.Context, string) error, error) {
	p, err := profile.Load(name)
	if err != nil {
		return nil, err
	}
	build := filepath.Join(root, "fakes/build")
	return func(ctx context.Context, dir string) error {
		if err := tree.Render(ctx, tree.Options{Profile: p, Nodes: 1, Root: dir, LibraryDir: filepath.Join(build, "lib"),
			Tools: filepath.Join(build, "fakefabric")}); err != nil {
			return fmt.Errorf("%w (`make fakes` builds the libraries)", err)
		}
		// NVIDIA's driver looks for device nodes below the driver root.
		return os.Symlink("../dev", filepath.Join(dir, "driver/dev"))
	}, nil
}
