package plugin

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// The API server may end between executing a request and answering it.
func TestNodeRemovesALabelWhoseWriteHadNoAnswer(t *testing.T) {
	n := newTestNode(t, inFabric)
	lost := true
	n.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !lost {
			return false, nil, nil
		}
		lost = false
		labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "2",
			Labels: map[string]string{v1beta1.LabelComputeDomain: string(domainUID)}}}
		if err := n.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), labelled, ""); err != nil {
			t.Error(err)
		}
		return true, nil, errors.New("the connection ended")
	})
	if err := n.node.join(t.Context(), domainUID); err == nil {
		t.Fatal("the lost answer was taken for one")
	}
	if label := n.label(t, v1beta1.LabelComputeDomain); label != string(domainUID) {
		t.Fatalf("the node's label is %q; the test is wrong", label)
	}
	if err := n.node.leave(t.Context(), domainUID); err != nil {
		t.Fatal(err)
	}
	if label := n.label(t, v1beta1.LabelComputeDomain); label != "" {
		t.Errorf("the node is still labelled with %s", label)
	}
}

// The controller of ResourceSlices waits for its first list, and ends that wait with an error.
func TestPluginStopsWithoutErrorWhenTheAPIServerIsAway(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no API server answers")
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- publish(ctx, n.plugin, nodeName, n.preparer) }()
	cancel()
	n.plugin.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
