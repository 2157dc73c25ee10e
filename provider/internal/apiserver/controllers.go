package apiserver

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	deployments    = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	daemonSets     = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	namespaces     = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	claimTemplates = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"}
	computeDomains = schema.GroupVersionResource{Group: "resource.nvidia.com", Version: "v1beta1", Resource: "computedomains"}
)

// RollOut plays the controllers of Deployments and DaemonSets on a cluster with nodes nodes: every workload is rolled out at once. It ends
// with the test or when stop is called.
func (s *Server) RollOut(t testing.TB, nodes int64) (stop func()) {
	return s.play(t, func(ctx context.Context) {
		var group sync.WaitGroup
		group.Go(func() {
			s.follow(ctx, deployments, func(obj *unstructured.Unstructured) {
				want, _, _ := unstructured.NestedInt64(obj.Object, "spec", "replicas")
				s.setStatus(
					ctx,
					deployments,
					obj,
					map[string]any{
						"observedGeneration": obj.GetGeneration(),
						"replicas":           want,
						"updatedReplicas":    want,
						"readyReplicas":      want,
						"availableReplicas":  want,
					},
				)
			})
		})
		group.Go(func() {
			s.follow(ctx, daemonSets, func(obj *unstructured.Unstructured) {
				s.setStatus(
					ctx,
					daemonSets,
					obj,
					map[string]any{"observedGeneration": obj.GetGeneration(), "desiredNumberScheduled": nodes, "currentNumberScheduled": nodes,
						"updatedNumberScheduled": nodes, "numberReady": nodes, "numberAvailable": nodes, "numberMisscheduled": int64(0)},
				)
			})
		})
		group.Wait()
	})
}

// EndNamespaces plays the namespace controller as far as a test needs it: it removes a namespace that is being deleted, with its
// content.
func (s *Server) EndNamespaces(t testing.TB) (stop func()) {
	return s.play(t, func(ctx context.Context) {
		s.follow(ctx, namespaces, func(obj *unstructured.Unstructured) {
			if obj.GetDeletionTimestamp() == nil {
				return
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: obj.GetName(), ResourceVersion: obj.GetResourceVersion()}}
			_, _ = s.Typed.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}) // a lost race is retried at the next event
		})
	})
}

// Domain is the fake ComputeDomain controller's answer for one domain.
type Domain struct {
	Status  string // Ready or NotReady; empty: the controller ignores the domain
	Message string
	Nodes   []map[string]any
	Hold    bool // keep the finalizer when the domain is deleted
}

// finalizer as a driver would set it.
const finalizer = "resource.nvidia.com/computeDomain"

// ServeDomains plays the ComputeDomain controller: it sets a finalizer, creates the claim template, writes the status that answer
// returns, and on deletion removes everything again.
func (s *Server) ServeDomains(t testing.TB, answer func(name string) Domain) (stop func()) {
	return s.play(t, func(ctx context.Context) {
		s.follow(ctx, computeDomains, func(obj *unstructured.Unstructured) { s.serveDomain(ctx, obj, answer(obj.GetName())) })
	})
}

// Serve plays a controller that only writes a status, which answer returns.
func (s *Server) Serve(
	t testing.TB,
	gvr schema.GroupVersionResource,
	answer func(*unstructured.Unstructured) map[string]any,
) (stop func()) {
	return s.play(t, func(ctx context.Context) {
		s.follow(ctx, gvr, func(obj *unstructured.Unstructured) { s.setStatus(ctx, gvr, obj, answer(obj)) })
	})
}

// React plays a controller that does react for every object of a kind, now and at each change.
func (s *Server) React(t testing.TB, gvr schema.GroupVersionResource, react func(*unstructured.Unstructured)) (stop func()) {
	return s.play(t, func(ctx context.Context) { s.follow(ctx, gvr, react) })
}

func (s *Server) serveDomain(ctx context.Context, obj *unstructured.Unstructured, d Domain) {
	domains := s.Dynamic.Resource(computeDomains).Namespace(obj.GetNamespace())
	templates := s.Dynamic.Resource(claimTemplates).Namespace(obj.GetNamespace())
	name, _, _ := unstructured.NestedString(obj.Object, "spec", "channel", "resourceClaimTemplate", "name")
	// The errors below are lost races, or the server is stopping; both are retried at the next event.
	if obj.GetDeletionTimestamp() != nil {
		if !d.Hold {
			_ = templates.Delete(ctx, name, metav1.DeleteOptions{})
			copied := obj.DeepCopy()
			copied.SetFinalizers(nil)
			_, _ = domains.Update(ctx, copied, metav1.UpdateOptions{FieldManager: "controller"})
		}
		return
	}
	if d.Status == "" {
		return
	}
	if len(obj.GetFinalizers()) == 0 {
		copied := obj.DeepCopy()
		copied.SetFinalizers([]string{finalizer})
		_, _ = domains.Update(ctx, copied, metav1.UpdateOptions{FieldManager: "controller"})
		return // the update comes back as an event
	}
	template := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"spec": map[string]any{"devices": map[string]any{"requests": []any{
				map[string]any{"name": "channel", "exactly": map[string]any{"deviceClassName": "compute-domain-default-channel.nvidia.com"}}},
				// The chart's policy refuses a channel that does not name its domain.
				"config": []any{
					map[string]any{
						"requests": []any{"channel"},
						"opaque": map[string]any{"driver": "compute-domain.nvidia.com", "parameters": map[string]any{
							"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": string(obj.GetUID())}},
					},
				}}}}},
	}
	_, _ = templates.Create(ctx, template, metav1.CreateOptions{})
	nodes := make([]any, len(d.Nodes))
	for i, n := range d.Nodes {
		nodes[i] = n
	}
	ready := "False"
	if d.Status == "Ready" {
		ready = "True"
	}
	s.setStatus(ctx, computeDomains, obj, map[string]any{"status": d.Status, "nodes": nodes, "conditions": []any{map[string]any{
		"type": "Ready", "status": ready, "reason": d.Status, "message": d.Message, "lastTransitionTime": "2026-01-01T00:00:00Z"}}})
}

func (s *Server) setStatus(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, status map[string]any) {
	if have, _, _ := unstructured.NestedMap(obj.Object, "status"); sameText(have, status) {
		return
	}
	copied := obj.DeepCopy()
	copied.Object["status"] = status
	_, _ = s.Dynamic.Resource(
		gvr,
	).Namespace(
		obj.GetNamespace(),
	).UpdateStatus(
		ctx,
		copied,
		metav1.UpdateOptions{FieldManager: "controller"},
	) // see serveDomain on errors
}

// play runs a fake controller until the test ends or stop is called.
func (s *Server) play(t testing.TB, controller func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		controller(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// follow calls react for every object of a kind, now and at each change, until ctx ends. It waits for a kind that is not served
// yet.
func (s *Server) follow(ctx context.Context, gvr schema.GroupVersionResource, react func(*unstructured.Unstructured)) {
	for ctx.Err() == nil {
		list, err := s.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				react(&list.Items[i])
			}
			s.followFrom(ctx, gvr, list.GetResourceVersion(), react)
			continue
		}
		pause := time.Second
		if apierrors.IsNotFound(err) {
			pause = 200 * time.Millisecond // its CRD may be on the way
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *Server) followFrom(ctx context.Context, gvr schema.GroupVersionResource, version string, react func(*unstructured.Unstructured)) {
	w, err := s.Dynamic.Resource(gvr).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Deleted {
			react(obj)
		}
	}
}

func sameText(have, want map[string]any) bool { return fmt.Sprint(have) == fmt.Sprint(want) }
