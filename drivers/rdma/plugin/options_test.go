package plugin

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/node/options"
)

func TestOptionsNameEveryWrongFlag(t *testing.T) {
	o := Options{Node: options.Node{DriverRoot: "/", DevRoot: "/dev", CDIRoot: "/cdi", KubeletRoot: "kubelet", StateDir: "/state",
		NodeName: "n1"}}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--kubelet-root") || strings.Contains(err.Error(), "--slots") {
		t.Errorf("without DRA: %v", err)
	}
	o.Client = fake.NewClientset()
	for _, slots := range []int{-1, 0, 100_001} {
		o.Slots = slots
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--slots") || !strings.Contains(err.Error(), "--kubelet-root") {
			t.Errorf("%d slots: %v", slots, err)
		}
	}
	o.Slots, o.KubeletRoot = 1, "/kubelet"
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}
