package charts

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const rackClique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"

// makeRack makes rack 3 of two nodes, each with an IMEX channel. One node is cordoned. Both are removed when the test ends.
func makeRack(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	nodes, slices := admin.CoreV1().Nodes(), admin.ResourceV1().ResourceSlices()
	for i := range 2 {
		name, kind := fmt.Sprintf("rack-3-node-%d", i), "channel"
		node, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{"nvidia.com/gpu.clique": rackClique, "topology.kubernetes.io/rack": "3"}},
			Spec: corev1.NodeSpec{Unschedulable: i == 1},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "compute-domain.nvidia.com", NodeName: &name,
			Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "channel-0",
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: &kind}}}},
		}}
		if _, err := slices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, err := range []error{slices.Delete(context.Background(), name, metav1.DeleteOptions{}),
				nodes.Delete(context.Background(), name, metav1.DeleteOptions{})} {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// warnsOfADomainThatDoesNotFit runs kubectl, which shows the warning of a webhook with the rights that the chart gives it.
func warnsOfADomainThatDoesNotFit(t *testing.T, shell func(*testing.T, string) string) {
	t.Helper()
	create := func(nodes int) string {
		return shell(t, fmt.Sprintf("kubectl create --dry-run=server --filename - <<'EOF'\n{apiVersion: resource.nvidia.com/v1beta1, "+
			"kind: ComputeDomain, metadata: {name: planned}, spec: {numNodes: %d, channel: {resourceClaimTemplate: {name: planned}}}}\nEOF\n",
			nodes))
	}
	said := create(2)
	// On a busy machine the webhook stops reading the cluster when its time is over, and then gives no warning.
	for end := time.Now().Add(5 * time.Minute); !strings.Contains(said, "Warning") && time.Now().Before(end); time.Sleep(time.Second) {
		said = create(2)
	}
	for _, want := range []string{
		"Warning: 2 nodes do not fit rack 3 (NVLink clique " + rackClique + "): 1 of 2 healthy",
		"Warning: not healthy there: rack-3-node-1 (cordoned)",
		"computedomain.resource.nvidia.com/planned created (server dry run)",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("kubectl does not say %q:\n%s", want, said)
		}
	}
	if said := create(1); strings.Contains(said, "Warning") {
		t.Errorf("a domain that fits: %s", said)
	}
}
