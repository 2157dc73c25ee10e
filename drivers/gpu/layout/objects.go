package layout

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/selection"
)

// resource is MIGLayout's in the API.
func resource() schema.GroupVersionResource {
	return v1alpha1.SchemeGroupVersion().WithResource("miglayouts")
}

// Manager and a node's name form the owner of the node's entry in a MIGLayout's status.
const Manager = "gpu-plugin/"

// Watch calls changed with the MIGLayouts that select a node whenever they change, until ctx ends. Those that the controller makes for
// other nodes by demand are not sent to this one: a cluster has one for each node, and they change often.
func Watch(ctx context.Context, n selection.Node, changed func([]v1alpha1.MIGLayout)) error {
	var mu sync.Mutex
	parts := map[string][]v1alpha1.MIGLayout{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	both := []string{"!" + v1alpha1.MIGNodeLabel, v1alpha1.MIGNodeLabel + "=" + v1alpha1.MIGNodeValue(n.Name)}
	for _, labelled := range both {
		group.Go(func() error {
			return selection.WatchLabelled(ctx, n, resource(), labelled, func(l *v1alpha1.MIGLayout) *metav1.LabelSelector {
				return l.Spec.NodeSelector
			}, func(selected []v1alpha1.MIGLayout) {
				mu.Lock()
				defer mu.Unlock()
				if parts[labelled] = selected; len(parts) == len(both) {
					changed(joined(parts))
				}
			})
		})
	}
	return group.Wait()
}

// joined are the layouts of both watches, by name. A layout whose label is changed may be in both for a moment.
func joined(parts map[string][]v1alpha1.MIGLayout) []v1alpha1.MIGLayout {
	byName := map[string]v1alpha1.MIGLayout{}
	for _, part := range parts {
		for _, l := range part {
			if other, twice := byName[l.Name]; !twice || other.Generation < l.Generation {
				byName[l.Name] = l
			}
		}
	}
	var out []v1alpha1.MIGLayout
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[name])
	}
	return out
}

// Mistake returns the first mistake in a layout's spec, or nil.
func Mistake(l *v1alpha1.MIGLayout) error {
	return l.Spec.Validate(field.NewPath("spec")).ToAggregate()
}

// Report writes the node's entry in a MIGLayout's status, by server-side apply with the node's own field manager.
func Report(ctx context.Context, n selection.Node, name string, entry v1alpha1.MIGLayoutNode) error {
	entry.Name = n.Name
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": "MIGLayout", "metadata": map[string]any{"name": name},
		"status": map[string]any{"nodes": []v1alpha1.MIGLayoutNode{entry}},
	})
	if err != nil {
		return err
	}
	force := true
	_, err = n.Dynamic.Resource(resource()).Patch(ctx, name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: Manager + n.Name, Force: &force}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("report on MIGLayout %s: %w", name, err)
	}
	return nil
}
