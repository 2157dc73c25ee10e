package explain_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/explain"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/host"
)

// slicesOf are the ResourceSlices of a node with some GPUs in a form.
func slicesOf(t *testing.T, node, forms string, gpus int) []runtime.Object {
	t.Helper()
	f, err := devices.ParseForms(forms)
	if err != nil {
		t.Fatal(err)
	}
	n := &inventory.Node{DriverVersion: "570.158.01"}
	for i := range gpus {
		n.GPUs = append(n.GPUs, &inventory.GPU{Index: i, Minor: i, UUID: "GPU-" + node, ProductName: "NVIDIA H100 80GB HBM3",
			MemoryBytes: 80 << 30, MIG: &inventory.MIG{
				MemorySlices: 8, Profiles: []inventory.Profile{{Name: "1g.10gb", ID: 19, MaxInstances: 7, Slices: 1, MemoryBytes: 10 << 30,
					Placements: []inventory.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}}}},
			}})
	}
	layout := devices.NewPool(n, devices.Options{Forms: f}).Slices(nil)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	object.Status.Conditions = []corev1.NodeCondition{{Type: "GPUForms", Reason: "NodeLabel", Message: "asked for: " + forms}}
	out := []runtime.Object{object}
	for i, s := range layout {
		out = append(out, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + string(rune('a'+i))},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: devices.Driver, NodeName: &node, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: devices.PoolName(node), ResourceSliceCount: int64(len(layout))},
			}})
	}
	return out
}

func class(name, expression string) runtime.Object {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return c
}

// classes are the chart's.
func classes() []runtime.Object {
	return []runtime.Object{
		class("gpu.nvidia.com", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`),
		class("mig.nvidia.com", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`),
		class("gpu-share.gpufabric.io", `device.driver == 'gpu.nvidia.com' && device.allowMultipleAllocations == true && !('vgpuProfile' in `+
			`device.attributes['gpu.nvidia.com'])`),
		class("vfio.gpu.nvidia.com", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'vfio'`),
		class("small", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].?vgpuProfile.orValue('') == 'x' || `+
			`device.attributes['gpu.nvidia.com'].vgpuProfile == 'small'`),
		class("rdma.gpufabric.io", `device.driver == 'rdma.gpufabric.io'`),
	}
}

// claim requests one device of a class, and has the named devices of a pool.
func claim(name, class, selector string, memory string, pool string, has ...string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class}
	if selector != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	if memory != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory)}}
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: exactly}}
	if len(has) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
		for _, device := range has {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: devices.Driver, Pool: devices.PoolName(pool), Device: device})
		}
	}
	return c
}

