package provider

import (
	"context"
	"os"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"gpufabric.io/provider/internal/apiserver"
)

// installCRD applies a CRD from a file, returns when its kind is served, and removes it with the test.
func installCRD(t testing.TB, s *apiserver.Server, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	crd := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal(text, &crd.Object))
	crds := s.Dynamic.Resource(customResourceDefinitions)
	_, err = crds.Create(t.Context(), crd, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := crds.Delete(ctx, crd.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete CRD %s: %v", crd.GetName(), err)
		}
		until(t, ctx, "CRD "+crd.GetName()+" is gone", func() bool {
			_, err := crds.Get(ctx, crd.GetName(), metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version, _ := versions[0].(map[string]any)["name"].(string)
	until(t, t.Context(), plural+" are served", func() bool {
		_, err := s.Dynamic.Resource(
			schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		).List(
			t.Context(),
			metav1.ListOptions{},
		)
		return err == nil
	})
}

// until waits for something about CRDs, of which the API server sends no event that would come after the fact.
func until(t testing.TB, ctx context.Context, what string, holds func() bool) { //nolint:revive // t comes first in test helpers
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("after a minute it is not so that %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
