package uninstall

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

func node(name string, labels, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations},
	}
}

func TestUninstallRemovesOnlyOwnKeys(t *testing.T) {
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleMetadataClient(scheme,
		node("fabric", map[string]string{"clique": "a.1", "zone": "z"}, map[string]string{"register": "x", "own": "y"}),
		node("stuck", map[string]string{"clique": "a.1"}, nil),
		node("plain", map[string]string{"zone": "z"}, nil),
		node("last", map[string]string{"clique": ""}, nil),
	)
	patched := []string{}
	client.PrependReactor("patch", "nodes", func(action k8stesting.Action) (bool, runtime.Object, error) {
		name := action.(k8stesting.PatchAction).GetName()
		patched = append(patched, name)
		if name == "stuck" {
			return true, nil, errors.New("a policy forbids it")
		}
		return false, nil, nil
	})
	err := Run(t.Context(), client, Keys{Labels: []string{"clique"}, Annotations: []string{"register", "handshake"}})
	if err == nil || !strings.Contains(err.Error(), "node stuck: a policy forbids it") {
		t.Errorf("error %v, want one that names the node", err)
	}
	if slices.Sort(patched); !slices.Equal(patched, []string{"fabric", "last", "stuck"}) {
		t.Errorf("patched %v, want the nodes that have something of it", patched)
	}
	for name, want := range map[string][]string{"fabric": {"own", "zone"}, "plain": {"zone"}, "last": {}} {
		left, err := client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := append(slices.Collect(maps.Keys(left.Labels)), slices.Collect(maps.Keys(left.Annotations))...)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("node %s has %v left, want %v", name, got, want)
		}
	}
}

func every(*metav1.PartialObjectMetadata) bool { return true }

func TestFreeDomainsRemovesOnlyOwnFinalizer(t *testing.T) {
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	domain := func(name string, finalizers ...string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.nvidia.com/v1beta1", Kind: "ComputeDomain"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: name, Finalizers: finalizers},
		}
	}
	const ours, others = computedomain.Finalizer, "kueue.x-k8s.io/managed"
	client := fake.NewSimpleMetadataClient(scheme, domain("held", ours), domain("shared", others, ours), domain("free"), domain("stuck", ours))
	domains := computeDomains(client)
	client.PrependReactor("patch", "computedomains", func(action k8stesting.Action) (bool, runtime.Object, error) {
		switch action.(k8stesting.PatchAction).GetName() {
		case "stuck":
			return true, nil, errors.New("a policy forbids it")
		case "free":
			t.Error("a domain without a finalizer is written to")
		}
		return false, nil, nil
	})
	err := FreeDomains(t.Context(), client, every)
	if err == nil || !strings.Contains(err.Error(), "ComputeDomain user/stuck: a policy forbids it") {
		t.Errorf("error %v, want one that names the domain", err)
	}
	for name, want := range map[string][]string{"held": {}, "shared": {others}, "free": {}} {
		left, err := domains.Namespace("user").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(left.Finalizers, want) {
			t.Errorf("ComputeDomain %s has the finalizers %v left, want %v", name, left.Finalizers, want)
		}
	}
}

func TestFreeDomainsReturnsWithoutTheKind(t *testing.T) {
	client := fake.NewSimpleMetadataClient(fake.NewTestScheme())
	client.PrependReactor("list", "computedomains", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(v1beta1.SchemeGroupVersion().WithResource("computedomains").GroupResource(), "")
	})
	if err := FreeDomains(t.Context(), client, every); err != nil {
		t.Error(err)
	}
}
