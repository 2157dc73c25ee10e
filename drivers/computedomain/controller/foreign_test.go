package controller_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/controller"
)

const (
	system = "gpufabric-system"
	rack   = "69a19a31-f41c-45a5-8245-579b6bce5bdd.1"
)

// beside is a cluster whose CRD of ComputeDomain two owners apply.
type beside struct {
	client.Client
	t      *testing.T
	config *rest.Config
}

func newBeside(t *testing.T) *beside {
	t.Helper()
	server := apiserver.Start(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &beside{t: t, config: &rest.Config{Host: server.URL, BearerToken: apiserver.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}, QPS: -1}}
	var err error
	if b.Client, err = client.New(b.config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return b
}

// definition is this project's CRD; theirs: with the schema of NVIDIA's GPU operator 26.7, whose status has a word and nodes.
func definition(t *testing.T, theirs bool) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile("../../../charts/gpufabric/files/crds/resource.nvidia.com_computedomains.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		t.Fatal(err)
	}
	if !theirs {
		return crd
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version := versions[0].(map[string]any)
	delete(version, "additionalPrinterColumns")
	word := func() map[string]any {
		return map[string]any{"type": "string", "default": "NotReady", "enum": []any{"Ready", "NotReady"}}
	}
	node := map[string]any{"type": "object", "required": []any{"name", "ipAddress", "cliqueID", "index"}, "properties": map[string]any{
		"name": map[string]any{"type": "string"}, "ipAddress": map[string]any{"type": "string"}, "cliqueID": map[string]any{"type": "string"},
		"index": map[string]any{"type": "integer"}, "status": word()}}
	status := map[string]any{"type": "object", "required": []any{"status"}, "properties": map[string]any{"status": word(),
		"nodes": map[string]any{"type": "array", "items": node, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"}}}}
	if err := unstructured.SetNestedMap(version, status, "schema", "openAPIV3Schema", "properties", "status"); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	return crd
}

// sync applies a CRD as a GitOps program does: it takes every field.
func (b *beside) sync(crd *unstructured.Unstructured, owner string) {
	b.t.Helper()
	err := b.Apply(b.t.Context(), client.ApplyConfigurationFromUnstructured(crd.DeepCopy()), client.FieldOwner(owner), client.ForceOwnership)
	if err != nil {
		b.t.Fatal(err)
	}
}

// await waits until a condition holds; there is no event for a schema that the API server has taken up.
func (b *beside) await(what string, holds func() bool) {
	b.t.Helper()
	err := wait.PollUntilContextTimeout(b.t.Context(), 100*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		b.t.Fatalf("%s: %v; the clique is %+v", what, err, b.table())
	}
}

// control runs a controller until the function that it returns is called.
func (b *beside) control() (stop func()) {
	b.t.Helper()
	settings := controller.Settings{Namespace: system, Image: "image", ImagePullPolicy: "IfNotPresent", DaemonServiceAccount: "imex",
		IMEX: v1beta1.IMEXClique}
	held, err := settings.Caches()
	if err != nil {
		b.t.Fatal(err)
	}
	manager, err := ctrl.NewManager(b.config, ctrl.Options{Scheme: b.Scheme(), Cache: cache.Options{ByObject: held},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	if err := controller.Add(ctx, manager, record.NewFakeRecorder(1000), settings); err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
}

// table is the ComputeDomain of the clique, or an empty one.
func (b *beside) table() *v1beta1.ComputeDomain {
	domain := &v1beta1.ComputeDomain{}
	_ = b.Get(b.t.Context(), client.ObjectKey{Namespace: system, Name: computedomain.CliqueName(rack)}, domain)
	return domain
}

// channels are the numbers that domains hold, as the node plugins read them.
func (b *beside) channels() map[types.UID]int {
	table := b.table()
	computedomain.Recall(table, system)
	numbers := map[types.UID]int{}
	for _, channel := range table.Status.Channels {
		numbers[types.UID(channel.DomainID)] = channel.Number
	}
	return numbers
}

// join makes a domain and the label of a node whose plugin has a claim of it, and waits for the domain's channel.
func (b *beside) join(name string) types.UID {
	b.t.Helper()
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1beta1.ComputeDomainSpec{
		NumNodes: 1, Channel: v1beta1.ComputeDomainChannelSpec{AllocationMode: v1beta1.AllocationModeSingle,
			ResourceClaimTemplate: v1beta1.ComputeDomainResourceClaimTemplate{Name: name}}}}
	if err := b.Create(b.t.Context(), domain); err != nil {
		b.t.Fatal(err)
	}
	b.await("mode of "+name, func() bool { // for which a node plugin waits
		err := b.Get(b.t.Context(), client.ObjectKeyFromObject(domain), domain)
		computedomain.Recall(domain, system)
		return err == nil && domain.Status.IMEX == v1beta1.IMEXClique
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-of-" + name, Labels: map[string]string{v1beta1.LabelClique: rack,
		computedomain.LabelChannels: "64", computedomain.MemberLabel(domain.UID): ""}}}
	if err := b.Create(b.t.Context(), node); err != nil {
		b.t.Fatal(err)
	}
	b.await("channel of "+name, func() bool { _, has := b.channels()[domain.UID]; return has })
	return domain.UID
}

// The CRDs of the GPU operator since 26.7 are in its chart, whatever it installs besides.
func TestChannelsOutlastASyncOfAnotherOwnersCRD(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it starts an API server")
	}
	b := newBeside(t)
	if err := b.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}); err != nil {
		t.Fatal(err)
	}
	b.sync(definition(t, false), "gpufabric")
	b.await("the CRD", func() bool { return b.List(t.Context(), &v1beta1.ComputeDomainList{}) == nil })
	stop := b.control()
	want := map[types.UID]int{b.join("a"): 0, b.join("b"): 1}
	b.await("status of the clique", func() bool { return len(b.table().Status.Channels) == 2 })

	b.sync(definition(t, true), "gpu-operator")
	b.await("the other schema", func() bool { return len(b.table().Status.Channels) == 0 })
	want[b.join("c")] = 2 // the controller writes the table, and the API server drops what it held
	if got := b.channels(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with the other schema the channels are %v, want %v", got, want)
	}
	stop()
	stop = b.control()
	want[b.join("d")] = 3
	if got := b.channels(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after a restart the channels are %v, want %v", got, want)
	}

	b.sync(definition(t, false), "gpufabric")
	stop()
	stop = b.control() // or a minute later without a restart
	b.await("status with this project's schema", func() bool { return len(b.table().Status.Channels) == 4 })
	stop()
	for _, channel := range b.table().Status.Channels {
		if number, is := want[types.UID(channel.DomainID)]; !is || number != channel.Number {
			t.Errorf("the table has %+v, want %v", channel, want)
		}
	}
}
