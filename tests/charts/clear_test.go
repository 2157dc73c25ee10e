package charts

import (
	"context"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// clearPatience bounds the removal of what a test left.
const clearPatience = 5 * time.Minute

// stored is an object of the server.
type stored struct {
	resource schema.GroupVersionResource
	unstructured.Unstructured
}

func (o stored) key() string {
	return o.resource.GroupResource().String() + " " + o.GetNamespace() + "/" + o.GetName()
}

// everything lists the objects of every kind that can be listed and deleted.
func (s *server) everything(t *testing.T) (objects []stored) {
	t.Helper()
	finder, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := finder.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range list.APIResources {
			resource := version.WithResource(kind.Name)
			found, err := s.client.Resource(resource).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // of a CustomResourceDefinition that has gone
				continue
			}
			if err != nil {
				t.Fatalf("list %s: %v", resource, err)
			}
			for _, one := range found.Items {
				objects = append(objects, stored{resource, one})
			}
		}
	}
	return objects
}

func (s *server) everyKey(t *testing.T) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for _, one := range s.everything(t) {
		keys[one.key()] = true
	}
	return keys
}

// clear removes every object but the server's own, and returns when none of the policies is in force.
func (s *server) clear(t *testing.T, own map[string]bool) {
	t.Helper()
	s.plantCanary(t) // where an earlier test ended before it had one
	s.awaitCanary(t, true)
	var admission, others, definitions []stored
	for _, one := range s.everything(t) {
		switch {
		case own[one.key()] || serversOwn(one):
		case one.resource.Group == "admissionregistration.k8s.io":
			admission = append(admission, one)
		case one.resource.Group == crdResource.Group:
			definitions = append(definitions, one)
		default:
			others = append(others, one)
		}
	}
	// The policies would refuse the rest. The canary goes last: once it is not in force, none of those before it is.
	slices.SortStableFunc(admission, func(a, b stored) int { return rank(a) - rank(b) })
	s.remove(t, admission)
	s.awaitCanary(t, false)
	s.remove(t, others)
	s.removeDefinitions(t, definitions)
}

func rank(one stored) int {
	if one.GetName() == canary {
		return 1
	}
	return 0
}

// serversOwn are objects that the server makes and removes by itself as others come and go.
func serversOwn(one stored) bool {
	switch one.resource.Group + "/" + one.resource.Resource {
	case "apiregistration.k8s.io/apiservices", "networking.k8s.io/ipaddresses":
		return true
	case "coordination.k8s.io/leases":
		return one.GetNamespace() == "kube-system"
	}
	return false
}

func (s *server) remove(t *testing.T, objects []stored) {
	t.Helper()
	now, background := int64(0), metav1.DeletePropagationBackground
	for _, one := range objects {
		client := s.client.Resource(one.resource).Namespace(one.GetNamespace())
		if len(one.GetFinalizers()) > 0 {
			_, err := client.Patch(t.Context(), one.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`),
				metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatalf("remove the finalizers of %s: %v", one.key(), err)
			}
		}
		err := client.Delete(t.Context(), one.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now, PropagationPolicy: &background})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("remove %s: %v", one.key(), err)
		}
		if one.GetKind() == "Namespace" {
			s.finalize(t, one)
		}
	}
}

// finalize ends a namespace, as the namespace controller does.
func (s *server) finalize(t *testing.T, space stored) {
	t.Helper()
	ended, err := s.client.Resource(space.resource).Get(t.Context(), space.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err == nil {
		unstructured.RemoveNestedField(ended.Object, "spec", "finalizers")
		_, err = s.client.Resource(space.resource).Update(t.Context(), ended, metav1.UpdateOptions{}, "finalize")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("finalize namespace %s: %v", space.GetName(), err)
	}
}

// removeDefinitions returns when the CustomResourceDefinitions are gone. Their objects are.
func (s *server) removeDefinitions(t *testing.T, definitions []stored) {
	t.Helper()
	if len(definitions) == 0 {
		return
	}
	left := map[string]bool{}
	for _, one := range definitions {
		left[one.GetName()] = true
	}
	await(t, "the end of the CustomResourceDefinitions", func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		events, err := s.client.Resource(crdResource).Watch(ctx, options)
		if err == nil {
			s.remove(t, definitions)
		}
		return events, err
	}, func(event watch.Event) bool {
		if one, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == watch.Deleted {
			delete(left, one.GetName())
		}
		return len(left) == 0
	}, metav1.ListOptions{})
}

// canary is a policy that shows whether the server has taken up the last change of its policies. It refuses a ConfigMap of its name.
const canary = "canary"

func (s *server) plantCanary(t *testing.T) {
	t.Helper()
	for _, one := range []struct{ resource, text string }{
		{"validatingadmissionpolicies", `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata":
			{"name": "canary"}, "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
			"operations": ["CREATE"], "resources": ["configmaps"], "resourceNames": ["canary"]}]}, "validations": [{"expression": "false"}]}}`},
		{"validatingadmissionpolicybindings", `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
			"metadata": {"name": "canary"}, "spec": {"policyName": "canary", "validationActions": ["Deny"]}}`},
	} {
		resource := resourceOf("admissionregistration.k8s.io", "v1", one.resource)
		_, err := s.client.Resource(resource).Create(t.Context(), object(one.text), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// awaitCanary returns when the canary is in force, or is not. The server applies a change of its policies within a second or two, and
// reports that nowhere.
func (s *server) awaitCanary(t *testing.T, refuses bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clearPatience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	try := func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(resourceOf("", "v1", "configmaps")).Namespace("default").Create(ctx,
			object(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "canary"}}`), metav1.CreateOptions{
				DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for {
		err := try(ctx, s.client)
		if err == nil && !refuses || refuses && err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonInvalid {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the canary among the policies, in force: %t wanted; %v", refuses, err)
		case <-again.C:
		}
	}
}
