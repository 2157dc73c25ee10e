package cliques

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

// daemons are the pods of IMEX daemons that are not being deleted, by UID.
func daemons(t *testing.T) []string {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(fixture.System).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=imex-daemon"})
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil {
			uids = append(uids, string(pod.UID))
		}
	}
	slices.Sort(uids)
	return uids
}

func TestFourDomainsOfFourPodsRunOnOneNodeEachByItsOwnChannel(t *testing.T) {
	n := shared.Namespace(t)
	const count = 4
	for d := range count {
		name := fmt.Sprintf("d%d", d)
		n.Domain(name, 1)
		for p := range count {
			n.Pod(fmt.Sprintf("%s-%d", name, p), name+"-channel", cluster.NodeName(0))
		}
	}
	holder := map[string]string{}
	for d := range count {
		name := fmt.Sprintf("d%d", d)
		n.AwaitDomain(name, domain.ReadyOn(1))
		var first []string
		for p := range count {
			pod := fmt.Sprintf("%s-%d", name, p)
			n.AwaitPod(pod, fixture.Running)
			channels := n.DevicePaths(pod)
			if p == 0 {
				first = channels
			}
			if len(channels) != 1 || !slices.Equal(channels, first) {
				t.Errorf("%s received %v, and the first pod of its domain %v", pod, channels, first)
			}
		}
		for _, channel := range first {
			if other, held := holder[channel]; held {
				t.Errorf("%s and %s both have %s", name, other, channel)
			}
			holder[channel] = name
		}
	}
}

func TestFormationGivesOneChannelOnAllNodes(t *testing.T) {
	n := shared.Namespace(t)
	form := func(name string) {
		n.Domain(name, nodes)
		for i := range nodes {
			n.Pod(fmt.Sprintf("%s-%d", name, i), name+"-channel", cluster.NodeName(i))
		}
		n.AwaitDomain(name, domain.ReadyOn(nodes))
	}
	form("first")
	before := daemons(t)
	form("rank")
	var all []string
	for i := range nodes {
		n.AwaitPod(fmt.Sprintf("rank-%d", i), fixture.Running)
		all = append(all, n.DevicePaths(fmt.Sprintf("rank-%d", i))...)
	}
	if slices.Sort(all); len(all) != nodes || len(slices.Compact(all)) != 1 {
		t.Errorf("the domain's nodes have the channels %v", all)
	}
	if after := daemons(t); len(after) != nodes || !slices.Equal(before, after) {
		t.Errorf("IMEX daemons with one domain: %v, with two: %v", before, after)
	}
}

// A domain that holds all channels leaves none. The scheduler knows, so that another domain's pod waits without a node: it could run in
// another clique, if there were one.
func TestFormationDelaysPodsWithoutAChannel(t *testing.T) {
	n := shared.Namespace(t)
	n.Apply(`
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: greedy}
spec:
  numNodes: 2
  channel: {allocationMode: All, resourceClaimTemplate: {name: greedy-channel}}
`)
	n.Pod("greedy-0", "greedy-channel", cluster.NodeName(0))
	n.AwaitPod("greedy-0", fixture.Running)
	for i := range 2 {
		awaitAllHeld(t, cluster.NodeName(i))
	}
	n.Domain("late", 1)
	n.Pod("late-0", "late-channel", cluster.NodeName(0))
	n.AwaitEvent("late-0", "FailedScheduling", "cannot allocate all claims")
	if pod := n.AwaitPod("late-0", func(*corev1.Pod) bool { return true }); pod.Spec.NodeName != "" {
		t.Errorf("a pod that no channel is left for is on node %s", pod.Spec.NodeName)
	}
	// The holder's own pods go where all channels are its.
	n.Pod("greedy-1", "greedy-channel", cluster.NodeName(1))
	n.AwaitPod("greedy-1", fixture.Running)
	n.DeletePod("greedy-0")
	n.DeletePod("greedy-1")
	n.DeleteDomain("greedy")
	n.AwaitPod("late-0", fixture.Running)
}

// awaitAllHeld waits until a node says in its ResourceSlice that no channel of its clique is free.
func awaitAllHeld(t *testing.T, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.ResourceV1().RESTClient(), "resourceslices", "",
		fields.OneTermEqualSelector("spec.nodeName", node))
	_, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, nil, func(event watch.Event) (bool, error) {
		slice, ok := event.Object.(*resourceapi.ResourceSlice)
		return ok && slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool {
			return d.Attributes["allHeld"].BoolValue != nil
		}), nil
	})
	if err != nil {
		t.Fatalf("%s does not say that all channels are held: %v", node, err)
	}
}
