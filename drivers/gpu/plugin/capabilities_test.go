package plugin

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/capability"
)

// A server whose gates are off would publish a MIG placement beside its whole GPU, and a GPU without its taint.
func TestPoolHasHealthyWholeGPUsWhenTheServerDropsFields(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBench(t, m)
	b.slices()
	b.stop()
	b.missing = capability.Missing{Taints: true, Counters: true, Shares: true}
	b.start()
	b.awaitPublished("gpu-0 gpu-1")
	b.awaitCondition(corev1.ConditionFalse, "NeedsKubernetesFeature", "DRAPartitionableDevices, DRAConsumableCapacity")
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if len(s.Spec.SharedCounters)+len(d.ConsumesCounters)+len(d.Taints) > 0 || d.AllowMultipleAllocations != nil {
				t.Errorf("%s has fields that are dropped: %+v", d.Name, d)
			}
		}
	}

	m.GPUs[1].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	m.Event(1, nvml.EventTypeXidCriticalError, 119)
	b.awaitPublished("gpu-0")
	if message := b.event("Node", "NeedsKubernetesFeature"); !strings.Contains(message, "gpu-1") {
		t.Errorf("the Event on the node reads %q", message)
	}

	// The cluster was upgraded.
	b.stop()
	b.missing = capability.Missing{}
	b.start()
	b.taints("gpu-1-mig-1g5gb-19-3", "gpu.nvidia.com/xid=119:NoSchedule")
}

func TestPoolHasNoShareBesideOtherFormsWhenTheSchedulerIgnoresCounters(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	b.slices()
	b.stop()
	b.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.1"}
	b.start()
	b.await(func() bool { return !strings.Contains(b.published(), "shared") }, "withdrawal of the share")
	b.awaitCondition(corev1.ConditionFalse, "NeedsKubernetesFeature", "1.36.2")
	if !strings.Contains(b.published(), "gpu-0-mig-1g5gb-19-0") {
		t.Errorf("published are %s, want MIG placements beside the whole GPU", b.published())
	}
}

// An administrator switches the gates off while pods have a MIG device and a share.
func TestClaimsOutlastGatesThatAreSwitchedOff(t *testing.T) {
	b := newBench(t, gputest.New(t, 3))
	b.slices()
	partition := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	share := b.claim("u2", nil, device{name: "gpu-1-shared", share: "s1", capacity: map[string]string{"memory": "10Gi"}})
	b.mustPrepare(partition)
	b.mustPrepare(share)
	b.stop()
	b.missing = capability.Missing{Taints: true, Counters: true, Shares: true}
	b.start()
	b.awaitPublished("gpu-0-mig-1g5gb-19-0 gpu-2") // nothing else of GPUs in use, which would be given out beside it
	b.mustPrepare(partition)                       // the kubelet asks again after its own restart
	b.mustPrepare(share)
	for _, c := range []string{"u1", "u2"} {
		b.await(func() bool { return b.unprepare(b.get(c)) == "" }, "claim "+c+" is given back")
	}
	b.awaitPublished("gpu-0 gpu-1 gpu-2")
}
