package cliques

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

//shows:cd-several
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

func TestADomainHasOneChannelOnAllNodesAndStartsNoPod(t *testing.T) {
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
