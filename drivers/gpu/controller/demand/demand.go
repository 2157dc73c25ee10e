// Package demand gives the GPUs of nodes their MIG layouts by demand, for MIGLayouts with auto. It makes a MIGLayout with an explicit
// layout for each node, lets package planner decide on changes, and carries the decisions out so that claims keep their devices:
//
//	Published    -> Withdrawing   the planner orders a cut: the doomed devices are withdrawn
//	Withdrawing  -> Cutting       the node reports it, its slices lack them, a second has passed, and a consistent list of the claims
//	                              has none with a doomed device: the new instances are written
//	Withdrawing  -> Published     a claim has a doomed device, or the node does not answer: it is offered again, and left alone for a while
//	Cutting      -> Published     the node reports the layout as applied
//	Cutting      -> Failed        the node gives up; the GPU gets no orders until the node reports success
//
// All of it is in the specs and statuses of the nodes' MIGLayouts, so a controller that starts continues from there: a device that is
// withdrawn without an order in its memory counts as hidden, which the planner takes back or cuts.
package demand

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

const (
	// period is the time between two decisions.
	period = 500 * time.Millisecond
	// idle is how often a controller without a layout by demand looks for one.
	idle = 5 * time.Second
)

// Adder adds the planner of layouts by demand to a manager of its own.
//
// Rights: gpufabric.io miglayouts list, watch, create, update, delete; resource.k8s.io resourceclaims, resourceslices and deviceclasses
// list, watch; core pods and nodes list, watch; events create, patch.
func Adder(events record.EventRecorder) func(context.Context, ctrl.Manager) error {
	return func(_ context.Context, m ctrl.Manager) error {
		if err := v1alpha1.AddToScheme(m.GetScheme()); err != nil {
			return err
		}
		return m.Add(&runner{layouts: m.GetClient(), live: m.GetAPIReader(), config: m.GetConfig(), manager: m, events: events})
	}
}

// runner decides while there is a layout by demand. Only then does it watch pods, claims and slices.
type runner struct {
	layouts client.Client
	live    client.Reader
	config  *rest.Config
	manager ctrl.Manager
	events  record.EventRecorder
}

// Start implements manager.Runnable.
func (r *runner) Start(ctx context.Context) error {
	for {
		active, err := r.active(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking for layouts by demand again")
		}
		if active {
			if err := r.plan(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-time.After(idle):
		case <-ctx.Done():
			return nil
		}
	}
}

// active reports whether there is a layout by demand, or objects that one left behind.
func (r *runner) active(ctx context.Context) (bool, error) {
	list := &v1alpha1.MIGLayoutList{}
	if err := r.layouts.List(ctx, list); err != nil {
		return false, fmt.Errorf("list the MIGLayouts: %w", err)
	}
	for i := range list.Items {
		if l := &list.Items[i]; l.Spec.Auto != nil || l.ByDemand() {
			return true, nil
		}
	}
	return false, nil
}

// plan decides until ctx ends or no layout by demand is left.
func (r *runner) plan(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, err := r.watch()
	if err != nil {
		return err
	}
	claims := newClaimIndex()
	indexed, err := claims.follow(ctx, watched)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- watched.Start(ctx) }() // ends with ctx
	defer func() { cancel(); <-ended }()
	if !watched.WaitForCacheSync(ctx) || !toolscache.WaitForCacheSync(ctx.Done(), indexed) {
		return nil
	}
	d := newDecider(r.layouts, watched, r.live, claims, r.events, time.Now)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		left, err := d.decide(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Deciding on layouts by demand again")
		} else if !left {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case err := <-ended:
			ended <- err
			return fmt.Errorf("watch pods and claims for layouts by demand: %w", err)
		}
	}
}

// watch makes the cache of the objects that decisions depend on.
func (r *runner) watch() (cache.Cache, error) {
	watched, err := cache.New(r.config, cache.Options{
		Scheme: r.manager.GetScheme(), Mapper: r.manager.GetRESTMapper(), HTTPClient: r.manager.GetHTTPClient(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)), Transform: slimPod},
			&resourceapi.ResourceSlice{}: {Field: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver,
				devices.Driver)},
			&corev1.Node{}: {Transform: slimNode},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods and claims for layouts by demand: %w", err)
	}
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Node{}, &resourceapi.ResourceSlice{}, &resourceapi.ResourceClaim{},
		&resourceapi.DeviceClass{}} {
		if _, err := watched.GetInformer(context.Background(), kind, cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	return watched, nil
}

// slimNode keeps the parts of a node on which decisions depend: its images alone are tens of kilobytes.
func slimNode(object any) (any, error) {
	n, is := object.(*corev1.Node)
	if !is {
		return object, nil
	}
	n.ManagedFields, n.Annotations = nil, nil
	n.Status = corev1.NodeStatus{Conditions: n.Status.Conditions, Allocatable: n.Status.Allocatable}
	return n, nil
}

// slimPod keeps the parts of a pod on which decisions depend.
func slimPod(object any) (any, error) {
	p, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	p.ManagedFields, p.Annotations, p.Spec.Volumes, p.Spec.EphemeralContainers = nil, nil, nil, nil
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			all[i] = corev1.Container{Name: all[i].Name, Resources: all[i].Resources, RestartPolicy: all[i].RestartPolicy}
		}
	}
	return p, nil
}
