package nodetemplate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const clique = "c0ffee.3"

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: ptr.To(value)}
}

// gpu is a whole GPU on a PCIe root.
func gpu(name, uuid, root string) resourceapi.Device {
	return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "uuid": text(uuid), "productName": text("NVIDIA H100"), "cliqueID": text(clique),
		"resource.kubernetes.io/pcieRoot": text(root)},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}}
}

func slice(name, driver, pool, node string, count int64, of ...resourceapi.Device) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver,
		NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: 4, ResourceSliceCount: count}, Devices: of}}
}

// machine is node n7 with two GPUs and a NIC beside the first.
func machine() (*corev1.Node, []resourceapi.ResourceSlice) {
	all := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7", UID: "u", Annotations: map[string]string{"token": "secret"},
		Labels: map[string]string{"kubernetes.io/hostname": "n7", "kubernetes.io/arch": "amd64", "nvidia.com/gpu.clique": clique,
			"computedomain.gpufabric.io/d1": "true", "resource.nvidia.com/computeDomain": "d1"}},
		Spec: corev1.NodeSpec{ProviderID: "cloud://n7", Unschedulable: true, Taints: []corev1.Taint{
			{Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"}, {Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{Capacity: all, Allocatable: all}}
	broken := gpu("gpu-1", "GPU-b", "pci0000:20")
	broken.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/unhealthy", Value: "XID79", Effect: "NoSchedule"}}
	nic := resourceapi.Device{Name: "mlx5-0-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"nodeGUID": text("0x1"), "resource.kubernetes.io/pcieRoot": text("pci0000:10")}}
	old := slice("old", "gpu.nvidia.com", "n7-gpu", "n7", 1, gpu("gpu-9", "GPU-z", "pci0000:99"))
	old.Spec.Pool.Generation = 3
	return node, []resourceapi.ResourceSlice{
		slice("b", "gpu.nvidia.com", "n7-gpu", "n7", 2, broken),
		slice("a", "gpu.nvidia.com", "n7-gpu", "n7", 2, gpu("gpu-0", "GPU-a", "pci0000:10")),
		old, slice("c", "rdma.gpufabric.io", "n7-rdma", "n7", 1, nic), slice("d", "dra.net", "n7", "n7", 1, nic),
		slice("e", "gpu.nvidia.com", "n8-gpu", "n8", 1, gpu("gpu-0", "GPU-c", "pci0000:10")),
	}
}

func TestTemplateKeepsPropertiesOfMachineKind(t *testing.T) {
	node, published := machine()
	got, err := Of("template", node, published)
	if err != nil {
		t.Fatal(err)
	}
	content, err := yaml.Marshal(Template{Node: got.Node, Slices: got.Slices})
	if err != nil {
		t.Fatal(err)
	}
	for _, absent := range []string{"n7", "secret", "cloud://", "d1", "GPU-a", "0x1", "XID79", "unschedulable", "gpu-9", "dra.net", "uid"} {
		if strings.Contains(string(content), absent) {
			t.Errorf("the template has %q", absent)
		}
	}
	if len(got.Slices) != 3 || got.Slices[0].Spec.Devices[0].Name != "gpu-0" || got.Slices[0].Spec.Pool.Name != "template-gpu" ||
		got.Slices[2].Spec.Pool.Name != "template-rdma" || *got.Slices[2].Spec.NodeName != "template" {
		t.Errorf("slices: %s", content)
	}
	if taints := got.Node.Spec.Taints; len(taints) != 1 || taints[0].Key != "nvidia.com/gpu" {
		t.Errorf("taints of the node: %v", taints)
	}
	want := "device gpu-1 has the taint gpu.nvidia.com/unhealthy=XID79 on the node, and none in the template"
	if len(got.Notes) != 1 || got.Notes[0] != want {
		t.Errorf("notes: %q", got.Notes)
	}
}

func TestTemplateRefusesIncompleteAndForeignPools(t *testing.T) {
	node, published := machine()
	for name, c := range map[string]struct {
		name      string
		published []resourceapi.ResourceSlice
		want      string
	}{
		"half a pool": {"x", published[1:], "has 1 of its 2 ResourceSlices"},
		"no slice":    {"x", nil, "gpufabric doctor node n7"},
		"NVIDIA's pool": {"x", []resourceapi.ResourceSlice{slice("n", "gpu.nvidia.com", "n7", "n7", 1, gpu("gpu-0", "GPU-a", "r"))},
			"gpufabric doctor node n7"},
		"a name that is none": {"X_Y", published, "--name"},
	} {
		if _, err := Of(c.name, node, c.published); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestKarpenterTemplateBindsDevicesThatShareAPlace(t *testing.T) {
	node, published := machine()
	template, err := Of("h100", node, published)
	if err != nil {
		t.Fatal(err)
	}
	got, err := layoutOf(template)
	if err != nil {
		t.Fatal(err)
	}
	content, err := yaml.Marshal(got.Spec.AttributeBindings)
	if err != nil {
		t.Fatal(err)
	}
	want := `- attribute: gpu.nvidia.com/cliqueID
  devices:
  - gpu-0
  - gpu-1
- attribute: resource.kubernetes.io/pcieRoot
  devices:
  - gpu-0
  - mlx5-0-1
`
	if string(content) != want {
		t.Errorf("bindings:\n%s\nwant\n%s", content, want)
	}
	for _, s := range got.Spec.ResourceSliceTemplates {
		for _, d := range s.Devices {
			if _, has := d.Attributes["resource.kubernetes.io/pcieRoot"]; has {
				t.Errorf("device %s has a PCIe root, which is decided when a machine starts", d.Name)
			}
		}
	}
	d := got.Spec.ResourceSliceTemplates[0].Devices[0]
	if memory := d.Capacity["memory"].Value; d.Attributes["productName"].StringValue == nil || memory.IsZero() {
		t.Errorf("device %+v", d)
	}
	if template.Slices[0].Spec.Devices[0].Attributes["resource.kubernetes.io/pcieRoot"].StringValue == nil {
		t.Error("the template itself lost its PCIe root")
	}
}

func TestClusterAPIAnnotationsDescribeOnlyWholeGPUs(t *testing.T) {
	node, published := machine()
	template, err := Of("h100", node, published)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeClusterAPI(&out, template); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/dra-driver: gpu.nvidia.com", `/gpu-count: "2"`, `/cpu: "8"`, `/maxPods: "110"`,
		"/labels: kubernetes.io/arch=amd64,nvidia.com/gpu.clique=c0ffee.3", "/taints: nvidia.com/gpu=present:NoSchedule",
		"# Note: the autoscaler gives"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	template.Slices[0].Spec.Devices[0].Attributes["type"] = text("mig")
	if err := writeClusterAPI(&out, template); err == nil || !strings.Contains(err.Error(), "minimum size 1") {
		t.Errorf("a MIG device: error %v", err)
	}
}

func TestReadNamesTheNodesOfTheClusterWhenOneIsUnknown(t *testing.T) {
	node, _ := machine()
	client := fake.NewClientset(node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n8"}})
	_, _, err := read(t.Context(), client, "n9")
	if err == nil || !strings.Contains(err.Error(), `--node "n9": the cluster has no such node; it has n7, n8`) {
		t.Errorf("error %v", err)
	}
}

func TestObjectsReadsDocumentsAndLists(t *testing.T) {
	for name, content := range map[string]string{
		"documents": "---\nkind: Node\napiVersion: v1\nmetadata: {name: n1}\n" +
			"---\nkind: ResourceSlice\napiVersion: resource.k8s.io/v1\nspec: {driver: d}\n",
		"a list": `{"kind":"List","apiVersion":"v1","items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}},
			{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","spec":{"driver":"d"}},{"kind":"Pod","apiVersion":"v1"}]}`,
	} {
		found := objects{nodes: map[string]*corev1.Node{}}
		if err := found.read(strings.NewReader(content)); err != nil || found.nodes["n1"] == nil || len(found.slices) != 1 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	for content, want := range map[string]string{
		"kind: [": "neither YAML nor JSON", "- a\n": "not an object",
		"kind: ResourceSlice\napiVersion: resource.k8s.io/v1beta1\n": "version resource.k8s.io/v1beta1",
		"kind: Node\napiVersion: v1\nmetadata: 3\n":                  "read a Node",
	} {
		found := objects{nodes: map[string]*corev1.Node{}}
		if err := found.read(strings.NewReader(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", content, err, want)
		}
	}
}
