package release

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/domain"
)

const fabricClique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"

// computeDomain is one of a namespace; clique is its label, empty for none.
func computeDomain(namespace, name, clique string) *unstructured.Unstructured {
	one := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain"}}
	one.SetNamespace(namespace)
	one.SetName(name)
	if clique != "" {
		one.SetLabels(map[string]string{v1beta1.LabelClique: clique})
	}
	return one
}

// cliqueManager is a manager of a release in namespace fabric, whose controller keeps ComputeDomains for cliques.
func cliqueManager(objects ...runtime.Object) *Manager {
	controller := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fabric", Name: "gpufabric-controller",
		Labels: map[string]string{"app.kubernetes.io/part-of": "gpufabric", "app.kubernetes.io/component": "controller"}}}
	controller.Spec.Template.Spec.Containers = []corev1.Container{{Name: "controller",
		Args: []string{"controller", "--imex=Clique", "--leader-election=true"}}}
	kinds := map[schema.GroupVersionResource]string{domain.Kind.GVR(): "ComputeDomainList"}
	return &Manager{namespace: "fabric", client: &cluster.Client{
		Typed:   fake.NewClientset(controller),
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...),
	}}
}

// keptBy is the controller's argument for keeping them or not.
func keptBy(t *testing.T, m *Manager) string {
	t.Helper()
	controller, err := m.client.Typed.AppsV1().Deployments("fabric").Get(t.Context(), "gpufabric-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return controller.Spec.Template.Spec.Containers[0].Args[1]
}

func TestUninstallWaitsUntilControllerRemovesCliqueDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := cliquePrefix + fabricClique
		m := cliqueManager(computeDomain("fabric", name, fabricClique), computeDomain("user", "rack", ""))
		done := make(chan error, 1)
		go func() { done <- m.retireCliques(t.Context()) }()
		time.Sleep(10 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("the drivers would go before the domain of the clique: %v", err)
		default:
		}
		if got := keptBy(t, m); got != "--imex=Domain" {
			t.Errorf("the controller runs with %s", got)
		}
		// The controller obeys the argument.
		domains := m.client.Dynamic.Resource(domain.Kind.GVR()).Namespace("fabric")
		if err := domains.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestUninstallNamesCliqueDomainThatRemains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := cliquePrefix + fabricClique
		m := cliqueManager(computeDomain("fabric", name, fabricClique))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var blocked *BlockedError
		if err := m.retireCliques(ctx); !errors.As(err, &blocked) || len(blocked.Blockers) != 1 ||
			blocked.Blockers[0].What != "ComputeDomain fabric/"+name {
			t.Errorf("error %v", err)
		}
	})
}

func TestUninstallIgnoresControllerWithoutCliques(t *testing.T) {
	m := cliqueManager(computeDomain("user", "rack", ""), computeDomain("fabric", "made-by-a-user", fabricClique))
	if err := m.retireCliques(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := keptBy(t, m); got != "--imex=Clique" {
		t.Errorf("the controller runs with %s", got)
	}
}
