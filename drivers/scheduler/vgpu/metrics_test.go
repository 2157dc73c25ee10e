package vgpu

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"

	"gpufabric.io/drivers/vgpu/annotation"
)

// A series that is there twice fails the whole scrape, so pods of one name in two namespaces have a series each.
func TestSeriesKeepPodsOfOneNameApart(t *testing.T) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	nodes, pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	add := func(to cache.Indexer, object any) {
		t.Helper()
		if err := to.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	add(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
		annotation.NodeRegister: uuid + ",10,4096,NVIDIA-A100,true,hami-core:"}}})
	for _, namespace := range []string{"a", "b"} {
		add(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "train-0", Namespace: namespace, Annotations: map[string]string{
			annotation.PodNode: "n", annotation.PodDevices: uuid + ",NVIDIA,1024,0:;"}},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}}}}}})
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(newSeries(corelisters.NewNodeLister(nodes), corelisters.NewPodLister(pods), annotation.Resources{
		Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory", Cores: "volcano.sh/vgpu-cores"}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, family := range families {
		if !strings.HasSuffix(family.GetName(), "memory_allocation_for_a_certain_pod") {
			continue
		}
		for _, one := range family.GetMetric() {
			if found++; one.GetGauge().GetValue() != 1024 {
				t.Errorf("a pod has %v units, want 1024: %v", one.GetGauge().GetValue(), one)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d series, want one for each pod", found)
	}
}
