package layout

import (
	"context"
	"encoding/json"
	"fmt"

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

// Watch calls changed with the MIGLayouts that select a node whenever they change, until ctx ends.
func Watch(ctx context.Context, n selection.Node, changed func([]v1alpha1.MIGLayout)) error {
	return selection.Watch(ctx, n, resource(), func(l *v1alpha1.MIGLayout) *metav1.LabelSelector { return l.Spec.NodeSelector }, changed)
}

// Mistake is what is wrong with a layout's spec, nil where nothing is.
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
