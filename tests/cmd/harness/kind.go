package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpufabric.io/build/steps"
	"gpufabric.io/tests/kindcluster"
	"gpufabric.io/tests/kindcluster/nodeimage"
)

func kindCommand() *cobra.Command {
	command := &cobra.Command{Use: "kind", Short: "Bring the cluster up or down, equip its nodes, write its logs to files"}
	name := command.PersistentFlags().String("name", kindcluster.DefaultName, "the cluster's name")
	command.AddCommand(kindUp(name), kindDown(name), kindLogs(name), kindImages(name), kindImage(), kindHardware(name))
	return command
}

func kindUp(name *string) *cobra.Command {
	options := kindcluster.Options{}
	command := &cobra.Command{
		Use:   "up",
		Short: "Bring the cluster up, or say that it is up; prints where its kubeconfig is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.Name, options.Printer = *name, steps.NewPrinter(os.Stderr)
			cluster, err := kindcluster.Up(cmd.Context(), options)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "cluster %s: bring-up took %.0f s; export KUBECONFIG=%s\n", cluster.Name, cluster.Took.Seconds(),
				cluster.Kubeconfig)
			fmt.Println(cluster.Kubeconfig)
			return nil
		},
	}
	command.Flags().IntVar(&options.Workers, "workers", 2, "nodes beside the control plane")
	return command
}

func kindDown(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and its registry",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return kindcluster.Down(cmd.Context(), *name) },
	}
}

func kindLogs(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "logs",
		Short: "Write the logs of all nodes and pods to files; prints the directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := kindcluster.Find(*name)
			if err != nil {
				return err
			}
			dir, err := cluster.ExportLogs(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
}

func kindImages(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "images [NAME...]",
		Short: "Push the project's images (all, or those named) into the cluster's registry, with stand-ins for what cannot be pulled",
		RunE: func(cmd *cobra.Command, names []string) error {
			cluster, err := kindcluster.Find(*name)
			if err != nil {
				return err
			}
			return cluster.Serve(cmd.Context(), steps.NewPrinter(os.Stderr), names...)
		},
	}
}

func kindImage() *cobra.Command {
	return &cobra.Command{
		Use:   "image",
		Short: "Have the image that nodes run from ready, pulled or made (up to 15 min the first time); prints its name",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			image, err := nodeimage.Ensure(cmd.Context(), steps.NewPrinter(os.Stderr))
			if err != nil {
				return err
			}
			fmt.Println(image.Name)
			return nil
		},
	}
}

func kindHardware(name *string) *cobra.Command {
	var profile string
	command := &cobra.Command{
		Use:   "hardware",
		Short: "Give the workers the fake hardware of a profile (images must have been pushed)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := kindcluster.Find(*name)
			if err != nil {
				return err
			}
			return cluster.Equip(cmd.Context(), steps.NewPrinter(os.Stderr), profile)
		},
	}
	command.Flags().StringVar(&profile, "profile", "gb200-nvl72", "as `fakefabric profiles` names it")
	return command
}