func TestExplainNamesNodesForAWaitingClaim(t *testing.T) {
	const mig = `device.attributes['gpu.nvidia.com'].profile == '1g.10gb'`
	taken := claim("taken", "gpu.nvidia.com", "", "", "whole", "gpu-0")
	allTaken := claim("taken", "gpu.nvidia.com", "", "", "whole", "gpu-0", "gpu-1")
	asksFor := func(capacity resourceapi.QualifiedName, amount string) *resourceapi.ResourceClaim {
		c := claim("c", "gpu.nvidia.com", "", "1", "")
		c.Spec.Devices.Requests[0].Exactly.Capacity.Requests = map[resourceapi.QualifiedName]resource.Quantity{
			capacity: resource.MustParse(amount)}
		return c
	}
	// shares has some shares of the first GPU of the node counted, and two of its second.
	shares := func(first string) *resourceapi.ResourceClaim {
		c := claim("taken", "gpu.nvidia.com", "", "", "counted", "gpu-0", "gpu-1")
		for i, n := range []string{first, "2"} {
			c.Status.Allocation.Devices.Results[i].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				"shares": resource.MustParse(n)}
		}
		return c
	}
	full := claim("full", "gpu-share.gpufabric.io", "", "", "full", "gpu-0", "gpu-1")
	for i := range full.Status.Allocation.Devices.Results {
		full.Status.Allocation.Devices.Results[i].ShareID = ptr.To(types.UID(fmt.Sprint(i)))
	}
	for _, c := range []struct {
		name   string
		nodes  map[string]string // forms, by name
		others []runtime.Object
		claim  *resourceapi.ResourceClaim
		want   []string
	}{
		{"a share where all is whole", map[string]string{"whole": "whole"}, []runtime.Object{taken},
			claim("c", "gpu-share.gpufabric.io", "", "10Gi", ""),
			[]string{"asks for a share of a GPU: no GPU offers it", "on whole (1 free)",
				"kubectl label --overwrite node whole gpufabric.io/gpu-forms=shareable"}},
		{"a share by a plain class", map[string]string{"whole": "whole"}, nil, claim("c", "gpu.nvidia.com", "", "10Gi", ""),
			[]string{"a part of a GPU's memory or cores: no GPU offers it", "gpu-forms=shareable"}},
		{"a MIG profile", map[string]string{"whole": "whole", "other": "shareable"}, nil, claim("c", "mig.nvidia.com", mig, "", ""),
			[]string{"a MIG instance of 1g.10gb: no GPU offers it", "other (2 free), whole (2 free)", "gpu-forms=mig_1g.10gb "}},
		{"a virtual machine's GPU where all is whole", map[string]string{"whole": "whole"}, nil, claim("c", "vfio.gpu.nvidia.com", "", "", ""),
			[]string{"asks for a GPU for a virtual machine: no GPU offers it",
				"node whole gpufabric.io/gpu-forms=vfio (with gpus.passthrough.enabled"}},
		{"whole where all is cut", map[string]string{"cut": "mig_1g.10gb"}, nil, claim("c", "gpu.nvidia.com", "", "", ""),
			[]string{"a whole GPU: no GPU offers it", "node cut gpufabric.io/gpu-forms=whole"}},
		{"whole where all is held", map[string]string{"whole": "whole"}, []runtime.Object{allTaken}, claim("c", "gpu.nvidia.com", "", "", ""),
			[]string{"2 GPUs offer it on whole (0 free), and claims hold something of each; no other node has a GPU that no claim holds"}},
		{"whole where something is free", map[string]string{"whole": "whole"}, []runtime.Object{taken}, claim("c", "gpu.nvidia.com", "", "", ""),
			[]string{"claims hold nothing of 1 of them, or not all shares: what keeps the pod from them is not the form"}},
		{"counted shares where all is whole", map[string]string{"whole": "whole", "half": "shareable"}, nil, asksFor("shares", "1"),
			[]string{"asks for shares of a GPU, by their number: no GPU offers it", "node half gpufabric.io/gpu-forms=shares_4"}},
		{"cores where shares are counted", map[string]string{"counted": "shares_2"}, nil, asksFor("cores", "10"),
			[]string{"a part of a GPU's memory or cores: no GPU offers it", "node counted gpufabric.io/gpu-forms=shareable"}},
		{"a counted share where one of two is held", map[string]string{"counted": "shares_2"}, []runtime.Object{shares("1")},
			asksFor("shares", "1"), []string{"2 GPUs offer it on counted", "claims hold nothing of 1 of them, or not all shares"}},
		{"a counted share where all are held", map[string]string{"counted": "shares_1"}, []runtime.Object{shares("1")},
			claim("c", "gpu.nvidia.com", "", "", ""), []string{"2 GPUs offer it on counted (0 free), and claims hold something of each"}},
		{"a share where all GPUs are full and not published", map[string]string{"full": "shareable"}, []runtime.Object{full},
			claim("c", "gpu-share.gpufabric.io", "", "10Gi", ""), []string{"full  2     0     2 shares, not published while full",
				"a share of a GPU: 2 GPUs offer it on full (0 free), and claims hold something of each"}},
		{"a MIG instance where full GPUs are not published", map[string]string{"full": "shareable"}, []runtime.Object{full},
			claim("c", "mig.nvidia.com", "", "", ""), []string{"a MIG instance: no GPU offers it"}},
		{"a profile's share", map[string]string{"whole": "whole"}, nil, claim("c", "small", "", "", ""),
			[]string{"a share of the VGPUProfile small: no GPU offers it", "the VGPUProfile small must select node whole"}},
		{"a class that is not there", map[string]string{"whole": "whole"}, nil, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "team"},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
				{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: "gone"},
					{Name: "b", DeviceClassName: "gpu.nvidia.com"}}}}}}},
			[]string{"request r/a, class gone: there is no DeviceClass of that name", "request r/b, class gpu.nvidia.com, asks for a whole GPU"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := append(append(classes(), c.others...), c.claim)
			for name, forms := range c.nodes {
				published := slicesOf(t, name, forms, 2)
				if name == "full" { // gpus.withdrawFullAfter
					published[1].(*resourceapi.ResourceSlice).Spec.Devices = nil
				}
				objects = append(objects, published...)
			}
			cluster, err := explain.Read(t.Context(), fake.NewClientset(objects...), "team/c")
			if err != nil {
				t.Fatal(err)
			}
			out := explain.Explain(cluster).String()
			for _, want := range append(c.want, "Claim team/c waits.") {
				if !strings.Contains(out, want) {
					t.Errorf("it lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestExplainReportsNodesAndPrecedence(t *testing.T) {
	objects := append(classes(), slicesOf(t, "a", "whole", 2)...)
	objects = append(objects, slicesOf(t, "b", "mig_1g.10gb", 2)...)
	objects = append(objects, claim("has", "gpu.nvidia.com", "", "", "a", "gpu-1"), claim("nic", "rdma.gpufabric.io", "", "", ""))
	cluster, err := explain.Read(t.Context(), fake.NewClientset(objects...), "")
	if err != nil {
		t.Fatal(err)
	}
	out := strings.Join(strings.Fields(explain.Explain(cluster).String()), " ")
	for _, want := range []string{"a 2 1 2 whole NodeLabel: asked for: whole", "b 2 2 2 MIG 1g.10gb",
		"2. The node's label gpufabric.io/gpu-forms."} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q: %s", want, out)
		}
	}
	if strings.Contains(out, "waits") {
		t.Errorf("a claim that is allocated, or for another driver's devices, waits: %s", out)
	}
}

func TestExplainRejectsAClaimThatDoesNotWait(t *testing.T) {
	client := fake.NewClientset(claim("has", "gpu.nvidia.com", "", "", "a", "gpu-1"))
	for name, want := range map[string]string{"has": "want NAMESPACE/NAME", "team/has": "it has gpu-1 of pool a-gpu",
		"team/gone": "there is no claim team/gone"} {
		if _, err := explain.Read(t.Context(), client, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--claim %s: error %v, want %q", name, err, want)
		}
	}
}

func TestExplainNamesARefusingAPIServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	defer server.Close()
	var out bytes.Buffer
	command := explain.Command(host.Host{Stdout: &out, Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }})
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(nil)
	if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "list the nodes") {
		t.Errorf("error %v, want one that says what was tried", err)
	}
}
