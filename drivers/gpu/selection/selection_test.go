package selection

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

var profiles = v1alpha1.SchemeGroupVersion().WithResource("vgpuprofiles")

func profile(name string, labels map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": "VGPUProfile", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"nodeSelector": map[string]any{"matchLabels": labels}},
	}}
}

// The first lists' events come in any order relative to the moments when the lists count as complete. Existing objects are reported
// each time.
func TestExistingObjectsAreReported(t *testing.T) {
	for range 50 {
		reported := make(chan []v1alpha1.VGPUProfile, 8)
		ctx, cancel := context.WithCancel(t.Context())
		n := Node{
			Name: "n1",
			Core: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"rack": "a"}}}),
			Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
				map[schema.GroupVersionResource]string{profiles: "VGPUProfileList"},
				profile("here", map[string]any{"rack": "a"}), profile("elsewhere", map[string]any{"rack": "b"})),
		}
		ended := make(chan error, 1)
		go func() {
			ended <- Watch(ctx, n, profiles, func(o *v1alpha1.VGPUProfile) *metav1.LabelSelector { return o.Spec.NodeSelector },
				func(selected []v1alpha1.VGPUProfile) { reported <- selected })
		}()
		select {
		case selected := <-reported:
			if len(selected) != 1 || selected[0].Name != "here" {
				t.Errorf("told of %d profiles, want the one named here: %+v", len(selected), selected)
			}
		case <-time.After(time.Minute):
			t.Fatal("nothing told of what stood before")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// A node's reports are removed with its Node object, so the objects are reported again for the next one of its name.
func TestWatchReportsWhenTheNodeRegistersAgain(t *testing.T) {
	reported := make(chan []v1alpha1.VGPUProfile, 8)
	ctx, cancel := context.WithCancel(t.Context())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "first"}}
	core := fake.NewClientset(node)
	n := Node{Name: "n1", Core: core, Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{profiles: "VGPUProfileList"}, profile("here", nil))}
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, n, profiles, func(*v1alpha1.VGPUProfile) *metav1.LabelSelector { return nil },
			func(selected []v1alpha1.VGPUProfile) { reported <- selected })
	}()
	<-reported
	again := node.DeepCopy()
	again.UID = "second"
	// A watch may show a deletion and the next object of the name as one change.
	if _, err := core.CoreV1().Nodes().Update(t.Context(), again, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case selected := <-reported:
		if len(selected) != 1 {
			t.Errorf("%d profiles, want 1", len(selected))
		}
	case <-time.After(time.Minute):
		t.Error("nothing is reported for the Node that registered again")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
