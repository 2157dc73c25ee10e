package diagnosis_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

// A scheduler reports the same sentence whether devices are taken or left out.
func TestDiagnoseNamesTheSchedulersGateWhenFreeDevicesConsumeCounters(t *testing.T) {
	const says = "0/1 nodes are available: 1 cannot allocate all claims."
	waiting := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "p", UID: "p", CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("gpu")}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: says}}}}
	gpus := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}}
	gpus.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.nvidia.com'"}}}
	wanted := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "gpu", UID: "c"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpus.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Count: 1}}}}}}
	slice := func(name string, spec resourceapi.ResourceSliceSpec) resourceapi.ResourceSlice {
		spec.Driver, spec.NodeName = "gpu.nvidia.com", ptr.To("n1")
		spec.Pool = resourceapi.ResourcePool{Name: "n1-gpu", Generation: 1, ResourceSliceCount: 2}
		return resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	memory := map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("80Gi")}}
	for name, counted := range map[string]bool{"all devices have counters": true, "no device has": false} {
		t.Run(name, func(t *testing.T) {
			device := resourceapi.Device{Name: "gpu-0"}
			if counted {
				device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-0", Counters: memory}}
			}
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				LastHeartbeatTime: metav1.NewTime(time.Now())}}
			report, err := diagnosis.Diagnose(&snapshot.Snapshot{Nodes: []corev1.Node{node}, Pods: []corev1.Pod{waiting},
				Claims: []resourceapi.ResourceClaim{wanted}, Classes: []resourceapi.DeviceClass{gpus},
				Slices: []resourceapi.ResourceSlice{
					slice("a", resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: "gpu-0", Counters: memory}}}),
					slice("b", resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device}})}},
				diagnosis.Subject{Kind: diagnosis.Pod, Namespace: tenant, Name: "p"})
			if err != nil {
				t.Fatal(err)
			}
			all := ""
			if report.First != nil {
				report.Behind = append(report.Behind, *report.First)
			}
			for _, f := range report.Behind {
				all += f.Code + ": " + f.Says + "\n"
			}
			if !strings.Contains(all, "SchedulerRefuses: "+says) || strings.Contains(all, "DRAPartitionableDevices") != counted {
				t.Errorf("found:\n%s", all)
			}
		})
	}
}
