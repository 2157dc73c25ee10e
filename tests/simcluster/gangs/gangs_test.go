//go:build gangs

package gangs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	cliqueLabel = "nvidia.com/gpu.clique"
	period      = 200 * time.Millisecond
)

var workloads = schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "workloads"}

// ground is one test's namespace with the example's queue.
type ground struct {
	*fixture.Namespace
	t *testing.T
	// cliques are those of the nodes by name.
	cliques map[string]string
}

func newGround(t *testing.T) *ground {
	t.Helper()
	up := two.cluster(t)
	g := &ground{Namespace: up.Namespace(t), t: t, cliques: map[string]string{}}
	for _, node := range up.Nodes(t) {
		g.cliques[node.Name] = node.Labels[cliqueLabel]
	}
	if found := slices.Compact(slices.Sorted(maps.Values(g.cliques))); len(found) != 2 || found[0] == "" {
		t.Fatalf("the nodes are in the cliques %q, not in two", found)
	}
	g.ApplyFile("examples/kueue/queues.yaml")
	return g
}

// await calls done until it returns true. Kueue and the Job controllers write many objects, so the test polls all of them.
func (g *ground) await(what string, done func(ctx context.Context) (ok bool, seen string)) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	var last string
	if err := wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		ok, seen := done(ctx)
		if ctx.Err() == nil {
			last = seen
		}
		return ok, nil
	}); err != nil {
		g.t.Fatalf("wait until %s: %v; last seen: %s\n%s", what, err, last, g.describe())
	}
}

// describe returns Kueue's conditions of the workloads.
func (g *ground) describe() string {
	list, err := g.Manifests.Objects().Resource(workloads).Namespace(g.Name).List(context.WithoutCancel(g.t.Context()), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var said []string
	for i := range list.Items {
		said = append(said, list.Items[i].GetName()+": "+strings.Join(conditionsOf(&list.Items[i]), "; "))
	}
	return strings.Join(said, "\n")
}

func conditionsOf(object *unstructured.Unstructured) []string {
	var said []string
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range list {
		if c, ok := entry.(map[string]any); ok {
			said = append(said, fmt.Sprintf("%v=%v %v: %v", c["type"], c["status"], c["reason"], c["message"]))
		}
	}
	return said
}

// placed waits until count pods that a label selects run, and fails the test unless all of them are in one clique.
func (g *ground) placed(selector string, count int) {
	g.t.Helper()
	var pods []corev1.Pod
	g.await(fmt.Sprintf("%d pods of %s run", count, selector), func(ctx context.Context) (bool, string) {
		list, err := g.Client.CoreV1().Pods(g.Name).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false, err.Error()
		}
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
		return len(pods) == count, fmt.Sprintf("%d pods, %d run", len(list.Items), len(pods))
	})
	where := map[string]int{}
	for i := range pods {
		where[g.cliques[pods[i].Spec.NodeName]]++
	}
	if len(where) != 1 {
		g.t.Errorf("the gang %s is split: %v", selector, where)
	}
}

// job makes a Job of count pods with a domain of its own, each pod with a node for itself.
func (g *ground) job(name string, count int) {
	g.t.Helper()
	g.Apply(`
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: %[1]s, annotations: {gpufabric.io/owner: Job/%[1]s}}
spec:
  numNodes: %[2]d
  channel: {resourceClaimTemplate: {name: %[1]s-channel}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, labels: {kueue.x-k8s.io/queue-name: racks}}
spec:
  suspend: true
  completionMode: Indexed
  completions: %[2]d
  parallelism: %[2]d
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: nvidia.com/gpu.clique}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "ubuntu:22.04", resources: {requests: {cpu: 100}, claims: [{name: channel}]}}]
      resourceClaims: [{name: channel, resourceClaimTemplateName: %[1]s-channel}]
`, name, count)
}

// end deletes a Job. It waits until its pods are gone, and also its domain, whose owner the Job is.
func (g *ground) end(name string) {
	g.t.Helper()
	foreground := metav1.DeletePropagationForeground
	if err := g.Client.BatchV1().Jobs(g.Name).Delete(g.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		g.t.Fatal(err)
	}
	g.await("Job "+name+" has no pod", func(ctx context.Context) (bool, string) {
		pods, err := g.Client.CoreV1().Pods(g.Name).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items) == 0, fmt.Sprint(len(pods.Items))
	})
	g.AwaitDomainGone(name)
}

