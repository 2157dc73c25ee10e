package devices_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/gpu/devices"
)

// monitorClass is the DeviceClass of the manifest.
type monitorClass struct{ class *resourceapi.DeviceClass }

func (m monitorClass) Get(string) (*resourceapi.DeviceClass, error) { return m.class, nil }
func (m monitorClass) List() ([]*resourceapi.DeviceClass, error)    { return nil, nil }

// monitorManifest reads examples/manifests/gpu-monitor.yaml.
func monitorManifest(t *testing.T) (monitorClass, resourceapi.ResourceClaimSpec) {
	t.Helper()
	content, err := os.ReadFile("../../../examples/manifests/gpu-monitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	class, template := &resourceapi.DeviceClass{}, &resourceapi.ResourceClaimTemplate{}
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "DeviceClass":
			err = yaml.UnmarshalStrict(document, class)
		case "ResourceClaimTemplate":
			err = yaml.UnmarshalStrict(document, template)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return monitorClass{class}, template.Spec.Spec
}

// TestMonitorGetsOneDeviceOfEachGPUInEveryForm allocates the claim of examples/manifests/gpu-monitor.yaml as kube-scheduler does, on a free
// node and on one where a tenant has a device of the first GPU. The allocator counts capacities and counters for admin access too, which
// docs/limitations.md names.
func TestMonitorGetsOneDeviceOfEachGPUInEveryForm(t *testing.T) {
	class, spec := monitorManifest(t)
	ten := devices.Profile{Name: "ten", Share: devices.Share{Memory: 10 * gib, Cores: 25}}
	static := map[string][]devices.Instance{}
	for _, g := range eight() {
		static[g.UUID] = []devices.Instance{{ProfileID: 14, Start: 0, UUID: "MIG-" + g.UUID}, {ProfileID: 19, Start: 4, UUID: "MIG-1" + g.UUID}}
	}
	const free, others = "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7", "gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7"
	for _, c := range []struct {
		name    string
		options devices.Options
		tenant  ask
		busy    string // the GPUs that the monitor gets beside the tenant
	}{
		{"whole", devices.Options{}, ask{device: "gpu-0"}, free},
		{"shareable, in part taken", devices.Options{Forms: forms(t, "shareable")}, ask{device: "gpu-0", memory: "1Gi"}, others},
		{"shares", devices.Options{Forms: forms(t, "shares_4")}, ask{device: "gpu-0"}, free},
		{"dynamic MIG, small instances", devices.Options{Forms: forms(t, "mig_1g.5gb")}, ask{device: "gpu-0-mig-1g5gb-19-0"}, free},
		{"dynamic MIG, profiles that overlap", devices.Options{Forms: forms(t, "mig_1g.5gb_3g.20gb")}, ask{device: "gpu-0-mig-3g20gb-9-0"}, ""},
		{"static MIG", devices.Options{Static: static}, ask{device: "gpu-0-mig-2g10gb-14-0"}, free},
		{"VGPUProfile", devices.Options{Forms: forms(t, "profiles"), Profiles: []devices.Profile{ten}}, ask{device: "gpu-0-shared-ten"}, free},
		{"flexible", devices.Options{Forms: flexible}, ask{device: "gpu-0-mig-1g5gb-19-0"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScheduler(t, devices.NewPool(node(eight()...), c.options))
			for _, want := range []string{free, c.busy} {
				var gpus []string
				for _, result := range s.monitor(class, spec) {
					if result.AdminAccess == nil || !*result.AdminAccess {
						t.Errorf("%s without admin access", result.Device)
					}
					gpus = append(gpus, devices.GPUOf(result.Device))
				}
				slices.Sort(gpus)
				if got := strings.Join(gpus, " "); got != want {
					t.Errorf("devices of %q, want %q", got, want)
				}
				if len(s.allocated.AllocatedDevices)+len(s.allocated.AllocatedSharedDeviceIDs) == 0 { // the monitor holds nothing
					if _, ok := s.allocate(c.tenant); !ok {
						t.Fatalf("%+v is refused", c.tenant)
					}
				}
			}
		})
	}
}

// monitor allocates the claim; nil: it is not allocated.
func (s *scheduler) monitor(class monitorClass, spec resourceapi.ResourceClaimSpec) []resourceapi.DeviceRequestAllocationResult {
	s.t.Helper()
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(context.Background(), features, s.allocated, class, s.slices,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		s.t.Fatal(err)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "monitor", Namespace: "gpu-monitoring", UID: "m"}, Spec: spec}
	results, err := allocator.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		s.t.Fatal(err)
	}
	if len(results) != 1 {
		return nil
	}
	return results[0].Devices.Results
}
