package modes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	plugin     = "gpufabric-compute-domain-plugin"
	controller = "gpufabric-controller"
)

// ground is a test's namespace, and what its domains were.
type ground struct {
	*fixture.Namespace
	t    *testing.T
	uids []string
}

func newGround(t *testing.T) *ground {
	return &ground{Namespace: shared.Namespace(t), t: t}
}

// make declares a domain over count nodes.
func (g *ground) make(name string, count int) {
	g.t.Helper()
	g.Domain(name, count)
	g.uids = append(g.uids, g.AwaitDomain(name, func(d domain.Domain) bool { return d.UID != "" }).UID)
}

// pod makes a pod of a domain on node i, and returns its name.
func (g *ground) pod(of string, i, number int) string {
	g.t.Helper()
	name := fmt.Sprintf("%s-%d-%d", of, i, number)
	g.Pod(name, of+"-channel", cluster.NodeName(i))
	return name
}

// runs waits until a pod of a domain on node i runs, and returns its channel.
func (g *ground) runs(of string, i, number int) string {
	g.t.Helper()
	name := g.pod(of, i, number)
	g.AwaitPod(name, fixture.Running)
	channels := g.DevicePaths(name)
	if len(channels) != 1 {
		g.t.Fatalf("pod %s has the channels %v, not one", name, channels)
	}
	return channels[0]
}

// memory imports memory on node i, as a job does. The test fails if it is lost before the test releases it.
func (g *ground) memory(i int) (intact func()) {
	g.t.Helper()
	state := filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, i)), "state")
	imported, err := imex.ImportMemory(state)
	if err != nil {
		g.t.Fatal(err)
	}
	return func() {
		g.t.Helper()
		if !imported.Alive() {
			g.t.Errorf("the memory that a job has imported on %s is gone: its IMEX session has ended", cluster.NodeName(i))
		}
	}
}

// tell changes the mode, and returns when the controller has it; the nodes' plugins follow one after another.
func (g *ground) tell(mode string) {
	g.t.Helper()
	if err := shared.Upgrade(g.t.Context(), valuesOf(mode)); err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(g.Client.AppsV1().RESTClient(), "deployments", fixture.System,
		fields.OneTermEqualSelector("metadata.name", controller))
	var last appsv1.DeploymentStatus
	if _, err := watchtools.UntilWithSync(ctx, list, &appsv1.Deployment{}, nil, func(event watch.Event) (bool, error) {
		d, ok := event.Object.(*appsv1.Deployment)
		if !ok {
			return false, nil
		}
		last = d.Status
		return last.ObservedGeneration >= d.Generation && last.UpdatedReplicas == *d.Spec.Replicas && last.Replicas == last.UpdatedReplicas &&
			last.ReadyReplicas == last.Replicas, nil
	}); err != nil {
		g.t.Fatalf("the controller does not come up in mode %s: %v; %+v", mode, err, last)
	}
}

// rolled waits until the plugins of that many nodes have the last change.
func (g *ground) rolled(count int32) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(g.Client.AppsV1().RESTClient(), "daemonsets", fixture.System,
		fields.OneTermEqualSelector("metadata.name", plugin))
	var last appsv1.DaemonSetStatus
	if _, err := watchtools.UntilWithSync(ctx, list, &appsv1.DaemonSet{}, nil, func(event watch.Event) (bool, error) {
		set, ok := event.Object.(*appsv1.DaemonSet)
		if !ok {
			return false, nil
		}
		last = set.Status
		return last.ObservedGeneration >= set.Generation && last.UpdatedNumberScheduled >= count &&
			(count < nodes || last.NumberAvailable == nodes), nil
	}); err != nil {
		g.t.Fatalf("%d nodes do not get the plugin of the new mode: %v; %+v", count, err, last)
	}
}

// unschedulable waits until the scheduler says that no node can take a pod.
func (g *ground) unschedulable(pod string) {
	g.t.Helper()
	g.AwaitPod(pod, func(p *corev1.Pod) bool {
		return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != ""
		})
	})
}

// taint is the value of the taint on the channel of node i; empty: none.
func (g *ground) taint(i int) string {
	g.t.Helper()
	published, err := g.Client.ResourceV1().ResourceSlices().List(g.t.Context(), metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + cluster.NodeName(i)})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, slice := range published.Items {
		for _, device := range slice.Spec.Devices {
			for _, taint := range device.Taints {
				return taint.Value
			}
		}
	}
	return ""
}

// nothingLeft ends everything of the test, and waits until nothing of it is left. The last mode was that of domains with daemons of their
// own.
func (g *ground) nothingLeft() {
	g.t.Helper()
	claims := g.ClaimUIDs()
	if err := g.Empty(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	g.AwaitNothingLeft(append(claims, g.uids...)...)
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	var left []string
	// The remaining changes have no event in common.
	if err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var err error
		left, err = g.ofDomains(ctx)
		return len(left) == 0, err
	}); err != nil {
		g.t.Errorf("left behind: %v (%v)", left, err)
	}
}

