package plugin

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/passthrough/passthroughtest"
)

const (
	passedGPU  = "0000:3b:00.0"
	passedName = "gpu-vfio-0000-3b-00-0"
)

// passBench runs the role on a node whose GPUs may be passed through, with a driver or without.
func passBench(t *testing.T, forms string, driver bool) (*bench, *passthroughtest.Kernel) {
	t.Helper()
	k := passthroughtest.New(t)
	k.GPU("0000:3b:00", 17)
	k.GPU("0000:5e:00", 18)
	machine := gputest.New(t, 2) // as many as the kernel has, or NVML would be waited for
	if err := os.Symlink(filepath.Join(k.Dev, "vfio"), filepath.Join(machine.Root, "dev/vfio")); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, machine, withForms(`{"default": {"form": "whole"}}`))
	b.stop()
	b.options.SysfsRoot, b.options.HostProc, b.options.Passthrough = k.Sys, k.Proc, true
	b.options.ProcDevices = filepath.Join(machine.Root, "proc/devices")
	b.options.Forms = forms
	b.sysfs, b.recheck = k.Write, 100*time.Millisecond
	if !driver {
		lib := &unloaded{Machine: machine}
		lib.away.Store(true)
		b.lib = lib
	}
	b.start()
	return b, k
}

const vfioForms = `{"default": {"form": "vfio"}}`

func vfioConfig(iommu string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig","iommu":` + iommu + `}`
}

