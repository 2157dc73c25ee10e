package plugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/instances"
)

// slowInstances takes a time for each container's MIG instances.
type slowInstances struct {
	hook.Instances
	takes time.Duration
}

func (s slowInstances) Give(ctx context.Context, _ instances.Owner, asks []instances.Ask) ([]instances.Instance, error) {
	select {
	case <-time.After(s.takes):
		return []instances.Instance{{GPU: asks[0].GPU.UUID, UUID: "MIG-1", MemoryMiB: 9856}}, nil
	case <-ctx.Done():
		return nil, instances.ErrPending
	}
}

// The kubelet fails a pod whose allocation fails, and does not try again.
func TestAllocateWaitsForMIGInstancesThatTakeLong(t *testing.T) {
	for takes, want := range map[time.Duration]error{10 * time.Second: nil, time.Hour: instances.ErrPending} {
		synctest.Test(t, func(t *testing.T) {
			const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
			n := withoutNRI(t, fake.NewClientset(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cut", UID: "uid-cut",
					Annotations: map[string]string{annotation.PodDevices: uuid + ",NVIDIA,900,0:;"}},
				Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending},
			}), uuid)
			n.hook.SharedGPUs().Cards[0].Mode = annotation.ModeMIG
			n.hook.Instances = slowInstances{takes: takes}
			n.hook.Capabilities = func(*inventory.GPU, instances.Instance) ([]*specs.DeviceNode, error) { return nil, nil }
			if _, err := n.Allocate(t.Context(), []string{uuid + "-0"}); !errors.Is(err, want) {
				t.Errorf("instances that take %s: got %v, want %v", takes, err, want)
			}
		})
	}
}
