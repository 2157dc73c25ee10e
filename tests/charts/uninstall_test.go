package charts

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

func TestUninstallRemovesOwnLabelsAndAnnotationsFromNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	program := buildProgram(t)
	live := startServer(t)
	tool := newHelmInMemory(t, live.config)
	values := everything()
	values["crds"] = map[string]any{"keep": false}
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []*corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "fabric", Labels: map[string]string{"zone": "z1", "nvidia.com/gpu.clique": "a.1",
			"resource.nvidia.com/computeDomain": "uid"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "shared", Labels: map[string]string{"zone": "z1"}, Annotations: map[string]string{
			"volcano.sh/node-vgpu-register": "x", "volcano.sh/node-vgpu-handshake": "y", "vgpu.gpufabric.io/unit": "1 MiB",
			"vgpu.gpufabric.io/mig-slots": "{}", "hamivgpu": "2026-11-22T02:00:00Z"}}},
	} {
		if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	for _, domain := range []string{"ended", "held"} {
		live.heldDomain(t, domain)
	}

	// An upgrade runs nothing.
	if _, err := tool.upgrade("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
	jobs := admin.BatchV1().Jobs(namespace)
	if list, err := jobs.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Fatalf("after an upgrade there are Jobs: %v, %v", list.Items, err)
	}

	// A domain that still exists stops the uninstall of its kind, until an annotation of the namespace says to continue. Then the Job deletes
	// the domains, and frees those that the controller does not end.
	goOn := []byte(`{"metadata": {"annotations": {"gpufabric.io/uninstall": "anyway"}}}`)
	if _, err := admin.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, goOn, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	domains := live.client.Resource(domainResource).Namespace("default")
	deletions, err := domains.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=ended"})
	if err != nil {
		t.Fatal(err)
	}
	defer deletions.Stop()
	go func() { // the controller
		for event := range deletions.ResultChan() {
			if one, ok := event.Object.(metav1.Object); ok && one.GetDeletionTimestamp() != nil {
				finalizers := []byte(`{"metadata": {"finalizers": null}}`)
				_, err := domains.Patch(t.Context(), one.GetName(), types.MergePatchType, finalizers, metav1.PatchOptions{})
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	}()
	ended := uninstalling(t, tool)
	check, said, err := play(t, live, admin, program, "gpufabric-uninstall-check")
	if err != nil || !strings.Contains(said, `left="default/held"`) {
		t.Errorf("before the uninstall: %v\n%s", err, said)
	}
	if list, err := domains.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("after the Job there are %d ComputeDomains: %v", len(list.Items), err)
	}
	finish(t, admin, check)
	job, said, err := play(t, live, admin, program, "gpufabric-uninstall")
	if err != nil {
		t.Errorf("after the uninstall: %v\n%s", err, said)
	}
	if _, err := admin.AppsV1().DaemonSets(namespace).Get(t.Context(), "gpufabric-compute-domain-plugin", metav1.GetOptions{}); err == nil {
		t.Error("the Job runs while a plugin may still write the label")
	}
	finish(t, admin, job)
	if err := <-ended; err != nil {
		t.Fatalf("uninstall: %v", err)
	}

	nodes, err := admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if len(node.Labels) != 1 || node.Labels["zone"] != "z1" || len(node.Annotations) != 0 {
			t.Errorf("node %s has the labels %v and the annotations %v left", node.Name, node.Labels, node.Annotations)
		}
	}
	live.awaitNoCRD(t)
	// The test played the Job's own pod.
	left := slices.DeleteFunc(live.ours(t), func(object string) bool { return strings.HasPrefix(object, "Pod ") })
	if len(left) != 0 {
		t.Errorf("uninstall left %v", left)
	}
}

// uninstalling uninstalls the release with its hooks and --wait, and sends the result to the channel.
func uninstalling(t *testing.T, tool *helm) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		uninstall := action.NewUninstall(tool.configuration)
		uninstall.Wait, uninstall.Timeout = true, 5*time.Minute
		_, err := uninstall.Run("gpufabric")
		ended <- err
	}()
	return ended
}

