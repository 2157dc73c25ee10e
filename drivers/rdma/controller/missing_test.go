package controller

import (
	"context"
	"sync"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func TestControllerRunsWithoutTheCRD(t *testing.T) {
	config, _ := serve(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensions.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "rdmapools.gpufabric.io"}}
	if err := c.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)
		time.Sleep(10 * time.Millisecond)
	}
	m, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	works := make(chan struct{})
	err = m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		close(works)
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() { ended <- m.Start(ctx) })
	defer func() { cancel(); group.Wait() }()
	select {
	case <-works:
	case err := <-ended:
		t.Fatalf("the manager ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the other runnable does not run")
	}
	// The library looks for the kind every 10 s; a second failed look must not end the manager either.
	select {
	case err := <-ended:
		t.Errorf("the manager ended: %v", err)
	case <-time.After(12 * time.Second):
	}
}
