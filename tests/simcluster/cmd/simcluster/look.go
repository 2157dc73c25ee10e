package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/process"
)

// clients opens the cluster in dir.
func clients(dir string) (kubernetes.Interface, dynamic.Interface, error) {
	if _, err := cluster.ReadRecord(dir); err != nil {
		return nil, nil, fmt.Errorf("%w; bring one up with `simcluster up`", err)
	}
	config, err := controlplane.LoadConfig(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	return client, objects, nil
}

func devicesCommand(dir *string) *cobra.Command {
	namespace := "default"
	cmd := &cobra.Command{
		Use:   "devices POD",
		Short: "Show what the containers of a pod received: devices, mounts and environment",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("devices takes the name of one pod, such as rack-0, not %d names", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := clients(*dir)
			if err != nil {
				return err
			}
			return showDevices(cmd.Context(), cmd.OutOrStdout(), *dir, client, namespace, args[0])
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "the pod's namespace")
	return cmd
}

func showDevices(ctx context.Context, out io.Writer, dir string, client kubernetes.Interface, namespace, pod string) error {
	containers, err := cluster.ReceivedBy(ctx, dir, client, namespace, pod)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CONTAINER\tKIND\tWHAT\tDETAIL")
	for _, container := range containers {
		for _, device := range container.Devices {
			mode := ""
			if device.FileMode != nil {
				mode = fmt.Sprintf(", mode %04o", device.FileMode.Perm())
			}
			fmt.Fprintf(table, "%s\tdevice\t%s\t%s %d:%d%s\n", container.Container, device.Path, device.Type, device.Major, device.Minor, mode)
		}
		for _, mount := range container.Mounts {
			fmt.Fprintf(table, "%s\tmount\t%s\t%s\n", container.Container, mount.Destination, strings.Join(mount.Options, ","))
		}
		slices.Sort(container.Env)
		for _, variable := range container.Env {
			name, value, _ := strings.Cut(variable, "=")
			fmt.Fprintf(table, "%s\tenv\t%s\t%s\n", container.Container, name, value)
		}
	}
	return table.Flush()
}

func statusCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the cluster's processes, nodes and compute domains",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			record, err := cluster.ReadRecord(*dir)
			if err != nil {
				return err
			}
			running, err := process.Find(*dir)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%s, made %s with nodes of %s\nprocesses: %s\n", *dir,
				record.Created.Format("2006-01-02 15:04:05 MST"), record.Profile, process.List(running))
			if len(running) == 0 {
				return fmt.Errorf("nothing of it runs any more; remove what is left with `simcluster down --dir %s`", *dir)
			}
			client, objects, err := clients(*dir)
			if err != nil {
				return err
			}
			return showDomains(cmd.Context(), out, client, objects)
		},
	}
}

// showDomains prints a table of nodes by clique and one of compute domains.
func showDomains(ctx context.Context, out io.Writer, client kubernetes.Interface, objects dynamic.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	published, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the ResourceSlices: %w", err)
	}
	devices := map[string]map[string]int{} // clique to driver to devices
	cliques := map[string]string{}
	count := map[string]int{}
	for _, node := range nodes.Items {
		clique := node.Labels["nvidia.com/gpu.clique"]
		cliques[node.Name] = clique
		count[clique]++
	}
	for _, slice := range published.Items {
		if slice.Spec.NodeName == nil {
			continue
		}
		clique := cliques[*slice.Spec.NodeName]
		if devices[clique] == nil {
			devices[clique] = map[string]int{}
		}
		devices[clique][slice.Spec.Driver] += len(slice.Spec.Devices)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CLIQUE\tNODES\tDEVICES")
	for clique, n := range count {
		var parts []string
		for driver, devices := range devices[clique] {
			parts = append(parts, fmt.Sprintf("%s: %d", driver, devices))
		}
		slices.Sort(parts)
		if clique == "" {
			clique = "(none)"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", clique, n, strings.Join(parts, ", "))
	}
	domains, err := domain.List(ctx, objects)
	if apierrors.IsNotFound(err) {
		return table.Flush() // the drivers are not installed
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(table, "\t\t\nDOMAIN\tREADY\tSTATUS")
	for _, d := range domains {
		fmt.Fprintf(table, "%s/%s\t%d/%d\t%s\n", d.Namespace, d.Name, d.Ready, d.Wanted, d.Status)
	}
	return table.Flush()
}
