// Package nodetemplate makes templates of nodes for autoscalers, which simulate a node before it exists. A template is a Node and the
// ResourceSlices that gpufabric published for it, without the values that another machine of the same kind does not share.
package nodetemplate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/rdma/dra"
)

// Template is a node that does not exist.
type Template struct {
	Node *corev1.Node
	// Slices are the slices of gpufabric's drivers, by driver and name. They keep the values by which devices of one node belong together
	// (PCIe root, parent GPU), and lack the device taints.
	Slices []*resourceapi.ResourceSlice
	// Notes are sentences on the difference between the template and the node that it was made from.
	Notes []string
}

// pools returns the pool of a node by gpufabric's drivers. Another driver of the same name publishes pools of other names.
func pools(node string) map[string]string {
	return map[string]string{devices.Driver: devices.PoolName(node), computedomain.Driver: computedomain.PoolName(node),
		dra.Driver: node + "-rdma"}
}

// Of makes a template with a name from a node and the ResourceSlices that it has. It returns an error where gpufabric publishes nothing
// for the node, or a pool is not complete: an autoscaler would take the rest for the whole.
func Of(name string, node *corev1.Node, published []resourceapi.ResourceSlice) (*Template, error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("--name %q is not a valid name of a Node: %s", name, strings.Join(problems, "; "))
	}
	t := &Template{Node: nodeOf(name, node)}
	own := map[string][]*resourceapi.ResourceSlice{}
	for i := range published {
		s := &published[i]
		pool, ours := pools(node.Name)[s.Spec.Driver]
		if !ours || s.Spec.NodeName == nil || *s.Spec.NodeName != node.Name {
			continue
		}
		if s.Spec.Pool.Name != pool {
			t.Notes = append(t.Notes, fmt.Sprintf("pool %s of driver %s is not gpufabric's and is left out", s.Spec.Pool.Name, s.Spec.Driver))
			continue
		}
		own[s.Spec.Driver] = append(own[s.Spec.Driver], s)
	}
	for _, driver := range slices.Sorted(maps.Keys(own)) {
		newest, err := complete(own[driver])
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node.Name, err)
		}
		for i, s := range newest {
			t.Slices = append(t.Slices, t.slice(s, i, pools(name)[driver]))
		}
	}
	if len(t.Slices) == 0 {
		return nil, fmt.Errorf("node %s has no ResourceSlice of gpufabric: a template is made from a node whose plugins run; "+
			"gpufabric doctor node %s reports why they do not", node.Name, node.Name)
	}
	slices.Sort(t.Notes)
	t.Notes = slices.Compact(t.Notes)
	return t, nil
}

// complete returns the slices of a pool's newest generation, by name.
func complete(pool []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, error) {
	generation := int64(0)
	for _, s := range pool {
		generation = max(generation, s.Spec.Pool.Generation)
	}
	newest := slices.DeleteFunc(slices.Clone(pool), func(s *resourceapi.ResourceSlice) bool { return s.Spec.Pool.Generation < generation })
	slices.SortFunc(newest, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	if want := newest[0].Spec.Pool.ResourceSliceCount; int64(len(newest)) != want {
		return nil, fmt.Errorf("pool %s of driver %s has %d of its %d ResourceSlices: it is being published; run the command again",
			newest[0].Spec.Pool.Name, newest[0].Spec.Driver, len(newest), want)
	}
	return newest, nil
}

// slice is the template of one ResourceSlice.
func (t *Template) slice(s *resourceapi.ResourceSlice, index int, pool string) *resourceapi.ResourceSlice {
	spec := *s.Spec.DeepCopy()
	spec.NodeName, spec.Pool.Name, spec.Pool.Generation = &t.Node.Name, pool, 1
	for i := range spec.Devices {
		d := &spec.Devices[i]
		for _, taint := range d.Taints {
			t.Notes = append(t.Notes, fmt.Sprintf("device %s has the taint %s=%s on the node, and none in the template", d.Name, taint.Key,
				taint.Value))
		}
		d.Taints = nil
		maps.DeleteFunc(d.Attributes, func(name resourceapi.QualifiedName, _ resourceapi.DeviceAttribute) bool { return identity(name) })
	}
	return &resourceapi.ResourceSlice{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", t.Node.Name, strings.ReplaceAll(s.Spec.Driver, ".", "-"), index)}, Spec: spec}
}

// identity reports whether an attribute identifies one machine, one of its devices or its owner, so that no other node has its value.
func identity(name resourceapi.QualifiedName) bool {
	switch name {
	case devices.AttrUUID, dra.AttrNodeGUID, dra.AttrPortGUID, dra.AttrLID, computedomain.AttributeAllHeld:
		return true
	}
	return strings.HasPrefix(string(name), "heldBy_")
}

// place reports whether an attribute's value is decided when a machine starts. Devices of one node may share it all the same.
func place(name resourceapi.QualifiedName) bool {
	switch name {
	case devices.AttrParentUUID, devices.AttrCliqueID, devices.AttrNVLinkDomain, devices.AttrPCIeSwitch, dra.AttrPCIeRoot, dra.AttrPCIBusID:
		return true
	}
	return false
}

// nodeOf is the template of a Node: the fields that the scheduler reads, without those that differ between machines.
func nodeOf(name string, n *corev1.Node) *corev1.Node {
	labels := maps.Clone(n.Labels)
	maps.DeleteFunc(labels, func(key, value string) bool {
		return key == corev1.LabelHostname || key == computedomain.LabelChannels || key == computedomain.LabelHostIMEX ||
			strings.HasPrefix(key, computedomain.LabelMemberPrefix) || strings.HasPrefix(key, "resource.nvidia.com/") || value == n.Name
	})
	if labels == nil {
		labels = map[string]string{}
	}
	labels[corev1.LabelHostname] = name
	out := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, taint := range n.Spec.Taints {
		// Taints of these groups follow a node's state: not ready, cordoned, drained, to be deleted.
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") && !strings.HasPrefix(taint.Key, "node.cloudprovider.kubernetes.io/") &&
			!strings.HasPrefix(taint.Key, "ToBeDeletedBy") && !strings.HasPrefix(taint.Key, "DeletionCandidateOf") {
			taint.TimeAdded = nil
			out.Spec.Taints = append(out.Spec.Taints, taint)
		}
	}
	out.Status.Capacity, out.Status.Allocatable = n.Status.Capacity.DeepCopy(), n.Status.Allocatable.DeepCopy()
	out.Status.NodeInfo.Architecture, out.Status.NodeInfo.OperatingSystem = n.Status.NodeInfo.Architecture, n.Status.NodeInfo.OperatingSystem
	out.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return out
}

// gpus counts the template's GPUs, and returns an error unless each of them is offered whole under the name gpu-N.
func (t *Template) gpus() (int, error) {
	count := 0
	for _, s := range t.Slices {
		if s.Spec.Driver != devices.Driver {
			continue
		}
		if len(s.Spec.SharedCounters) > 0 {
			return 0, errors.New("the node's GPUs are offered in several forms")
		}
		for _, d := range s.Spec.Devices {
			if kind := d.Attributes[devices.AttrType].StringValue; kind == nil || *kind != string(devices.Whole) {
				return 0, fmt.Errorf("device %s is not a whole GPU", d.Name)
			}
			count++
		}
	}
	if count == 0 {
		return 0, errors.New("the node has no GPU")
	}
	return count, nil
}
