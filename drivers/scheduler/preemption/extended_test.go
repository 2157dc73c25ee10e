package preemption

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The pod's containers' use of a resource, and the resulting requests.
func TestDevicesAreCountedAsThePodsContainersRun(t *testing.T) {
	const name = corev1.ResourceName("example.com/gpu")
	container := func(count int64) corev1.Container {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}
		if count > 0 {
			c.Resources.Requests[name] = *resource.NewQuantity(count, resource.DecimalSI)
		}
		return c
	}
	sidecar := func(count int64) corev1.Container {
		c := container(count)
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		return c
	}
	for _, test := range []struct {
		name         string
		first, after []corev1.Container
		want         []int64
	}{
		{"no container wants any", nil, []corev1.Container{container(0)}, nil},
		{"each container has its own", nil, []corev1.Container{container(1), container(0), container(3)}, []int64{3, 1}},
		{"an init container has those of what runs after it", []corev1.Container{container(2)}, []corev1.Container{container(1), container(3)},
			[]int64{3, 1}},
		{"an init container wants more", []corev1.Container{container(6)}, []corev1.Container{container(1), container(3)}, []int64{3, 1, 2}},
		{"the greediest of several counts", []corev1.Container{container(2), container(5), container(3)}, []corev1.Container{container(1)},
			[]int64{1, 4}},
		{"only an init container wants any", []corev1.Container{container(2)}, []corev1.Container{container(0)}, []int64{2}},
		{"a sidecar keeps its own", []corev1.Container{sidecar(1)}, []corev1.Container{container(1)}, []int64{1, 1}},
		{"a sidecar that runs already gives nothing to an init container after it", []corev1.Container{sidecar(2), container(3)},
			[]corev1.Container{container(1)}, []int64{1, 2, 2}},
		{"a sidecar that starts later does", []corev1.Container{container(3), sidecar(2)}, []corev1.Container{container(1)}, []int64{1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: test.first, Containers: test.after}}
			if diff := cmp.Diff(test.want, counts(pod, name)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