// play waits for a Job of the uninstall and runs its pod's program, with the token of its account.
func play(t *testing.T, live *server, admin kubernetes.Interface, program, name string) (job *batchv1.Job, said string, err error) {
	t.Helper()
	await(t, "the Job "+name, admin.BatchV1().Jobs(namespace).Watch, func(event watch.Event) bool {
		found, ok := event.Object.(*batchv1.Job)
		// A failed uninstall leaves its Job until the next uninstall begins.
		if ok = ok && event.Type != watch.Deleted && found.Name == name && len(found.Status.Conditions) == 0; ok {
			job = found
		}
		return ok
	}, metav1.ListOptions{})
	pod := job.Spec.Template.Spec
	run := exec.CommandContext(t.Context(), program, pod.Containers[0].Args...)
	run.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig(t, live.config, admin, pod.ServiceAccountName))
	out, err := run.CombinedOutput()
	// The pod of the account's next Job has the same name.
	gone := admin.CoreV1().Pods(namespace).Delete(t.Context(), name, *metav1.NewDeleteOptions(0))
	if gone != nil && !apierrors.IsNotFound(gone) {
		t.Fatal(gone)
	}
	return job, string(out), err
}

// heldDomain makes a ComputeDomain with the controller's finalizer.
func (s *server) heldDomain(t *testing.T, name string) {
	t.Helper()
	one := object(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "` + name + `", "namespace":
		"default", "finalizers": ["resource.nvidia.com/computeDomain"]}, "spec": {"numNodes": 1, "channel": {"resourceClaimTemplate":
		{"name": "` + name + `-channel"}}}}`)
	if _, err := s.client.Resource(domainResource).Namespace("default").Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// finish writes a Job's status as its controller does when its pod has succeeded.
func finish(t *testing.T, admin kubernetes.Interface, job *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}}
	if _, err := admin.BatchV1().Jobs(job.Namespace).UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestUninstallSkipsDriversThatAreOff(t *testing.T) {
	for _, test := range []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"as it comes", nil, []string{"uninstall", "--node-label=nvidia.com/gpu.clique", "--node-label=gpufabric.io/imex-channels",
			"--node-label=gpufabric.io/host-imex", "--compute-domains"}},
		{"ComputeDomains go too", map[string]any{"crds": map[string]any{"keep": false}},
			[]string{"uninstall", "--node-label=nvidia.com/gpu.clique", "--node-label=gpufabric.io/imex-channels",
				"--node-label=gpufabric.io/host-imex", "--node-label=resource.nvidia.com/computeDomain",
				"--node-label=computedomain.gpufabric.io/", "--compute-domains"}},
		{"GPUs alone", map[string]any{"gpus": on(), "computeDomains": off()}, nil},
		{"told not to", map[string]any{"gpus": on(), "vgpu": on(), "uninstall": map[string]any{"cleanNodes": false}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for name, pod := range pods(t, renderValues(t, "gpufabric", test.values)) {
				if name == "gpufabric-uninstall" {
					got = pod.Spec.Containers[0].Args
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the Job runs gpufabric %v, want %v", got, test.want)
			}
		})
	}
}

func TestUninstallChecksWorkloadsFirst(t *testing.T) {
	for name, c := range map[string]struct {
		values map[string]any
		want   []string
	}{
		"as it comes": {nil, nil},
		"told to": {map[string]any{"gpus": on(), "uninstall": map[string]any{"refuseWhileUsed": true}},
			[]string{"uninstall", "--check", "--namespace=" + namespace, "--driver=compute-domain.nvidia.com", "--driver=gpu.nvidia.com"}},
		"the kind of domains goes too": {map[string]any{"crds": map[string]any{"keep": false}},
			[]string{"uninstall", "--check", "--namespace=" + namespace, "--end-compute-domains"}},
		"cliques have daemons": {map[string]any{"computeDomains": map[string]any{"imex": "clique"}},
			[]string{"uninstall", "--check", "--namespace=" + namespace, "--controller=gpufabric-controller"}},
		"another installs the kinds": {map[string]any{"crds": map[string]any{"keep": false, "install": false}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, one := range renderValues(t, "gpufabric", c.values) {
				if one.GetName() != "gpufabric-uninstall-check" {
					continue
				}
				if hook := one.GetAnnotations()["helm.sh/hook"]; hook != "pre-delete" {
					t.Errorf("the %s is of the hook %q", one.GetKind(), hook)
				}
			}
			if pod, ok := pods(t, renderValues(t, "gpufabric", c.values))["gpufabric-uninstall-check"]; ok {
				got = pod.Spec.Containers[0].Args
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the Job runs gpufabric %v, want %v", got, c.want)
			}
		})
	}
}
