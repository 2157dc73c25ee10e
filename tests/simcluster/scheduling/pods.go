package scheduling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// givenAway are the units of each node that are given away: a part of all, node after node in this order; of a mixed row all that pods
// have. free is how many pods find a free one.
func givenAway(m *Machine, row Row, d *day, order []int, part float64) (units [][]unit, free int) {
	units = make([][]unit, len(order))
	if d != nil {
		for i := range units {
			units[i] = d.given(i, row.pools(m, d, i)[0].name)
		}
		return units, d.batch()
	}
	total := 0
	for i := range units {
		units[i] = row.units(m, i)
		total += len(units[i])
	}
	left := int(part * float64(total))
	free = total - left
	for _, i := range order {
		units[i] = units[i][:min(len(units[i]), left)]
		left -= len(units[i])
	}
	return units, free
}

// given is givenAway in a random order of the nodes.
func (c *cluster) given(m *Machine, row Row, part float64) (units [][]unit, free int) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same order in every run
	return givenAway(m, row, c.day, random.Perm(len(c.nodes)), part)
}

// fill allocates what is given away, and returns how many pods find a free unit.
func (c *cluster) fill(ctx context.Context, m *Machine, row Row, part float64) (free int, err error) {
	type given struct {
		node  string
		units []unit
	}
	var todo []given
	units, free := c.given(m, row, part)
	for i, name := range c.nodes {
		for some := range slices.Chunk(units[i], resourceapi.AllocationResultsMaxSize) {
			todo = append(todo, given{name, some})
		}
	}
	from := c.made
	c.made += len(todo)
	return free, each(indices(len(todo)), func(i int) error {
		claim := newClaim(fmt.Sprintf("given-%06d", from+i), row.class, "", int64(len(todo[i].units)))
		made, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status.Allocation = allocation(todo[i].node, todo[i].units)
		made.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "gone", UID: "gone"}}
		_, err = c.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func newClaim(name, class, memory string, count int64) *resourceapi.ResourceClaim {
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count: count}
	if memory != "" {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory)}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
			Exactly: request}}}}}
}

func newPod(name, claim string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	if claim != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
	}
	return pod
}

// make makes pods with their claims, the claims first, and reports when each pod existed.
func (c *cluster) make(ctx context.Context, row Row, n int, there func(name string, at time.Time)) error {
	from := c.made
	c.made += n
	name := func(i int) string { return fmt.Sprintf("pod-%06d", from+i) }
	claim := func(string) string { return "" }
	if row.class != "" {
		claim = func(pod string) string { return pod }
		if err := each(indices(n), func(i int) error {
			_, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, row.claim(c.day, name(i), i), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return each(indices(n), func(i int) error {
		at := time.Now()
		_, err := c.client.CoreV1().Pods(namespace).Create(ctx, newPod(name(i), claim(name(i))), metav1.CreateOptions{})
		there(name(i), at)
		return err
	})
}

// warm waits until the scheduler has bound a pod.
func (c *cluster) warm(ctx context.Context, row Row) error {
	ctx, cancel := context.WithTimeout(ctx, warmPatience)
	defer cancel()
	bound, stop, err := c.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := c.make(ctx, row, 1, func(string, time.Time) {}); err != nil {
		return err
	}
	select {
	case <-bound:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the scheduler bound no pod within %s", warmPatience)
	}
}

// clean removes the pods from one name to before another, and their claims; all pods and all claims where both are empty.
func (c *cluster) clean(ctx context.Context, from, to string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
	mine := func(name string) bool { return from == "" && to == "" || from <= name && name < to }
	// A pod that is bound while it is deleted may leave its claim's finalizer.
	gone := func(err error) error {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	if err := each(pods.Items, func(pod corev1.Pod) error {
		if !mine(pod.Name) {
			return nil
		}
		return gone(c.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, now))
	}); err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	claims, err := c.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the claims: %w", err)
	}
	err = each(claims.Items, func(claim resourceapi.ResourceClaim) error {
		if !mine(claim.Name) {
			return nil
		}
		// The controller manager would remove the finalizer.
		if len(claim.Finalizers) > 0 {
			none := []byte(`{"metadata":{"finalizers":null}}`)
			if _, err := c.client.ResourceV1().ResourceClaims(namespace).Patch(ctx, claim.Name, types.MergePatchType, none,
				metav1.PatchOptions{}); gone(err) != nil {
				return err
			}
		}
		return gone(c.client.ResourceV1().ResourceClaims(namespace).Delete(ctx, claim.Name, now))
	})
	if err != nil {
		return fmt.Errorf("delete the claims: %w", err)
	}
	return nil
}
