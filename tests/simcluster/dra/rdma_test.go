package dra

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

var verbs = regexp.MustCompile(`^/dev/infiniband/uverbs\d+$`)

func TestRDMAGivesAPodItsNIC(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("nic", "rdma.gpufabric.io", "")
	n.ClaimPod("client", "", "nic")
	n.AwaitPod("client", fixture.Running)
	if got := n.Devices("client", verbs); len(got) != 1 {
		t.Errorf("received %v; want one NIC's verbs", got)
	}
	if got := n.Devices("client", regexp.MustCompile(`^/dev/infiniband/rdma_cm$`)); len(got) != 1 {
		t.Errorf("lacks /dev/infiniband/rdma_cm")
	}
}

func TestRDMAGivesEachPodOfAnExclusivePoolItsNIC(t *testing.T) {
	n := shared.Namespace(t)
	n.Pool("all", `{resourceName: every_hca, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
	n.Template("nic", "rdma.gpufabric.io", `device.attributes['rdma.gpufabric.io'].?pool.orValue('') == 'rdma/every_hca'`)
	n.ClaimPod("one", cluster.NodeName(0), "nic")
	n.ClaimPod("two", cluster.NodeName(0), "nic")
	n.AwaitPod("one", fixture.Running)
	n.AwaitPod("two", fixture.Running)
	one, two := n.Devices("one", verbs), n.Devices("two", verbs)
	if len(one) != 1 || len(two) != 1 || slices.Equal(one, two) {
		t.Errorf("the pods received %v and %v; want one NIC each, and not the same", one, two)
	}
}

// No machine here has RDMA's exclusive mode. So the test can only check that the example's pod gets an Event about the missing mode.
func TestRDMAExclusiveExampleNamesMissingParts(t *testing.T) {
	const example = "examples/manifests/rdma-exclusive.yaml"
	t.Run("a device that is given whole", func(t *testing.T) {
		n := shared.Namespace(t)
		awaitNICs(t, false)
		n.ApplyFile(example)
		n.AwaitEvent("nic-in-the-pod", "network: Exclusive needs a device that is given whole", "put it into a pool with exclusive devices")
	})
	t.Run("the runtime's word on pods' networks", func(t *testing.T) {
		n := shared.Namespace(t)
		n.Pool("whole", `{resourceName: whole_hca, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
		awaitNICs(t, true)
		n.ApplyFile(example)
		n.AwaitEvent("nic-in-the-pod", "network: Exclusive", "start it with --nri-socket (the chart's rdma.nriSocket)")
	})
}

// awaitNICs waits until every NIC is published as exclusive, or every NIC as shared.
func awaitNICs(t *testing.T, whole bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, "rdma.gpufabric.io"))
	others := map[string]bool{} // slices that have a NIC of the other kind
	synced := func(store cache.Store) (bool, error) {
		for _, object := range store.List() {
			slice := object.(*resourceapi.ResourceSlice)
			others[slice.Name] = otherNICs(slice, whole)
		}
		return !slices.Contains(slices.Collect(maps.Values(others)), true), nil
	}
	_, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, synced, func(event watch.Event) (bool, error) {
		if slice, ok := event.Object.(*resourceapi.ResourceSlice); ok {
			others[slice.Name] = event.Type != watch.Deleted && otherNICs(slice, whole)
		}
		return !slices.Contains(slices.Collect(maps.Values(others)), true), nil
	})
	if err != nil {
		t.Fatalf("NICs that are given whole: %t; waited in vain: %v; of the other kind are those in %v", whole, err, others)
	}
}

func otherNICs(slice *resourceapi.ResourceSlice, whole bool) bool {
	return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return (d.AllowMultipleAllocations == nil) != whole })
}

func TestRDMAServesTheSeedsPodsByDRA(t *testing.T) {
	const resource = "rdma/hca_shared_devices_a"
	n := shared.Namespace(t)
	n.RemoveAtEnd(fixture.ConfigMaps, "kube-system", "rdma-devices")
	n.ApplyFile("examples/manifests/rdma-devices-configmap.yaml")
	for _, name := range []string{"mofed-test-pod", "rdma-server", "rdma-client"} {
		n.ApplyFile("examples/manifests/" + name + ".yaml")
		pod := n.AwaitPod(name, fixture.Running)
		if got := n.Devices(name, verbs); len(got) != 1 {
			t.Errorf("%s received %v; want one NIC's verbs", name, got)
		}
		if got := n.Devices(name, regexp.MustCompile(`^/dev/infiniband/rdma_cm$`)); len(got) != 1 {
			t.Errorf("%s lacks /dev/infiniband/rdma_cm", name)
		}
		// The manifest has no claims. The scheduler made one for the limit, by the DeviceClass with that extended resource.
		if status := pod.Status.ExtendedResourceClaimStatus; status == nil || len(status.RequestMappings) != 1 ||
			status.RequestMappings[0].ResourceName != resource {
			t.Errorf("%s has no claim for %s but %+v: something else than DRA gave it the NIC", name, resource, status)
		}
		if results := n.Allocated(name); len(results) != 1 || results[0].Driver != "rdma.gpufabric.io" ||
			value(n.Attributes(results[0])["pool"]) != resource {
			t.Errorf("%s was allocated %+v; want a device of %s", name, results, resource)
		}
	}
	for i := range nodes {
		node, err := shared.Client.CoreV1().Nodes().Get(t.Context(), cluster.NodeName(i), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if offered, found := node.Status.Capacity[resource]; found {
			t.Errorf("%s offers %s of %s by a device plugin, which is off", node.Name, offered.String(), resource)
		}
	}
}

func TestRDMAGivesTheNICNearestToTheGPU(t *testing.T) {
	n := shared.Namespace(t)
	n.RemoveAtEnd(fixture.RDMAPools, "", "rails")
	n.ApplyFile("examples/manifests/rdma-gpu-aligned.yaml")
	n.AwaitPod("gpu-with-nic", fixture.Running)
	if gpu, nic := n.Devices("gpu-with-nic", wholeGPU), n.Devices("gpu-with-nic", verbs); len(gpu) != 1 || len(nic) != 1 {
		t.Errorf("received the GPUs %v and the NICs %v; want one of each", gpu, nic)
	}
	var places []string
	var rung string
	for _, result := range n.Allocated("gpu-with-nic") {
		attributes := n.Attributes(result)
		attribute := map[string]resourceapi.QualifiedName{"switch": "gpufabric.io/pcieSwitch", "root": "resource.kubernetes.io/pcieRoot",
			"numa": "resource.kubernetes.io/numaNode"}
		if _, alternative, ok := strings.Cut(result.Request, "/"); ok {
			rung = alternative
		}
		place := map[string]string{}
		for name, key := range attribute {
			if a, ok := attributes[key]; ok {
				place[name] = value(a)
			}
		}
		places = append(places, place["switch"], place["root"], place["numa"])
	}
	if len(places) != 6 {
		t.Fatalf("the claim has %d devices, want a GPU and a NIC", len(places)/3)
	}
	at := map[string]int{"switch": 0, "root": 1, "numa": 2}[rung]
	if places[at] == "" || places[at] != places[at+3] {
		t.Errorf("the NIC was taken for the same %s, and it is %q and %q", rung, places[at], places[at+3])
	}
	t.Logf("the NIC is below the GPU's %s, %s", rung, places[at])
}

func value(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	}
	return ""
}