// ofDomains finds what only compute domains bring into a cluster whose mode is domain.
func (g *ground) ofDomains(ctx context.Context) ([]string, error) {
	var left []string
	list, err := g.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, node := range list.Items {
		for label := range node.Labels {
			if strings.HasPrefix(label, "computedomain.gpufabric.io/") || label == "resource.nvidia.com/computeDomain" ||
				label == "gpufabric.io/imex-channels" || label == "gpufabric.io/host-imex" {
				left = append(left, "label "+label+" of "+node.Name)
			}
		}
	}
	domains, err := domain.List(ctx, g.Manifests.Objects())
	if err != nil {
		return nil, err
	}
	for _, d := range domains {
		left = append(left, "ComputeDomain "+d.Namespace+"/"+d.Name)
	}
	sets, err := g.Client.AppsV1().DaemonSets(fixture.System).List(ctx, metav1.ListOptions{LabelSelector: daemons})
	if err != nil {
		return nil, err
	}
	for _, set := range sets.Items {
		left = append(left, "DaemonSet "+set.Name)
	}
	pods, err := g.Client.CoreV1().Pods(fixture.System).List(ctx, metav1.ListOptions{LabelSelector: daemons})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		left = append(left, "Pod "+pod.Name)
	}
	templates, err := g.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: daemons})
	if err != nil {
		return nil, err
	}
	for _, template := range templates.Items {
		left = append(left, "ResourceClaimTemplate "+template.Name)
	}
	published, err := g.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(published.Items) != nodes {
		left = append(left, fmt.Sprintf("%d ResourceSlices of %d nodes", len(published.Items), nodes))
	}
	for _, slice := range published.Items {
		for _, device := range slice.Spec.Devices {
			if len(device.Taints) > 0 || device.AllowMultipleAllocations != nil {
				left = append(left, fmt.Sprintf("device %s of slice %s: taints %v, shared %v", device.Name, slice.Name, device.Taints,
					device.AllowMultipleAllocations))
			}
		}
	}
	return left, nil
}

const daemons = "app.kubernetes.io/component=imex-daemon"

func TestDomainsRunToTheirEndWhileTheModeGoesToCliqueAndBack(t *testing.T) {
	g := newGround(t)
	g.make("old", 2)
	channel := g.runs("old", 0, 0)
	oldIntact := g.memory(0)

	g.tell("clique")
	g.make("new", 1)
	g.rolled(nodes)
	newChannel := g.runs("new", 1, 0)
	g.AwaitDomain("new", domain.ReadyOn(1))
	newIntact := g.memory(1)
	// The scheduler keeps the new domain off the node of the old one.
	kept := g.pod("new", 0, 0)
	g.unschedulable(kept)
	g.DeletePod(kept)
	// A pod of the old domain that comes now gets a daemon of its domain, where the clique's was.
	if late := g.runs("old", 2, 0); late != channel {
		t.Errorf("the old domain has %s on one node and %s on another", channel, late)
	}
	g.AwaitDomain("old", domain.ReadyOn(2))
	// Where the clique's daemon serves pods it stays, and the pod of the old domain reports what it waits for.
	waits := g.pod("old", 1, 0)
	g.AwaitEvent(waits, "WaitingForIMEXSession", "ComputeDomain new", "clique")
	g.DeletePod(waits)
	oldIntact()
	newIntact()

	g.tell("domain")
	g.rolled(nodes)
	// The node stays in the mode of its pods, so that their domain can be completed.
	if second := g.runs("new", 1, 1); second != newChannel {
		t.Errorf("the pods of one domain on a node have %s and %s", newChannel, second)
	}
	g.make("third", 1)
	waits = g.pod("third", 1, 0)
	g.AwaitEvent(waits, "WaitingForIMEXSession", "ComputeDomain new", "clique")
	oldIntact()
	newIntact()
	g.DeletePod("new-1-0")
	newIntact()
	g.DeletePod("new-1-1")
	g.AwaitPod(waits, fixture.Running)
	g.AwaitDomain("third", domain.ReadyOn(1))
	// The domain of the other mode still gets pods, in place of those that ended.
	g.DeletePod("old-2-0")
	if again := g.runs("new", 2, 0); again != newChannel {
		t.Errorf("the domain had %s, and has %s now", newChannel, again)
	}
	g.AwaitDomain("new", domain.ReadyOn(1))
	oldIntact()
	g.nothingLeft()
}

func TestModesLeaveNoDomainWaitingAfterAQuickSwitch(t *testing.T) {
	g := newGround(t)
	g.make("old", 1)
	g.runs("old", 0, 0)
	intact := g.memory(0)
	g.tell("clique")
	// It waits for its first pod, in a mode that is over soon.
	g.make("between", 1)
	g.AwaitDomain("between", func(d domain.Domain) bool { return len(d.Conditions) > 0 })
	g.rolled(1)
	g.tell("domain")
	g.runs("between", 1, 0)
	g.AwaitDomain("between", domain.ReadyOn(1))
	g.tell("clique")
	g.make("last", 1)
	g.runs("last", 2, 0)
	g.AwaitDomain("last", domain.ReadyOn(1))
	g.AwaitDomain("between", domain.ReadyOn(1))
	g.AwaitDomain("old", domain.ReadyOn(1))
	intact()
	g.tell("domain")
	g.rolled(nodes)
	intact()
	g.nothingLeft()
}

func TestModesChangeToHostAndBackUnderADomain(t *testing.T) {
	g := newGround(t)
	g.make("old", 1)
	g.runs("old", 0, 0)
	intact := g.memory(0)
	g.tell("host")
	g.rolled(nodes)
	g.make("served", 1)
	waits := g.pod("served", 1, 0)
	g.unschedulable(waits) // no node runs the service, which the taint of its channel says
	if taint := g.taint(1); !strings.HasPrefix(taint, "HostIMEX") {
		t.Errorf("the channel of a node without the service has the taint %q", taint)
	}
	g.AwaitDomain("old", domain.ReadyOn(1))
	g.tell("domain")
	// It has no channel, so it gets daemons of its own.
	g.AwaitPod(waits, fixture.Running)
	g.AwaitDomain("served", domain.ReadyOn(1))
	g.AwaitDomain("old", domain.ReadyOn(1))
	g.rolled(nodes)
	intact()
	g.nothingLeft()
}
