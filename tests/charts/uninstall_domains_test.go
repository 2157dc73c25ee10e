package charts

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The kind's CRD is removed with the release here. Its objects have finalizers that only the controller removes, and the
// controller makes a clique's ComputeDomain again. So an uninstall that did not handle them first would wait for ever.
func TestUninstallStopsAtUserDomainsAndRemovesCliqueDomains(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	program := buildProgram(t)
	live := startServer(t)
	tool := newHelmInMemory(t, live.config)
	values := map[string]any{"crds": map[string]any{"keep": false}, "computeDomains": map[string]any{"imex": "clique"}}
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	live.heldDomain(t, "held")
	live.cliqueDomain(t)

	ended := uninstalling(t, tool)
	check, said, err := play(t, live, admin, program, "gpufabric-uninstall-check")
	if err == nil || !strings.Contains(said, "1 ComputeDomains with it: default/held") || strings.Contains(said, "clique-a.1") {
		t.Errorf("beside a user's domain: %v\n%s", err, said)
	}
	failed(t, admin, check)
	if err := <-ended; err == nil {
		t.Fatal("the uninstall went on")
	}
	controllers := admin.AppsV1().Deployments(namespace)
	if found, err := controllers.Get(t.Context(), "gpufabric-controller", metav1.GetOptions{}); err != nil || !keepsCliques(found) {
		t.Fatalf("after the refusal the controller is %v (%v), want it as it was", found, err)
	}

	live.loseDomain(t, "default", "held")
	ended = uninstalling(t, tool)
	reported, err := controllers.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	obeyed := make(chan struct{})
	go func() { // the controller
		defer close(obeyed)
		for event := range reported.ResultChan() {
			if deployment, ok := event.Object.(*appsv1.Deployment); ok && deployment.Name == "gpufabric-controller" && !keepsCliques(deployment) {
				live.loseDomain(t, namespace, "clique-a.1")
				return
			}
		}
	}()
	check, said, err = play(t, live, admin, program, "gpufabric-uninstall-check")
	reported.Stop()
	<-obeyed
	if err != nil {
		t.Errorf("with a clique's domain alone: %v\n%s", err, said)
	}
	finish(t, admin, check)
	last, said, err := play(t, live, admin, program, "gpufabric-uninstall")
	if err != nil {
		t.Errorf("after the uninstall: %v\n%s", err, said)
	}
	finish(t, admin, last)
	if err := <-ended; err != nil {
		t.Fatalf("uninstall: %v", err)
	}
	live.awaitNoCRD(t)
}

func keepsCliques(controller *appsv1.Deployment) bool {
	return strings.Contains(strings.Join(controller.Spec.Template.Spec.Containers[0].Args, " "), "--imex=Clique")
}

// cliqueDomain makes what the controller makes for the clique a.1.
func (s *server) cliqueDomain(t *testing.T) {
	t.Helper()
	one := object(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "clique-a.1", "namespace": "` +
		namespace + `", "labels": {"nvidia.com/gpu.clique": "a.1"}, "finalizers": ["resource.nvidia.com/computeDomain"]}, "spec": {"numNodes": 0,
		"channel": {"resourceClaimTemplate": {"name": "clique-a.1"}}}}`)
	if _, err := s.client.Resource(domainResource).Namespace(namespace).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// loseDomain deletes a domain and removes its finalizer, as the controller does at the end.
func (s *server) loseDomain(t *testing.T, namespace, name string) {
	domains := s.client.Resource(domainResource).Namespace(namespace)
	ctx := context.WithoutCancel(t.Context())
	if err := domains.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	_, err := domains.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// failed writes a Job's status as its controller does when its pod has failed.
func failed(t *testing.T, admin kubernetes.Interface, job *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	job.Status = batchv1.JobStatus{StartTime: &now, Failed: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}}
	if _, err := admin.BatchV1().Jobs(job.Namespace).UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
