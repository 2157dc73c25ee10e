//go:build upgrade

package upgrade

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/build/repository"
	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

var earlier = flag.String("earlier", "", "a checkout of an earlier commit, in which build-gpufabric and build-scheduler were made")

// ground is a cluster that started with the earlier version, a namespace, and the pods in it that no change may touch.
type ground struct {
	*fixture.Namespace
	t    *testing.T
	held []*holder
}

// holder is a pod with devices, as it was before the upgrade.
type holder struct {
	name    string
	pod     *corev1.Pod
	devices string
	records []string     // of its claims on its node
	memory  *imex.Import // that it has imported through its channel; nil: it has none
}

func start(t *testing.T, options fixture.Options) *ground {
	t.Helper()
	if *earlier == "" {
		t.Fatal("-earlier is missing: run `make upgrade FROM=COMMIT`")
	}
	options.Mode, options.Earlier = fabric.AsProcesses, *earlier
	up, err := fixture.Up(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := up.Err(); err != nil {
			t.Errorf("the cluster did not last: %v", err)
		}
		up.Down()
	})
	if err := up.AwaitRollouts(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &ground{Namespace: up.Namespace(t), t: t}
}

// hold waits until a pod runs, and stores what it has.
func (g *ground) hold(name string) *holder {
	g.t.Helper()
	h := &holder{name: name, pod: g.AwaitPod(name, fixture.Running), devices: fmt.Sprint(g.Received(name))}
	h.records = g.records(h)
	g.held = append(g.held, h)
	return h
}

// records names what the nodes and the API have of a pod's claims.
func (g *ground) records(h *holder) []string {
	g.t.Helper()
	uids := g.claimsOf(h.pod)
	if len(uids) == 0 {
		uids = []string{string(h.pod.UID)}
	}
	found, err := g.LeftOf(g.t.Context(), uids...)
	if err != nil {
		g.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// claimsOf are the UIDs of a pod's claims.
func (g *ground) claimsOf(pod *corev1.Pod) []string {
	g.t.Helper()
	var uids []string
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			claim, err := g.Client.ResourceV1().ResourceClaims(g.Name).Get(g.t.Context(), *status.ResourceClaimName, metav1.GetOptions{})
			if err != nil {
				g.t.Fatal(err)
			}
			uids = append(uids, string(claim.UID))
		}
	}
	return uids
}

// assertUntouched fails the test if a pod of before was restarted or has other devices, or if a record of it or its memory is gone.
func (g *ground) assertUntouched(when string) {
	g.t.Helper()
	for _, h := range g.held {
		pod := g.AwaitPod(h.name, func(*corev1.Pod) bool { return true })
		if !fixture.Running(pod) || pod.UID != h.pod.UID {
			g.t.Errorf("%s: pod %s does not run any more, or is another: %+v", when, h.name, pod)
			continue
		}
		for i, status := range pod.Status.ContainerStatuses {
			was := h.pod.Status.ContainerStatuses[i]
			if status.RestartCount != was.RestartCount || status.ContainerID != was.ContainerID {
				g.t.Errorf("%s: container %s of pod %s was restarted: %+v, before %+v", when, status.Name, h.name, status, was)
			}
		}
		if devices := fmt.Sprint(g.Received(h.name)); devices != h.devices {
			g.t.Errorf("%s: pod %s has %s, before %s", when, h.name, devices, h.devices)
		}
		records := g.records(h)
		for _, record := range h.records {
			if !slices.Contains(records, record) {
				g.t.Errorf("%s: record %s of pod %s is gone", when, record, h.name)
			}
		}
		if h.memory != nil && !h.memory.Alive() {
			g.t.Errorf("%s: the memory that pod %s has imported is gone: its IMEX session has ended", when, h.name)
		}
	}
}

// imports has a pod import memory of another node, as a job does.
func (g *ground) imports(h *holder) {
	g.t.Helper()
	i, err := cluster.NodeIndex(h.pod.Spec.NodeName)
	if err != nil {
		g.t.Fatal(err)
	}
	if h.memory, err = imex.ImportMemory(filepath.Join(fabric.HardwareOf(cluster.NodeDir(g.Dir, i)), "state")); err != nil {
		g.t.Fatal(err)
	}
}

// thereAndBack upgrades and rolls back, each time in two steps. After the first, controller, webhook, scheduler and CRDs are of one version
// and the nodes' plugins of the other. serve runs new pods after each step.
func (g *ground) thereAndBack(serve func(step string)) {
	g.t.Helper()
	here, err := repository.Root()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, to := range []struct{ name, root, tag string }{{"upgrade", here, ""}, {"rollback", *earlier, fabric.EarlierTag},
		{"second upgrade", here, ""}} {
		for _, part := range []struct {
			name   string
			except []string
		}{{"of all but the plugins", []string{"DaemonSet"}}, {"of the plugins", nil}} {
			step := to.name + " " + part.name
			g.t.Log(step)
			if err := g.Release(g.t.Context(), to.root, to.tag, part.except...); err != nil {
				g.t.Fatalf("%s: %v", step, err)
			}
			if err := g.AwaitRollouts(g.t.Context()); err != nil {
				g.t.Fatalf("%s: %v", step, err)
			}
			g.assertVersions(step, to.tag, part.except != nil)
			g.assertUntouched(step)
			serve(step)
			g.assertUntouched(step + ", after new pods")
		}
	}
}

// assertVersions fails the test unless the pods of Deployments, and where not skewed of DaemonSets too, have images with a tag.
func (g *ground) assertVersions(step, tag string, skewed bool) {
	g.t.Helper()
	sets, err := g.Client.AppsV1().DaemonSets(fixture.System).List(g.t.Context(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, set := range sets.Items {
		if _, daemons := set.Labels["resource.nvidia.com/computeDomain"]; !daemons {
			if is := isEarlier(set.Spec.Template.Spec); is != (tag == fabric.EarlierTag) != skewed {
				g.t.Errorf("%s: DaemonSet %s has images of the earlier version: %t", step, set.Name, is)
			}
		}
	}
	deployments, err := g.Client.AppsV1().Deployments(fixture.System).List(g.t.Context(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, set := range deployments.Items {
		if is := isEarlier(set.Spec.Template.Spec); is != (tag == fabric.EarlierTag) {
			g.t.Errorf("%s: Deployment %s has images of the earlier version: %t", step, set.Name, is)
		}
	}
}

func isEarlier(spec corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return strings.HasSuffix(c.Image, ":"+fabric.EarlierTag) })
}
