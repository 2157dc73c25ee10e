package plugin

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// create makes an object of the API group gpufabric.io. The role sees it also where it comes between one of its lists and the watch
// after it: the fake API server begins a watch at the list's resource version.
func (b *bench) create(resource, kind, name string, spec map[string]any, labels ...map[string]any) {
	b.Helper()
	b.made++
	metadata := map[string]any{"name": name, "uid": fmt.Sprintf("%s-%d", name, b.made), "generation": int64(1)}
	for _, l := range labels {
		metadata["labels"] = l
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": kind, "metadata": metadata, "spec": spec,
	}}
	if _, err := b.objects.Resource(v1alpha1.SchemeGroupVersion().WithResource(resource)).Create(context.Background(), object,
		metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}
