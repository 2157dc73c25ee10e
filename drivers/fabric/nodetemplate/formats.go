package nodetemplate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/gpu/devices"
)

// format writes a template in one form.
type format func(w io.Writer, t *Template) error

func formats() map[string]format {
	return map[string]format{"objects": writeObjects, "karpenter": writeKarpenter, "cluster-api": writeClusterAPI}
}

// writeObjects writes the Node and the ResourceSlices, as a template node of the Cluster Autoscaler has them: it copies them, with new
// names, from a node of the group.
func writeObjects(w io.Writer, t *Template) error {
	documents := []any{t.Node}
	for _, s := range t.Slices {
		documents = append(documents, s)
	}
	return write(w, t.Notes, documents...)
}

// layout is Karpenter's DynamicResourceTemplate (its design "NodeOverlay DRA Extension"), the fields of which are those of
// cloudprovider.DynamicResources of Karpenter 1.14 and 1.15 with the names as text.
type layout struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec layoutSpec `json:"spec"`
}

type layoutSpec struct {
	ResourceSliceTemplates []sliceTemplate `json:"resourceSliceTemplates"`
	AttributeBindings      []binding       `json:"attributeBindings,omitempty"`
}

// sliceTemplate has either devices or counters, as a ResourceSlice.
type sliceTemplate struct {
	Driver         string                   `json:"driver"`
	PoolName       string                   `json:"poolName"`
	Devices        []device                 `json:"devices,omitempty"`
	SharedCounters []resourceapi.CounterSet `json:"sharedCounters,omitempty"`
}

// device has the fields of a ResourceSlice's device that Karpenter's allocator reads.
type device struct {
	Name                     string                                                    `json:"name"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations,omitempty"`
	ConsumesCounters         []resourceapi.DeviceCounterConsumption                    `json:"consumesCounters,omitempty"`
}

// binding: devices share a value which is decided when the machine starts.
type binding struct {
	Attribute string   `json:"attribute"` // with its domain
	Devices   []string `json:"devices"`
}

// layoutOf moves the values that are decided when a machine starts from attributes to bindings.
func layoutOf(t *Template) (*layout, error) {
	l := &layout{TypeMeta: metav1.TypeMeta{APIVersion: "karpenter.sh/v1alpha1", Kind: "DynamicResourceTemplate"}}
	l.Metadata.Name = t.Node.Name
	shared := map[[2]string][]string{} // names of devices, by attribute and value
	seen := map[string]string{}
	for _, s := range t.Slices {
		out := sliceTemplate{Driver: s.Spec.Driver, PoolName: s.Spec.Pool.Name, SharedCounters: s.Spec.SharedCounters}
		for _, d := range s.Spec.Devices {
			if other, twice := seen[d.Name]; twice {
				return nil, fmt.Errorf("drivers %s and %s both have a device %s, and Karpenter's template has the names of devices only", other,
					s.Spec.Driver, d.Name)
			}
			seen[d.Name] = s.Spec.Driver
			fixed := maps.Clone(d.Attributes)
			for name, value := range d.Attributes {
				if !place(name) {
					continue
				}
				delete(fixed, name)
				if value.StringValue != nil {
					key := [2]string{qualified(s.Spec.Driver, name), *value.StringValue}
					shared[key] = append(shared[key], d.Name)
				}
			}
			out.Devices = append(out.Devices, device{Name: d.Name, Attributes: fixed, Capacity: d.Capacity,
				AllowMultipleAllocations: d.AllowMultipleAllocations, ConsumesCounters: d.ConsumesCounters})
		}
		l.Spec.ResourceSliceTemplates = append(l.Spec.ResourceSliceTemplates, out)
	}
	for _, key := range slices.SortedFunc(maps.Keys(shared), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		if len(shared[key]) > 1 {
			slices.Sort(shared[key])
			l.Spec.AttributeBindings = append(l.Spec.AttributeBindings, binding{Attribute: key[0], Devices: shared[key]})
		}
	}
	return l, nil
}

// qualified is an attribute's name with its domain, which is the driver's where it has none.
func qualified(driver string, name resourceapi.QualifiedName) string {
	if strings.Contains(string(name), "/") {
		return string(name)
	}
	return driver + "/" + string(name)
}

func writeKarpenter(w io.Writer, t *Template) error {
	l, err := layoutOf(t)
	if err != nil {
		return err
	}
	return write(w, t.Notes, l)
}

// clusterAPI is the prefix of the annotations by which a MachineDeployment describes its nodes to the Cluster Autoscaler's provider
// clusterapi.
const clusterAPI = "capacity.cluster-autoscaler.kubernetes.io/"

// writeClusterAPI writes the annotations of a MachineDeployment or MachineSet. The autoscaler makes of them whole GPUs without attributes
// but the type, so GPUs in other forms are refused.
func writeClusterAPI(w io.Writer, t *Template) error {
	count, err := t.gpus()
	if err != nil {
		return fmt.Errorf("-o cluster-api: %w, and annotations describe whole GPUs only; keep one node of the group (minimum size 1), "+
			"from which the autoscaler copies the ResourceSlices", err)
	}
	annotations := map[string]string{clusterAPI + "dra-driver": devices.Driver, clusterAPI + "gpu-count": fmt.Sprint(count)}
	for key, name := range map[string]corev1.ResourceName{"cpu": corev1.ResourceCPU, "memory": corev1.ResourceMemory,
		"ephemeral-disk": corev1.ResourceEphemeralStorage, "maxPods": corev1.ResourcePods} {
		if quantity, has := t.Node.Status.Allocatable[name]; has {
			annotations[clusterAPI+key] = quantity.String()
		}
	}
	var labels, taints []string
	for _, key := range slices.Sorted(maps.Keys(t.Node.Labels)) {
		if key != corev1.LabelHostname {
			labels = append(labels, key+"="+t.Node.Labels[key])
		}
	}
	for _, taint := range t.Node.Spec.Taints {
		taints = append(taints, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
	}
	if len(labels) > 0 {
		annotations[clusterAPI+"labels"] = strings.Join(labels, ",")
	}
	if len(taints) > 0 {
		annotations[clusterAPI+"taints"] = strings.Join(taints, ",")
	}
	notes := append(slices.Clone(t.Notes), "the autoscaler gives these GPUs no attribute but the type: a claim that selects by another, "+
		"or by memory, and claims of compute domains and RDMA devices fit no such node before one exists")
	return write(w, notes, map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// write writes YAML documents after leading comments.
func write(w io.Writer, notes []string, documents ...any) error {
	var out strings.Builder
	for _, note := range notes {
		fmt.Fprintf(&out, "# Note: %s.\n", note)
	}
	for _, document := range documents {
		text, err := yaml.Marshal(document)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	_, err := io.WriteString(w, out.String())
	return err //nolint:wrapcheck // the terminal's own words
}
