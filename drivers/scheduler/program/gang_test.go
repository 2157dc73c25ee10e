package program_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/tests/simcluster/controlplane"
)

// TestPodsOfAGangAreAllPlacedOrNone runs the scheduler with Kubernetes' own gangs, which are alpha: the API and the gates of README.md.
func TestPodsOfAGangAreAllPlacedOrNone(t *testing.T) {
	c := bring(t, controlplane.Options{FeatureGates: map[string]bool{"GenericWorkload": true, "GangScheduling": true},
		APIs: []string{"scheduling.k8s.io/v1alpha2"}})
	c.launch(t.Context(), t, "--feature-gates=GangScheduling=true,GenericWorkload=true")
	c.node(t, "a", gpu(1))
	const members = 3
	group := "train"
	_, err := c.admin.SchedulingV1alpha2().PodGroups("default").Create(t.Context(),
		&schedulingv1alpha2.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: group},
			Spec: schedulingv1alpha2.PodGroupSpec{SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{
				Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: members}}}}, metav1.CreateOptions{})
	must(t, err)
	name := func(i int) string { return fmt.Sprintf("member-%d", i) }
	for i := range members {
		p := shares(pod(name(i), "low", ""), 1, 2000, 0) // a GPU of 4914 units has room for two
		p.Spec.NodeSelector = nil
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
		c.create(t, p)
	}
	for i := range members {
		c.refused(t, name(i))
	}
	for i := range members {
		p, err := c.admin.CoreV1().Pods("default").Get(t.Context(), name(i), metav1.GetOptions{})
		must(t, err)
		if p.Spec.NodeName != "" || p.Annotations[annotation.PodDevices] != "" {
			t.Errorf("%s is on %q with %v, and there is no room for all three", p.Name, p.Spec.NodeName, p.Annotations)
		}
	}
	c.node(t, "b", gpu(2))
	used := map[string]int64{}
	for i := range members {
		lists, err := annotation.ParseShares(c.bound(t, name(i)).Annotations[annotation.PodDevices])
		must(t, err)
		used[lists[0][0].UUID] += lists[0][0].Memory
	}
	if used[gpu(1)]+used[gpu(2)] != members*2000 || used[gpu(1)] > 4914 || used[gpu(2)] > 4914 {
		t.Errorf("the gang has %v, want 6000 units and of no GPU more than its 4914", used)
	}
}
