package draplugin

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// createSlices publishes resources on a node that has no slice of their pools yet, and publishes nothing on any other node. The
// library's controller does all of the publishing, but checks only once a second whether its caches are synced, so a new node's
// devices would appear a second late. The controller finds these slices and adopts them: they have the names and the content that
// it would have written. It also repeats writes that fail here.
//
// Slices of other pools are those of another driver with this one's name, which served the node before and has ended. They offer the
// same devices a second time. The controller would delete them too, but only after its delay of 30 s.
func (p *Plugin) createSlices(ctx context.Context, resources resourceslice.DriverResources) error {
	node, slices := p.config.Node.NodeName, p.config.Client.ResourceV1().ResourceSlices()
	list, err := slices.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: p.config.Driver,
	}.String()})
	if err != nil {
		return fmt.Errorf("look for ResourceSlices of %s on node %s: %w", p.config.Driver, node, err)
	}
	published := false
	for i := range list.Items {
		slice := &list.Items[i]
		if _, own := resources.Pools[slice.Spec.Pool.Name]; own {
			published = true
			continue
		}
		klog.FromContext(ctx).Info("Deleting a ResourceSlice of another driver of this name, which had the node before", "slice", slice.Name,
			"pool", slice.Spec.Pool.Name)
		if err := slices.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete ResourceSlice %s of pool %s, which no driver serves: %w", slice.Name, slice.Spec.Pool.Name, err)
		}
	}
	if published {
		return nil
	}
	uid := p.config.NodeUID
	if uid == "" {
		object, err := p.config.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("look up node %s, which owns its ResourceSlices: %w", node, err)
		}
		uid = object.UID
	}
	for name, pool := range resources.Pools {
		for i, slice := range pool.Slices {
			_, err := slices.Create(ctx, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{
					// The library recognizes a pool's slices by the number in their names.
					GenerateName:    fmt.Sprintf("%05x-%s-%s-", i, p.config.Driver, node),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid, Controller: ptr.To(true)}},
				},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: p.config.Driver, NodeName: &node,
					Pool:    resourceapi.ResourcePool{Name: name, Generation: max(pool.Generation, 1), ResourceSliceCount: int64(len(pool.Slices))},
					Devices: slice.Devices, SharedCounters: slice.SharedCounters, PerDeviceNodeSelection: slice.PerDeviceNodeSelection,
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create ResourceSlice %d of pool %s: %w", i, name, err)
			}
		}
	}
	return nil
}
