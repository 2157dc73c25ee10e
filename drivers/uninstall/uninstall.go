// Package uninstall is the role that runs once, after the drivers were uninstalled: it takes off the cluster's nodes what the node plugins
// wrote on them. A plugin that ends cannot do so itself, since it cannot tell an uninstall from a restart or an upgrade, and an uninstall
// takes its rights away before it is told to end.
//
// RBAC: core nodes: list, patch.
package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/host"
)

const role = "uninstall"

// page is how many nodes one request asks for: a Node's metadata is a few kilobytes.
const page = 500

// Keys are what is taken off nodes.
type Keys struct {
	Labels, Annotations []string
}

// Command is `gpufabric uninstall`.
func Command(h host.Host) *cobra.Command {
	var keys Keys
	command := &cobra.Command{
		Use:   role,
		Short: "Take off all nodes what the node plugins wrote on them (the chart runs it when it is uninstalled)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(keys.Labels)+len(keys.Annotations) == 0 {
				return errors.New("nothing to take off: name it by --node-label and --node-annotation")
			}
			config, err := h.Kubernetes()
			if err != nil {
				return err
			}
			client, err := metadata.NewForConfig(host.Tune(config, role))
			if err != nil {
				return fmt.Errorf("make a client for nodes: %w", err)
			}
			return Run(cmd.Context(), client, keys)
		},
	}
	command.Flags().StringSliceVar(&keys.Labels, "node-label", nil,
		"key of a label that is taken off every node, or the beginning of keys that ends in a slash; may be given several times")
	command.Flags().StringSliceVar(&keys.Annotations, "node-annotation", nil,
		"key of an annotation that is taken off every node; may be given several times")
	return command
}

// Run takes the keys off every node. Where one cannot be changed the others are all the same; the error names it.
func Run(ctx context.Context, client metadata.Interface, keys Keys) error {
	nodes := client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	var errs []error
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := nodes.List(ctx, options)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list nodes: %w", err))...)
		}
		for i := range list.Items {
			node := &list.Items[i]
			patch := keys.off(node)
			if patch == nil {
				continue
			}
			if _, err := nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("take labels and annotations off node %s: %w", node.Name, err))
				continue
			}
			klog.FromContext(ctx).Info("Took off a node what the drivers wrote on it", "node", node.Name, "patch", string(patch))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return errors.Join(errs...)
		}
	}
}

// off is the merge patch that takes the keys off a node, nil where it has none of them.
func (k Keys) off(node *metav1.PartialObjectMetadata) []byte {
	fields := map[string]map[string]any{}
	collect := func(kind string, have map[string]string, keys []string) {
		for key := range have {
			if !slices.ContainsFunc(keys, func(k string) bool { return k == key || strings.HasSuffix(k, "/") && strings.HasPrefix(key, k) }) {
				continue
			}
			if fields[kind] == nil {
				fields[kind] = map[string]any{}
			}
			fields[kind][key] = nil
		}
	}
	collect("labels", node.Labels, k.Labels)
	collect("annotations", node.Annotations, k.Annotations)
	if len(fields) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		panic(err) // maps of strings and nulls
	}
	return patch
}
