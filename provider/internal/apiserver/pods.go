package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	jobs    = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	mpiJobs = schema.GroupVersionResource{Group: "kubeflow.org", Version: "v2beta1", Resource: "mpijobs"}
)

// ServeNodes registers nodes with a fake kubelet, which answers every request for a container's log with the result of output for the pod.
func (s *Server) ServeNodes(t testing.TB, labels map[string]string, output func(pod string) string, names ...string) {
	t.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/") // /containerLogs/NAMESPACE/POD/CONTAINER
		if len(parts) != 5 || parts[1] != "containerLogs" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, output(parts[3]))
	}))
	t.Cleanup(kubelet.Close)
	address, err := url.Parse(kubelet.URL)
	must(t, err)
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	must(t, err)
	for _, name := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		made, err := s.Typed.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		must(t, err)
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.Hostname()}}
		made.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		_, err = s.Typed.CoreV1().Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		must(t, err)
		t.Cleanup(func() { _ = s.Typed.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) }) // the server may have ended
	}
}

// RunJobs plays the Job controller and the MPI operator. Each Job's pods end at once on the nodes, one per node, and so does the
// Job: Complete or, where failed says so, Failed.
func (s *Server) RunJobs(t testing.TB, failed func(job string) bool, nodes ...string) (stop func()) {
	runOne := func(ctx context.Context, gvr schema.GroupVersionResource, job *unstructured.Unstructured) {
		if done, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions"); len(done) > 0 || job.GetDeletionTimestamp() != nil {
			return
		}
		ok := !failed(job.GetName())
		templates := []any{job.Object["spec"]}
		count := []int64{0}
		if gvr == jobs {
			count[0], _, _ = unstructured.NestedInt64(job.Object, "spec", "completions")
		} else {
			launcher, _, _ := unstructured.NestedMap(job.Object, "spec", "mpiReplicaSpecs", "Launcher")
			worker, _, _ := unstructured.NestedMap(job.Object, "spec", "mpiReplicaSpecs", "Worker")
			templates, count = []any{launcher, worker}, []int64{1, worker["replicas"].(int64)}
		}
		for i, template := range templates {
			for n := range count[i] {
				s.endPod(ctx, job, template.(map[string]any), fmt.Sprintf("%s-%d-%d", job.GetName(), i, n), nodes[int(n)%len(nodes)], ok)
			}
		}
		s.setStatus(ctx, gvr, job, jobStatus(gvr, ok, count[0]))
	}
	return s.play(t, func(ctx context.Context) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.follow(ctx, mpiJobs, func(job *unstructured.Unstructured) { runOne(ctx, mpiJobs, job) })
		}()
		s.follow(ctx, jobs, func(job *unstructured.Unstructured) { runOne(ctx, jobs, job) })
		<-done
	})
}

// endPod makes a pod from a job's template, which has already ended.
func (s *Server) endPod(ctx context.Context, job *unstructured.Unstructured, spec map[string]any, name, node string, ok bool) {
	var template struct {
		Template corev1.PodTemplateSpec `json:"template"`
	}
	text, err := json.Marshal(spec)
	if err != nil || json.Unmarshal(text, &template) != nil {
		return // the API server has validated it
	}
	pod := &corev1.Pod{ObjectMeta: template.Template.ObjectMeta, Spec: template.Template.Spec}
	pod.Name, pod.Spec.NodeName, pod.Spec.RestartPolicy = name, node, corev1.RestartPolicyNever
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: job.GetAPIVersion(), Kind: job.GetKind(), Name: job.GetName(), UID: job.GetUID()},
	}
	made, err := s.Typed.CoreV1().Pods(job.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return // made before, or the server is going away
	}
	made.Status.Phase = corev1.PodSucceeded
	code := int32(0)
	if !ok {
		made.Status.Phase, code = corev1.PodFailed, 1
	}
	made.Status.ContainerStatuses = []corev1.ContainerStatus{
		{
			Name:  pod.Spec.Containers[0].Name,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}},
		},
	}
	_, _ = s.Typed.CoreV1().Pods(job.GetNamespace()).UpdateStatus(ctx, made, metav1.UpdateOptions{}) // see serveDomain on errors
}

func jobStatus(gvr schema.GroupVersionResource, ok bool, pods int64) map[string]any {
	const at = "2026-01-01T00:00:00Z"
	condition := func(kind string) map[string]any {
		return map[string]any{"type": kind, "status": "True", "reason": "Test", "message": "the test says so", "lastTransitionTime": at}
	}
	switch {
	case gvr == mpiJobs && ok:
		return map[string]any{"conditions": []any{condition("Succeeded")}}
	case gvr == mpiJobs:
		return map[string]any{"conditions": []any{condition("Failed")}}
	case ok:
		return map[string]any{
			"startTime":        at,
			"completionTime":   at,
			"succeeded":        pods,
			"completedIndexes": fmt.Sprintf("0-%d", pods-1),
			"conditions":       []any{condition("SuccessCriteriaMet"), condition("Complete")},
		}
	}
	return map[string]any{"startTime": at, "failed": pods, "conditions": []any{condition("FailureTarget"), condition("Failed")}}
}

// KeepPods plays a DaemonSet's controller and the kubelet for pods with a label. A pod that is being deleted goes at once, and
// another one, Ready, replaces it on its node. A new pod is Ready at once.
func (s *Server) KeepPods(t testing.TB, label string) (stop func()) {
	zero := int64(0)
	return s.play(t, func(ctx context.Context) {
		s.follow(ctx, pods, func(obj *unstructured.Unstructured) {
			client := s.Typed.CoreV1().Pods(obj.GetNamespace())
			if _, ours := obj.GetLabels()[label]; !ours {
				return
			}
			if obj.GetDeletionTimestamp() == nil {
				s.setStatus(ctx, pods, obj, map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}})
				return
			}
			uid := obj.GetUID()
			old, err := client.Get(ctx, obj.GetName(), metav1.GetOptions{})
			if err != nil || old.UID != uid {
				return // gone already
			}
			_ = client.Delete(ctx, obj.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &uid}})
			next := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "next-" + string(uid)[:8], Labels: old.Labels}, Spec: old.Spec}
			_, _ = client.Create(ctx, next, metav1.CreateOptions{})
		})
	})
}
