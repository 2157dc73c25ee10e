package program_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testQuota checks README.md's statement about a ResourceQuota: it counts devices per DeviceClass.
func testQuota(t *testing.T, c *cluster) {
	const space = "limited"
	const counted = corev1.ResourceName("l40s-10g.deviceclass.resource.k8s.io/devices")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.CoreV1().ResourceQuotas(space).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "slices"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("3")}}}, metav1.CreateOptions{})
	must(t, err)
	watch, err := c.admin.CoreV1().ResourceQuotas(space).Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if quota, ok := event.Object.(*corev1.ResourceQuota); ok && len(quota.Status.Hard) > 0 { // the controller has taken it up
			break
		}
	}
	claim := func(name string, count int64, dry ...string) error {
		memory := map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}
		_, err := c.admin.ResourceV1().ResourceClaims(space).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "slice",
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: "l40s-10g", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
					Capacity: &resourceapi.CapacityRequirements{Requests: memory}}}}}}}, metav1.CreateOptions{DryRun: dry})
		return err
	}
	// The API server's admission is notified of quotas through its own watch, and until then treats the namespace as one without quotas.
	// There is no event for that moment.
	for err = nil; err == nil; err = claim("four", 4, metav1.DryRunAll) {
		must(t, ctx.Err())
	}
	must(t, claim("two", 2))
	if err := claim("two-more", 2); err == nil || !strings.Contains(err.Error(), "exceeded quota: slices") {
		t.Errorf("a fourth slice where three are allowed: error %v", err)
	}
	if err := claim("one-more", 1); err != nil {
		t.Errorf("a third slice, whatever its memory: %v", err)
	}
}
