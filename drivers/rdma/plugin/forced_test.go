package plugin_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

// TestPrepareGivesAnExclusiveHCAOnceWhenPodsAreForceDeleted takes an HCA from pods whose containers are processes in the kernel's
// cgroups and run on. The kubelet unprepares the claim while they run, as its reconcile loop does.
func TestPrepareGivesAnExclusiveHCAOnceWhenPodsAreForceDeleted(t *testing.T) {
	const device = "pci-0000-3b-00-0-1"
	n := newNode(t)
	n.two()
	n.options.DevicePlugin = false
	n.configure(`{"configList": [{"resourceName": "hca", "mode": "Exclusive", "selectors": {"vendors": ["15b3"]}}]}`)
	client := n.withAPI()
	claims := client.ResourceV1().ResourceClaims("default")
	pods := occupancytest.Real(t, n.options.Cgroups().Path)
	n.start()
	awaitDevices(t, client, "exclusive device", func(d map[string]resourceapi.Device) bool {
		return d[device].Name != "" && d[device].AllowMultipleAllocations == nil
	})
	connection, err := grpc.NewClient("unix:"+filepath.Join(n.kubelet.Root(), "plugins/rdma.gpufabric.io/dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	kubelet := drapb.NewDRAPluginClient(connection)
	// prepare gives the HCA to a claim; no pod: it is reserved for none.
	prepare := func(uid, pod string) {
		t.Helper()
		asked := claimed(t, client, uid, "", device)
		claim, err := claims.Get(t.Context(), asked.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.Allocation.Devices.Results[0].ShareID = nil
		if pod != "" {
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod)}}
		}
		if err := client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), claim, claim.Namespace); err != nil {
			t.Fatal(err)
		}
		if _, problem := n.prepare(asked); problem != "" {
			t.Fatal(problem)
		}
	}
	unprepare := func(uid string) error {
		answer, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: "default", Name: "claim-" + uid, Uid: uid}}}, grpc.WaitForReady(true))
		if err == nil && answer.GetClaims()[uid].GetError() != "" {
			err = errors.New(answer.GetClaims()[uid].GetError())
		}
		return err
	}
	pods.Taken(func(_ int, pod string) { prepare(pod, pod) }, func(pod string) error {
		if err := claims.Delete(t.Context(), "claim-"+pod, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return unprepare(pod)
	}, func(try int) {
		uid := fmt.Sprintf("next-%d", try)
		prepare(uid, "")
		if err := unprepare(uid); err != nil {
			t.Errorf("unprepare the next claim: %v", err)
		}
	})
}
