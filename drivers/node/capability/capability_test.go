package capability_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/capability/capabilitytest"
)

func server(client *fake.Clientset, version version.Info) capability.Server {
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version
	return capability.Server{Client: client, Driver: "gpu.nvidia.com", Node: "n1", Pool: "n1-gpu"}
}

func TestMissingNamesTheGatesWhoseFieldsTheServerDrops(t *testing.T) {
	for _, want := range []capability.Missing{{}, {Taints: true}, {Counters: true}, {Shares: true},
		{Taints: true, Counters: true, Shares: true}} {
		client := fake.NewClientset()
		capabilitytest.DryRuns(client, func() capability.Missing { return want })
		got, err := server(client, version.Info{GitVersion: "v1.36.3", Major: "1", Minor: "36"}).Missing(t.Context())
		if err != nil || got != want {
			t.Errorf("missing %+v (error %v), want %+v", got, err, want)
		}
		if list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Errorf("asking has written %d slices (error %v)", len(list.Items), err)
		}
	}
}

// kubernetes#139034 was mended in 1.36.2.
func TestMissingHasCountedSharesWhenTheSchedulerForgetsCounters(t *testing.T) {
	for text, want := range map[string]bool{"v1.36.0-rc.1": true, "v1.36.0": true, "v1.36.1-gke.100": true, "v1.36.2": false, "v1.36.3": false,
		"v1.35.9": false, "v1.37.0": false, "unknown": false} {
		client := fake.NewClientset()
		capabilitytest.DryRuns(client, capabilitytest.All)
		got, err := server(client, version.Info{GitVersion: text}).Missing(t.Context())
		if err != nil || got.CountedShares != want {
			t.Errorf("%s: counted shares missing: %v (error %v), want %v", text, got.CountedShares, err, want)
		}
	}
}

func TestMissingIsRefusedWhenDryRunsAre(t *testing.T) {
	slices := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	for name, refusal := range map[string]error{
		"no right":                       apierrors.NewForbidden(slices, "probe", errors.New("no")),
		"a webhook without dry runs":     apierrors.NewBadRequest("admission webhook does not support dry run"),
		"an API that is not served":      apierrors.NewNotFound(slices, ""),
		"a server that is too busy":      apierrors.NewTooManyRequests("later", 1),
		"a policy that asks for a label": apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "probe", nil),
		"a field that it has not like": apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "probe",
			field.ErrorList{field.Required(field.NewPath("spec", "sharedCounters"), "")}),
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
		missing, err := server(client, version.Info{GitVersion: "v1.36.3"}).Missing(t.Context())
		switch {
		case name == "a field that it has not like":
			if err != nil || missing != (capability.Missing{Taints: true, Counters: true, Shares: true}) {
				t.Errorf("%s: missing %+v, error %v", name, missing, err)
			}
		case err == nil, capability.Refused(err) == apierrors.IsTooManyRequests(refusal):
			t.Errorf("%s: error %v, refused %v", name, err, capability.Refused(err))
		}
	}
}

func TestStateNamesTheEmulatedVersion(t *testing.T) {
	s := server(fake.NewClientset(), version.Info{GitVersion: "v1.36.3", Major: "1", Minor: "36", EmulationMajor: "1", EmulationMinor: "35"})
	if got, err := s.State(t.Context()); err != nil || got.Version != "v1.36.3 emulating 1.35" {
		t.Errorf("state %+v, error %v", got, err)
	}
}

func device(name string, change ...func(*resourceapi.Device)) resourceapi.Device {
	d := resourceapi.Device{Name: name}
	for _, c := range change {
		c(&d)
	}
	return d
}

func TestWithholdOmitsDevicesThatNeedMissingFields(t *testing.T) {
	faulty := func(d *resourceapi.Device) {
		d.Taints = []resourceapi.DeviceTaint{{Key: "gpufabric.io/xid", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	noted := func(d *resourceapi.Device) {
		d.Taints = []resourceapi.DeviceTaint{{Key: "gpufabric.io/note", Effect: resourceapi.DeviceTaintEffectNone}}
	}
	counted := func(d *resourceapi.Device) {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-0"}}
	}
	share := func(d *resourceapi.Device) { d.AllowMultipleAllocations = ptr.To(true) }
	all := []resourceapi.Device{device("plain"), device("faulty", faulty), device("noted", noted), device("counted", counted),
		device("share", share), device("counted-share", counted, share)}
	for _, c := range []struct {
		missing capability.Missing
		gone    []string
		gate    string
	}{
		{capability.Missing{}, nil, ""},
		{capability.Missing{Taints: true}, []string{"faulty"}, "DRADeviceTaints"},
		{capability.Missing{Counters: true}, []string{"counted", "counted-share"}, "DRAPartitionableDevices"},
		{capability.Missing{Shares: true}, []string{"counted-share", "share"}, "DRAConsumableCapacity"},
		{capability.Missing{CountedShares: true}, []string{"counted-share"}, "1.36.2"},
	} {
		given := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": {Slices: []resourceslice.Slice{
			{SharedCounters: []resourceapi.CounterSet{{Name: "gpu-0"}}}, {Devices: slices.Clone(all)}}}}}
		got, err := c.missing.Withhold(given)
		var withheld capability.Withheld
		errors.As(err, &withheld)
		if !slices.Equal(withheld.Devices, c.gone) || (err != nil) != (c.gone != nil) || err != nil && !strings.Contains(err.Error(), c.gate) {
			t.Errorf("%+v: error %v, want one about %v and %q", c.missing, err, c.gone, c.gate)
		}
		var kept []string
		for _, slice := range got.Pools["n1"].Slices {
			if c.missing.Counters && len(slice.SharedCounters) > 0 {
				t.Errorf("%+v: counters are left", c.missing)
			}
			for _, d := range slice.Devices {
				kept = append(kept, d.Name)
				if c.missing.Taints && len(d.Taints) > 0 {
					t.Errorf("%+v: taints of %s are left", c.missing, d.Name)
				}
			}
		}
		if len(kept) != len(all)-len(c.gone) || !slices.Contains(kept, "plain") {
			t.Errorf("%+v: kept %v", c.missing, kept)
		}
		if len(given.Pools["n1"].Slices[1].Devices) != len(all) || given.Pools["n1"].Slices[1].Devices[2].Taints == nil {
			t.Errorf("%+v: the given resources are changed", c.missing)
		}
	}
}
