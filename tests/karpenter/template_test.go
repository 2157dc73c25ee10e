// Package karpenter_test gives the output of `gpufabric template -o karpenter` to the allocator with which Karpenter simulates the claims
// of a pod on a node that does not exist yet. It is a module of its own for Karpenter's dependencies.
package karpenter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling/dynamicresources"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/fabric/nodetemplate"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/objects"
)

// nodePool is the NodePool of the node. The others are DeviceClasses.
const (
	nodePool = "pool"

	gpu     = "gpu.nvidia.com"
	nic     = "rdma.gpufabric.io"
	channel = "compute-domain-default-channel.nvidia.com"
)

// template is the output of gpufabric template for a node of a profile, in Karpenter's types.
func template(t *testing.T, name string) cloudprovider.DynamicResources {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	var made, out strings.Builder
	if err := objects.Make(t.Context(), objects.Options{Profile: p, Nodes: 1, Driver: objects.GPUFabric}, func(o runtime.Object) error {
		text, err := yaml.Marshal(o)
		fmt.Fprintf(&made, "---\n%s", text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(made.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	command := nodetemplate.Command(host.Host{Stdout: &out})
	command.SetArgs([]string{"--file", path, "-o", "karpenter"})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, document, _ := strings.Cut(out.String(), "---\n")
	return read(t, document)
}

// read reads a DynamicResourceTemplate: Karpenter's types have handles in the place of names, and no JSON.
func read(t *testing.T, document string) (r cloudprovider.DynamicResources) {
	t.Helper()
	var object struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Spec            struct {
			ResourceSliceTemplates []struct {
				Driver, PoolName string
				Devices          []resourceapi.Device
				SharedCounters   []resourceapi.CounterSet
			}
			AttributeBindings []struct {
				Attribute resourceapi.QualifiedName
				Devices   []string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	ids := map[string]cloudprovider.DeviceID{}
	for _, s := range object.Spec.ResourceSliceTemplates {
		slice := &cloudprovider.ResourceSliceTemplate{Driver: unique.Make(s.Driver), SharedCounters: s.SharedCounters,
			Pool: cloudprovider.ResourcePool{Name: unique.Make(s.PoolName)}}
		for _, d := range s.Devices {
			slice.Devices = append(slice.Devices, cloudprovider.Device{Name: unique.Make(d.Name), Attributes: d.Attributes, Capacity: d.Capacity,
				AllowMultipleAllocations: ptr.Deref(d.AllowMultipleAllocations, false), ConsumesCounters: d.ConsumesCounters})
			ids[d.Name] = cloudprovider.DeviceID{Driver: slice.Driver, Pool: slice.Pool.Name, Device: unique.Make(d.Name)}
		}
		r.ResourceSliceTemplates = append(r.ResourceSliceTemplates, slice)
	}
	for _, b := range object.Spec.AttributeBindings {
		binding := &cloudprovider.AttributeBinding{Attribute: b.Attribute}
		for _, name := range b.Devices {
			binding.Devices = append(binding.Devices, ids[name])
		}
		r.AttributeBindings = append(r.AttributeBindings, binding)
	}
	return r
}

// launched is a node that Karpenter considers: it would be of the template's machine.
type launched struct {
	name   string
	slices []dynamicresources.ResourceSlice
}

func (n launched) ID() dynamicresources.NodeClaimID        { return unique.Make("node-claim") }
func (n launched) NodeName() string                        { return "" }
func (n launched) NodePoolID() dynamicresources.NodePoolID { return unique.Make(nodePool) }
func (n launched) Requirements() scheduling.Requirements   { return scheduling.NewRequirements() }
func (n launched) InstanceTypes() []dynamicresources.InstanceTypeID {
	return []dynamicresources.InstanceTypeID{unique.Make(n.name)}
}
func (n launched) ResourceSlices() map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice {
	return map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice{unique.Make(n.name): n.slices}
}

// classes are those of the chart that the claims name.
func classes() []client.Object {
	var out []client.Object
	for name, expression := range map[string]string{
		gpu: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
		nic: "device.driver == 'rdma.gpufabric.io'",
		channel: "device.driver == 'compute-domain.nvidia.com' && " +
			"device.attributes['compute-domain.nvidia.com'].type == 'channel'",
	} {
		out = append(out, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}})
	}
	return out
}

// ask is one request of a claim.
type ask struct {
	class, selector string
	count           int64
}

func TestTemplateIsAllocatedByKarpentersSimulation(t *testing.T) {
	const (
		product = "device.attributes['gpu.nvidia.com'].productName.contains('%s')"
		memory  = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('%s'))"
	)
	for name, c := range map[string]struct {
		profile string
		asks    []ask
		match   string
		fits    bool
	}{
		"one GPU":                        {"h100-hgx", []ask{{gpu, "", 1}}, "", true},
		"all GPUs":                       {"h100-hgx", []ask{{gpu, "", 8}}, "", true},
		"one GPU too many":               {"h100-hgx", []ask{{gpu, "", 9}}, "", false},
		"a product":                      {"gb200-nvl72", []ask{{gpu, fmt.Sprintf(product, "GB200"), 4}}, "", true},
		"another product":                {"gb200-nvl72", []ask{{gpu, fmt.Sprintf(product, "H100"), 1}}, "", false},
		"memory":                         {"gb200-nvl72", []ask{{gpu, fmt.Sprintf(memory, "100Gi"), 1}}, "", true},
		"more memory than the GPUs have": {"gb200-nvl72", []ask{{gpu, fmt.Sprintf(memory, "1Ti"), 1}}, "", false},
		"a GPU with its NIC":             {"h100-hgx", []ask{{gpu, "", 1}, {nic, "", 1}}, "resource.kubernetes.io/pcieRoot", true},
		"more NICs below one root":       {"h100-hgx", []ask{{gpu, "", 1}, {nic, "", 8}}, "resource.kubernetes.io/pcieRoot", false},
		"GPUs and a channel of a domain": {"gb200-nvl72", []ask{{gpu, "", 4}, {channel, "", 1}}, "", true},
		"a NIC of a machine without":     {"a10", []ask{{nic, "", 1}}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			resources := template(t, c.profile)
			node := launched{name: c.profile}
			for _, s := range resources.ResourceSliceTemplates {
				node.slices = append(node.slices, dynamicresources.NewTemplateSlice(s))
			}
			bindings := dynamicresources.BuildAttributeBindings(map[string][]*cloudprovider.InstanceType{nodePool: {
				{Name: c.profile, DynamicResources: resources}}})
			scheme := runtime.NewScheme()
			if err := resourceapi.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			allocator := dynamicresources.NewAllocator(nil, dynamicresources.AllocatedDeviceState{}, bindings,
				fake.NewClientBuilder().WithScheme(scheme).WithObjects(classes()...).Build(), nil)
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim"}}
			for i, a := range c.asks {
				request := &resourceapi.ExactDeviceRequest{DeviceClassName: a.class, Count: a.count,
					AllocationMode: resourceapi.DeviceAllocationModeExactCount}
				if a.selector != "" {
					request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: a.selector}}}
				}
				claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i),
					Exactly: request})
			}
			if c.match != "" {
				claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(c.match))}}
			}
			result, err := allocator.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
			if fits := err == nil && len(result.InstanceTypes) == 1; fits != c.fits {
				t.Errorf("fits: %t, %v; want %t", fits, err, c.fits)
			}
		})
	}
}