// names are the published devices that have no taint, and, after a minus sign, those that have one.
func (b *bench) names() []string {
	list, err := b.client.ResourceV1().ResourceSlices().List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if len(d.Taints) > 0 {
				d.Name = "-" + d.Name
			}
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (b *bench) awaitNames(want ...string) {
	b.Helper()
	b.await(func() bool { return slices.Equal(b.names(), want) }, "devices "+strings.Join(want, ", "))
}

// formsCondition is the node's condition GPUForms.
func (b *bench) formsCondition() corev1.NodeCondition {
	n, err := b.client.CoreV1().Nodes().Get(b.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == FormsCondition {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func TestPluginPassesGPUsThroughOnNodeWithoutDriver(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	d := b.slices()[0].Spec.Devices[0]
	for name, want := range map[resourceapi.QualifiedName]string{"type": "vfio", "resource.kubernetes.io/pciBusID": passedGPU,
		"resource.kubernetes.io/pcieRoot": "pci0000:3a", "vendorID": "0x10de", "deviceID": "0x2684"} {
		if got := d.Attributes[name].StringValue; got == nil || *got != want {
			t.Errorf("attribute %s is %v, want %s", name, d.Attributes[name], want)
		}
	}
	for name, c := range map[string]struct {
		configs []string
		want    string
	}{
		"plain":        {nil, "vfio/17"},
		"the API too":  {[]string{vfioConfig(`{"enableAPIDevice": true}`)}, "vfio/17 vfio/vfio"},
		"no iommufd":   {[]string{vfioConfig(`{"backendPolicy": "PreferIommuFD", "enableAPIDevice": true}`)}, "vfio/17 vfio/vfio"},
		"last of both": {[]string{vfioConfig(`{"enableAPIDevice": true}`), vfioConfig(`{"backendPolicy": "LegacyOnly"}`)}, "vfio/17"},
	} {
		claim := b.claim("u-"+strings.ReplaceAll(name, " ", "-"), c.configs, device{name: passedName})
		e := b.edits(claim, b.mustPrepare(claim)...)
		wantMetadata(t, e.Mounts)
		if got := nodes(e); got != c.want || !slices.Equal(e.Env, []string{"NVIDIA_VISIBLE_DEVICES=void"}) {
			t.Errorf("%s: nodes %s, environment %v", name, got, e.Env)
		}
		if got := k.Driver(passedGPU); got != "vfio-pci" {
			t.Errorf("%s: the driver is %s", name, got)
		}
		if problem := b.unprepare(claim); problem != "" || k.Driver(passedGPU) != "nvidia" {
			t.Errorf("%s: released: %s; the driver is %s", name, problem, k.Driver(passedGPU))
		}
		if left, err := os.ReadDir(filepath.Join(b.options.StateDir, "metadata")); err != nil || len(left) > 0 {
			t.Errorf("%s: released, metadata is left: %v, %v", name, left, err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.machine.Root, "dev/iommu"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	claim := b.claim("u-fd", []string{vfioConfig(`{"backendPolicy": "PreferIommuFD", "enableAPIDevice": true}`)}, device{name: passedName})
	if got := nodes(b.edits(claim, b.mustPrepare(claim)...)); !strings.HasPrefix(got, "iommu vfio/devices/vfio") || strings.Contains(got,
		"vfio/17") {
		t.Errorf("by iommufd: nodes %s", got)
	}
}

// wantMetadata wants the mount of one request's metadata, with the PCI address by which KubeVirt finds its GPU.
func wantMetadata(t *testing.T, mounts []*specs.Mount) {
	t.Helper()
	const below = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim-u-"
	if len(mounts) != 1 || !strings.HasPrefix(mounts[0].ContainerPath, below) {
		t.Fatalf("mounts %+v", mounts)
	}
	text, err := os.ReadFile(mounts[0].HostPath)
	if err != nil {
		t.Fatal(err)
	}
	var m v1alpha1.DeviceMetadata
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if bus := m.Requests[0].Devices[0].Attributes["resource.kubernetes.io/pciBusID"].StringValue; bus == nil || *bus != passedGPU {
		t.Errorf("metadata %s", text)
	}
}

func TestPluginRefusesClaimsThatDoNotFitPassthrough(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	for name, c := range map[string]struct {
		config string
		device device
		want   string
	}{
		"a GPU for containers":      {"", device{name: "gpu-0"}, "passed through to virtual machines"},
		"a GPU that is not there":   {"", device{name: "gpu-vfio-0000-ff-00-0"}, "condition GPUForms"},
		"one that only watches":     {"", device{name: passedName, admin: true}, "adminAccess"},
		"time slices":               {gpuConfig(`{"strategy":"TimeSlicing"}`), device{name: passedName}, "VfioDeviceConfig"},
		"a policy of another name":  {vfioConfig(`{"backendPolicy": "IommuFD"}`), device{name: passedName}, "PreferIommuFD"},
		"a device of the card only": {"", device{name: "gpu-vfio-0000-3b-00-1"}, "condition GPUForms"},
	} {
		var configs []string
		if c.config != "" {
			configs = []string{c.config}
		}
		if _, problem := b.prepare(b.claim("u-"+strings.ReplaceAll(name, " ", "-"), configs, c.device)); !strings.Contains(problem, c.want) {
			t.Errorf("%s: got %q, want %s", name, problem, c.want)
		}
	}
	if len(k.Writes) > 0 {
		t.Errorf("refused claims changed drivers: %v", k.Writes)
	}
}

// TestPluginExcludesVirtualMachinesAndContainers walks a node from containers to virtual machines and back, with claims in the way.
func TestPluginExcludesVirtualMachinesAndContainers(t *testing.T) {
	b, k := passBench(t, `{"default": {"form": "whole"}}`, true)
	b.awaitNames("gpu-0", "gpu-1")
	container := b.claim("c1", nil, device{name: "gpu-0"})
	b.mustPrepare(container)
	b.label("vfio")
	b.await(func() bool { return b.formsCondition().Reason == "FormsHeld" }, "the container's GPU keeps its form")
	machine := b.claim("v1", nil, device{name: passedName})
	if _, problem := b.prepare(machine); !strings.Contains(problem, "not on this node") {
		t.Errorf("a virtual machine beside the container: %q", problem)
	}
	// The run ends with its last claim, and may cut off its own answer: the kubelet asks again.
	b.await(func() bool { return b.unprepare(container) == "" }, "the container's claim is released")
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	b.mustPrepare(machine)
	b.refused(b.claim("v2", nil, device{name: passedName}), "claim-v1")
	b.label("whole")
	b.awaitNames("-" + passedName)
	if c := b.formsCondition(); c.Reason != "FormsHeld" || !strings.Contains(c.Message, "1 claims of virtual machines") {
		t.Errorf("condition %s: %s", c.Reason, c.Message)
	}
	if _, problem := b.prepare(b.claim("c2", nil, device{name: "gpu-0"})); !strings.Contains(problem, "passed through") {
		t.Errorf("a container beside the machine: %q", problem)
	}
	b.await(func() bool { return b.unprepare(machine) == "" }, "the machine's claim is released")
	if k.Driver(passedGPU) != "nvidia" {
		t.Errorf("released, the driver is %s", k.Driver(passedGPU))
	}
	b.awaitNames("gpu-0", "gpu-1")
	b.mustPrepare(b.claim("c3", nil, device{name: "gpu-0"}))
}

// A restart finds its virtual machines, whatever the forms are by then, and gives back what a claim without a record has left.
func TestPluginKeepsVirtualMachinesAndReturnsLostGPUsWhenItStarts(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	one, two := b.claim("v1", nil, device{name: passedName}), b.claim("v2", nil, device{name: "gpu-vfio-0000-5e-00-0"})
	b.mustPrepare(one)
	b.mustPrepare(two)
	b.stop()
	writes := len(k.Writes)
	closeIt := k.Open("qemu-kvm", "0000:5e:00.0")
	if err := os.Remove(filepath.Join(b.options.StateDir, "claims", "v2.claim")); err != nil {
		t.Fatal(err)
	}
	b.options.Forms = `{"default": {"form": "whole"}}`
	b.start()
	b.awaitNames("-"+passedName, "-gpu-vfio-0000-5e-00-0") // though a machine still has the GPU of the lost claim
	closeIt()
	b.await(func() bool { return k.Driver("0000:5e:00.0") == "nvidia" }, "the GPU without a claim is given back")
	if k.Driver(passedGPU) != "vfio-pci" {
		t.Errorf("the machine's GPU has the driver %s after writes %v", k.Driver(passedGPU), k.Writes[writes:])
	}
	b.await(func() bool { return b.unprepare(one) == "" }, "the machine's claim is released")
	if k.Driver(passedGPU) != "nvidia" {
		t.Errorf("released, the driver is %s", k.Driver(passedGPU))
	}
}

func TestPluginNamesProcessThatKeepsGPUFromVirtualMachine(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	// The role's /proc of drivers is the machine's; the processes are the kernel's.
	if err := os.RemoveAll(filepath.Join(b.machine.Root, "proc/driver/nvidia/gpus")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.machine.Root, "proc/driver/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(k.Proc, "driver/nvidia/gpus"), filepath.Join(b.machine.Root, "proc/driver/nvidia/gpus")); err != nil {
		t.Fatal(err)
	}
	closeIt := k.Open("dcgm-exporter", passedGPU)
	claim := b.claim("v1", nil, device{name: passedName})
	if b.refused(claim, "dcgm-exporter (process "); len(k.Writes) > 0 {
		t.Errorf("beside a process: writes %v", k.Writes)
	}
	closeIt()
	b.mustPrepare(claim)
}

func TestPluginRefusesFormVFIOWithoutItsSwitch(t *testing.T) {
	b := newBench(t, gputest.New(t, 1), withForms(`{"default": {"form": "whole"}}`))
	b.label("vfio")
	b.await(func() bool { return strings.Contains(b.formsCondition().Message, "gpus.passthrough.enabled") }, "the condition names the switch")
	b.awaitNames("gpu-0")
	o := b.options
	o.Forms = vfioForms
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "needs --passthrough") {
		t.Errorf("flags: %v", err)
	}
}

func TestPluginDoesNotOfferGPUsInFormVFIOWhenIOMMUIsOff(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.stop()
	if err := os.RemoveAll(filepath.Join(k.Sys, "kernel/iommu_groups")); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.await(func() bool {
		c := b.formsCondition()
		return c.Reason == "FormNotOnGPU" && strings.Contains(c.Message, "IOMMU is off")
	}, "the condition names the IOMMU")
	b.awaitNames()
}

func TestPluginAnswersTheKubeletWhilePCIBusCannotBeRead(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.stop()
	devices := filepath.Join(k.Sys, "bus/pci/devices")
	if err := os.Rename(devices, devices+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(devices, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	claim := b.claim("v1", nil, device{name: passedName})
	b.refused(claim, "list PCI functions")
	if problem := b.unprepare(claim); problem != "" {
		t.Errorf("released: %s", problem)
	}
}

func TestPluginDrainWaitsForVirtualMachines(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	machine := b.claim("v1", nil, device{name: passedName})
	b.mustPrepare(machine)
	printed, ended := &transcript{}, make(chan error, 1)
	go func() { ended <- order(t.Context(), b.options.StateDir, "drain", printed) }()
	b.await(func() bool { return strings.Contains(printed.String(), "claim default/claim-v1") }, "the drain names the claim")
	b.awaitNames("-"+passedName, "-gpu-vfio-0000-5e-00-0")
	b.await(func() bool { return b.unprepare(machine) == "" }, "the machine's claim is released")
	if err := <-ended; err != nil || k.Driver(passedGPU) != "nvidia" {
		t.Fatalf("the drain ended with %v; the driver is %s; it printed:\n%s", err, k.Driver(passedGPU), printed)
	}
	b.refused(b.claim("v2", nil, device{name: passedName}), "gpufabric undrain")
	if err := order(t.Context(), b.options.StateDir, "undrain", io.Discard); err != nil {
		t.Fatal(err)
	}
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
}
