package controller

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/node/capability"
)

// dropping answers dry runs of templates as a server whose gates are off, or with an error.
func dropping(c *cluster, off *atomic.Bool, refusal error) *features {
	answers := interceptor.NewClient(c.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refusal != nil {
				return refusal
			}
			if template, is := o.(*resourceapi.ResourceClaimTemplate); is && off.Load() {
				template.Spec.Spec.Devices.Requests[0].Exactly.Capacity = nil
				template.Spec.Spec.Devices.Requests[0].Exactly.Tolerations = nil
			}
			return w.Create(ctx, o, opts...)
		}})
	return &features{client: answers, namespace: namespace}
}

func TestDomainNamesMissingFeatureGate(t *testing.T) {
	s := newSharedClique(t, 1)
	var off atomic.Bool
	off.Store(true)
	s.reconciler.features, s.other.features = dropping(s.cluster, &off, nil), dropping(s.cluster, &off, nil)
	d := newDomain("d", 1)
	s.must(s.Create(t.Context(), d))
	learn := func() (changed int) {
		for _, f := range []*features{s.reconciler.features, s.other.features} {
			if !f.learn(t.Context(), func() { changed++ }) {
				t.Error("nothing was learnt")
			}
		}
		return changed
	}
	ready := func() metav1.Condition {
		for range 6 {
			s.reconcile(d.UID)
			s.now = s.now.Add(wordsPause)
		}
		return *meta.FindStatusCondition(s.domain("d").Status.Conditions, v1beta1.ConditionReady)
	}
	if learn() != 2 || learn() != 0 {
		t.Error("a change is not reported once")
	}
	if c := ready(); c.Reason != reasonNeedsFeature || !strings.Contains(c.Message, "DRAConsumableCapacity") ||
		strings.Contains(c.Message, "Taints") {
		t.Errorf("the domain's condition is %+v", c)
	}
	var templates resourceapi.ResourceClaimTemplateList
	s.must(s.List(t.Context(), &templates))
	if len(templates.Items) != 1 {
		t.Errorf("%d templates exist, want the domain's alone", len(templates.Items))
	}
	off.Store(false)
	learn()
	if c := ready(); c.Reason != reasonJoining {
		t.Errorf("with the gate on the condition is %+v", c)
	}

	// The gate is switched off while the domain has its nodes: its claims are allocated, and its jobs run on.
	status := s.domain("d")
	status.Status.Nodes = []v1beta1.ComputeDomainNode{{Name: "n0", Status: v1beta1.Ready}}
	s.must(s.Status().Update(t.Context(), status))
	s.node("n0", d.UID, true)
	off.Store(true)
	learn()
	s.reconcile(d.UID)
	if c := meta.FindStatusCondition(s.domain("d").Status.Conditions, v1beta1.ConditionReady); c.Reason == reasonNeedsFeature {
		t.Errorf("a domain with all of its nodes has the condition %+v", c)
	}
}

func TestFeaturesStayUnchangedWhenTheDryRunIsDenied(t *testing.T) {
	templates := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}
	for name, refusal := range map[string]error{"denied": apierrors.NewForbidden(templates, "probe", errors.New("no")),
		"busy": apierrors.NewTooManyRequests("later", 1)} {
		f := dropping(newCluster(t), &atomic.Bool{}, refusal)
		f.missing = capability.Missing{Shares: true}
		if asked := f.learn(t.Context(), func() { t.Error("a refusal changes what is known") }); asked != (name == "denied") {
			t.Errorf("%s: asking again has use: %v", name, !asked)
		}
		if !f.now().Shares {
			t.Errorf("%s: what was known is gone", name)
		}
	}
}

func TestFeaturesNameTheGatesOfAServerThatEmulatesAnEarlierVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it starts API servers")
	}
	for emulated, want := range map[string]capability.Missing{"1.35": {Taints: true, Shares: true}, "1.36": {}} {
		server := apiserver.Start(t, apiserver.Emulating(emulated))
		api, err := client.New(&rest.Config{Host: server.URL, BearerToken: apiserver.AdminToken,
			TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}}, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			t.Fatal(err)
		}
		f := features{client: api, namespace: namespace}
		if got, err := f.ask(t.Context()); err != nil || got != want {
			t.Errorf("%s: missing %+v (error %v), want %+v", emulated, got, err, want)
		}
	}
}