// workloadOf waits until the conditions of the Job's Workload contain the words, and returns the Workload.
func (g *ground) workloadOf(job string, words ...string) string {
	g.t.Helper()
	var said string
	g.await(fmt.Sprintf("Kueue says %q of Job %s", words, job), func(ctx context.Context) (bool, string) {
		list, err := g.Manifests.Objects().Resource(workloads).Namespace(g.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for i := range list.Items {
			owner := metav1.GetControllerOf(&list.Items[i])
			if owner == nil || owner.Name != job {
				continue
			}
			for _, said = range conditionsOf(&list.Items[i]) {
				if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(said, word) }) {
					return true, said
				}
			}
			return false, strings.Join(conditionsOf(&list.Items[i]), "; ")
		}
		return false, "there is no Workload of it"
	})
	return said
}

func TestKueuePlacesAJobOfSixteenInOneCliqueOfTwo(t *testing.T) {
	g := newGround(t)
	g.ApplyFile("examples/kueue/job.yaml")
	g.placed(batchv1.JobNameLabel+"=train", 16)
	g.AwaitDomain("train", domain.ReadyOn(16))
	g.end("train")
}

func TestGangThatFitsNoCliqueWaits(t *testing.T) {
	g := newGround(t)
	g.job("large", 20)
	said := g.workloadOf("large", "QuotaReserved=False", "topology")
	t.Log(said)
	pods, err := g.Client.CoreV1().Pods(g.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) > 0 {
		t.Errorf("a gang of 20 has %d pods, though no clique has more than 18 nodes", len(pods.Items))
	}
	g.end("large")
}

// TestMixedGangsAreNeverSplit fills two racks with gangs that do not all fit. Those that wait are admitted as others end.
func TestMixedGangsAreNeverSplit(t *testing.T) {
	g := newGround(t)
	// 36 nodes: 10+8 and 12+6 fill them, 16 and 5 wait.
	sizes := map[string]int{"a": 10, "b": 12, "c": 8, "d": 6, "e": 16, "f": 5}
	first := []string{"a", "b", "c", "d"}
	for _, name := range first {
		g.job(name, sizes[name])
		g.placed(batchv1.JobNameLabel+"="+name, sizes[name])
	}
	for _, name := range []string{"e", "f"} {
		g.job(name, sizes[name])
		g.workloadOf(name, "QuotaReserved=False")
	}
	for _, name := range first {
		g.AwaitDomain(name, domain.ReadyOn(sizes[name]))
		g.end(name)
	}
	for _, name := range []string{"e", "f"} {
		g.placed(batchv1.JobNameLabel+"="+name, sizes[name])
		g.AwaitDomain(name, domain.ReadyOn(sizes[name]))
		g.end(name)
	}
}

func TestKueuePlacesAJobSetInOneClique(t *testing.T) {
	g := newGround(t)
	g.ApplyFile("examples/kueue/jobset.yaml")
	g.placed("jobset.sigs.k8s.io/jobset-name=pretrain", 8)
	g.AwaitDomain("pretrain", domain.ReadyOn(8))
	g.remove(schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}, "pretrain")
}

func TestKueuePlacesALeaderWorkerSetInOneClique(t *testing.T) {
	g := newGround(t)
	g.ApplyFile("examples/kueue/leaderworkerset.yaml")
	g.placed("leaderworkerset.sigs.k8s.io/name=serve", 8)
	g.AwaitDomain("serve", domain.ReadyOn(8))
	g.remove(schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}, "serve")
}

// remove deletes a workload, and waits until no pod of the namespace is left, and its domain is gone.
func (g *ground) remove(resource schema.GroupVersionResource, name string) {
	g.t.Helper()
	if err := g.Manifests.Objects().Resource(resource).Namespace(g.Name).Delete(g.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		g.t.Fatal(err)
	}
	g.await("no pod is left", func(ctx context.Context) (bool, string) {
		pods, err := g.Client.CoreV1().Pods(g.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items) == 0, fmt.Sprint(len(pods.Items))
	})
	g.AwaitDomainGone(name)
}
