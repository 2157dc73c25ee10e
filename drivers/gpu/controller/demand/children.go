package demand

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

// Assignment describes which layout with auto decides about which nodes.
type Assignment struct {
	// Parents are the names of the layouts by the names of the nodes.
	Parents map[string]string
	// LeftOut has, for each layout, the selected nodes that it does not decide about, with the reasons.
	LeftOut map[string][]string
}

// Assign gives each node to the layout with auto that selects it. A layout by hand that selects the node too excludes it; of several
// layouts with auto the first by name has it.
func Assign(layouts []v1alpha1.MIGLayout, nodes map[string]labels.Set) Assignment {
	a := Assignment{Parents: map[string]string{}, LeftOut: map[string][]string{}}
	var auto, manual []*v1alpha1.MIGLayout
	for i := range layouts {
		switch l := &layouts[i]; {
		case l.ByDemand() || l.DeletionTimestamp != nil:
		case l.Spec.Auto == nil:
			manual = append(manual, l)
		case len(l.Spec.Validate(field.NewPath("spec"))) == 0:
			auto = append(auto, l)
		}
	}
	slices.SortFunc(auto, func(a, b *v1alpha1.MIGLayout) int { return strings.Compare(a.Name, b.Name) })
	for node, set := range nodes {
		for _, l := range auto {
			if !selects(l, set) {
				continue
			}
			by := slices.IndexFunc(manual, func(m *v1alpha1.MIGLayout) bool { return selects(m, set) })
			switch other := a.Parents[node]; {
			case by >= 0:
				a.LeftOut[l.Name] = append(a.LeftOut[l.Name], fmt.Sprintf("%s (MIGLayout %s selects it)", node, manual[by].Name))
			case other != "":
				a.LeftOut[l.Name] = append(a.LeftOut[l.Name], fmt.Sprintf("%s (MIGLayout %s has it)", node, other))
			default:
				a.Parents[node] = l.Name
			}
		}
	}
	for _, left := range a.LeftOut {
		slices.Sort(left)
	}
	return a
}

func selects(l *v1alpha1.MIGLayout, node labels.Set) bool {
	if l.Spec.NodeSelector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(l.Spec.NodeSelector)
	return err == nil && s.Matches(node)
}

// maxNamePart bounds the parts of a child's name, which may have 253 characters.
const maxNamePart = 100

// childName is the name of the layout that the controller makes for a node. Two pairs of parent and node never have the same.
func childName(parent, node string) string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(parent + "/" + node))
	bounded := func(text string) string { return strings.TrimRight(text[:min(len(text), maxNamePart)], ".-") }
	return fmt.Sprintf("%s-%s-%x", bounded(parent), bounded(node), hash.Sum64())
}

// newChild is the layout of a node with its GPUs as they are.
func newChild(parent *v1alpha1.MIGLayout, node *corev1.Node, gpus []v1alpha1.MIGLayoutGPU) *v1alpha1.MIGLayout {
	controller := true
	return &v1alpha1.MIGLayout{
		ObjectMeta: metav1.ObjectMeta{
			Name:   childName(parent.Name, node.Name),
			Labels: map[string]string{v1alpha1.MIGByDemandLabel: string(parent.UID), v1alpha1.MIGNodeLabel: v1alpha1.MIGNodeValue(node.Name)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion().String(), Kind: "MIGLayout", Name: parent.Name,
				UID: parent.UID, Controller: &controller}},
		},
		Spec: v1alpha1.MIGLayoutSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node.Labels[corev1.LabelHostname]}},
			GPUs:         gpus,
		},
	}
}

// presentLayouts reads from a node's published devices which GPUs it has, and their instances. A GPU that is offered in several forms
// counts as whole.
func presentLayouts(published []resourceapi.Device) []v1alpha1.MIGLayoutGPU {
	byUUID := map[string]*v1alpha1.MIGLayoutGPU{}
	whole := map[string]bool{}
	for i := range published {
		d := &published[i]
		uuid := text(d, devices.AttrUUID)
		mig := devices.Form(text(d, devices.AttrType)) == devices.MIG
		if mig {
			uuid = text(d, devices.AttrParentUUID)
		}
		if uuid == "" {
			continue
		}
		if byUUID[uuid] == nil {
			byUUID[uuid] = &v1alpha1.MIGLayoutGPU{UUID: uuid}
		}
		if !mig {
			whole[uuid] = true
			continue
		}
		if start, ok := startOf(d.Name); ok {
			byUUID[uuid].Instances = append(byUUID[uuid].Instances, v1alpha1.MIGLayoutInstance{Profile: text(d, devices.AttrProfile), Start: start})
		}
	}
	var out []v1alpha1.MIGLayoutGPU
	for uuid, g := range byUUID {
		if whole[uuid] {
			g.Instances = nil
		}
		sortInstances(g.Instances)
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b v1alpha1.MIGLayoutGPU) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// startOf is the memory slice at which a MIG device begins, by its name.
func startOf(device string) (int32, bool) {
	last := device[strings.LastIndexByte(device, '-')+1:]
	var start int32
	if _, err := fmt.Sscanf(last, "%d", &start); err != nil || start < 0 {
		return 0, false
	}
	return start, true
}

func sortInstances(instances []v1alpha1.MIGLayoutInstance) {
	slices.SortFunc(instances, func(a, b v1alpha1.MIGLayoutInstance) int {
		if a.Start != b.Start {
			return int(a.Start - b.Start)
		}
		return strings.Compare(a.Profile, b.Profile)
	})
}

// text is a device's string attribute, empty where it has none.
func text(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}
