package release

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/provider/internal/cluster"
)

// The caller's time-out may end in the middle of a request. The blockers are known by then, and the API server is not to blame.
func TestTimeoutReportsLastCompleteReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const driver = "gpu.nvidia.com"
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"}}
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: driver}}}}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "trainer"}}
		client := fake.NewClientset(claim)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		looks := 0
		client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			if looks++; looks == 1 {
				return false, nil, nil
			}
			<-ctx.Done() // a server that is slow
			return true, nil, ctx.Err()
		})
		m := &Manager{namespace: "fabric", client: &cluster.Client{Typed: client}}
		var blocked *BlockedError
		if err := m.awaitUnblocked(ctx, nil, []string{driver}, time.Minute); !errors.As(err, &blocked) || len(blocked.Blockers) != 1 ||
			blocked.Blockers[0].What != "ResourceClaim team/held of driver "+driver {
			t.Errorf("error %v, want the claim that is held", err)
		}
	})
}
