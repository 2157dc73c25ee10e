package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
)

// used is a claim of a driver's device that pods have reserved.
func used(namespace, name, driver string, pods ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver}}}}
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return claim
}

func TestCheckRefusesUninstallWhilePodsUseDevices(t *testing.T) {
	const own, driver = "gpufabric-system", "compute-domain.nvidia.com"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}
	client := kubernetesfake.NewClientset(namespace,
		used("user", "a", driver, "rank-1", "rank-0"), used("user", "b", driver, "rank-0"), used("user", "c", driver),
		used("user", "d", "dra.net", "of-another-driver"), used(own, "e", driver, "imex-daemon"))
	err := Check(t.Context(), client, own, []string{driver, "gpu.nvidia.com"})
	var inUse *InUseError
	if !errors.As(err, &inUse) || strings.Join(inUse.Pods, " ") != "user/rank-0 user/rank-1" ||
		!strings.Contains(err.Error(), "kubectl annotate namespace gpufabric-system gpufabric.io/uninstall=anyway") {
		t.Errorf("error %v", err)
	}
	namespace = namespace.DeepCopy()
	namespace.Annotations = map[string]string{AnnotationAnyway: "anyway"}
	if _, err := client.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), client, own, []string{driver}); err != nil {
		t.Errorf("with the word to go on: %v", err)
	}
}

func TestCheckAllowsUninstallWithoutPods(t *testing.T) {
	client := kubernetesfake.NewClientset(used("user", "d", "dra.net", "of-another-driver"))
	if err := Check(t.Context(), client, "gpufabric-system", []string{"gpu.nvidia.com"}); err != nil {
		t.Error(err)
	}
}

func TestCheckWaitsForRights(t *testing.T) {
	claims := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	forbidden := apierrors.NewForbidden(claims, "", nil)
	for name, c := range map[string]struct {
		fails    []error
		attempts int
		refused  bool
	}{
		"rights that come late":   {[]error{forbidden, fmt.Errorf("list: %w", forbidden)}, 3, false},
		"a server that is away":   {[]error{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, 2, false},
		"a refusal is no failure": {[]error{&InUseError{Pods: []string{"user/rank-0"}}}, 1, true},
		"no such kind":            {[]error{apierrors.NewNotFound(claims, "")}, 1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), preparing)
			defer cancel()
			attempts := 0
			err := persevere(ctx, func() error {
				attempts++
				if attempts <= len(c.fails) {
					return c.fails[attempts-1]
				}
				return nil
			})
			if attempts != c.attempts || (err != nil) != c.refused {
				t.Errorf("%s: %d attempts, %v", name, attempts, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), preparing)
		defer cancel()
		begun := time.Now()
		err := persevere(ctx, func() error { return forbidden })
		if !apierrors.IsForbidden(err) || time.Since(begun) != preparing {
			t.Errorf("rights that never come: %v after %s", err, time.Since(begun))
		}
	})
}
