// Package waiting writes an Event for claims that wait for a GPU in a form that no GPU of the cluster is offered in. The scheduler only
// reports that no node has such a device.
package waiting

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/explain"
)

// Reason is the reason of the Events: the doctor's code of the same.
const Reason = "NoSuchForm"

const (
	// period is how often the cluster's claims are listed. No other object is read while none of them waits.
	period = time.Minute
	// patience is how long a claim waits until it gets an Event: the node that can have it may be about to publish.
	patience = time.Minute
	// again is when a claim that still waits gets one again, which is also how long the API server keeps an Event.
	again = time.Hour
	// most bounds the Events of one period. A tenant may have thousands of claims.
	most = 50
	// pageSize is how many objects are listed at a time.
	pageSize = 500
)

// reporter writes the Events.
type reporter struct {
	reader   client.Reader
	events   record.EventRecorder
	now      func() time.Time
	reported map[types.UID]time.Time // when each claim last got an Event
}

// Adder adds the reporter to a manager.
//
// Rights: resource.k8s.io resourceclaims and resourceslices list, deviceclasses get; events create, patch. The controller has them where
// the chart's GPUs are enabled.
func Adder(events record.EventRecorder) func(context.Context, ctrl.Manager) error {
	return func(_ context.Context, m ctrl.Manager) error {
		return m.Add(&reporter{reader: m.GetAPIReader(), events: events, now: time.Now, reported: map[types.UID]time.Time{}})
	}
}

// Start implements manager.Runnable.
func (r *reporter) Start(ctx context.Context) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch err := r.look(ctx); {
		case err == nil || ctx.Err() != nil:
		case apierrors.IsForbidden(err):
			klog.FromContext(ctx).V(2).Info("Claims that wait for a form of a GPU do not get an Event: the chart's GPUs are not enabled", "err", err)
		default:
			klog.FromContext(ctx).Error(err, "Claims that wait for a form of a GPU get their Events later")
		}
	}
}

// look writes Events for the claims that are due.
func (r *reporter) look(ctx context.Context) error {
	cluster := &explain.Cluster{Classes: map[string]*resourceapi.DeviceClass{}}
	due := map[string]*resourceapi.ResourceClaim{} // by namespace and name
	present := map[types.UID]time.Time{}
	for next := ""; ; {
		page := &resourceapi.ResourceClaimList{}
		if err := r.reader.List(ctx, page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return fmt.Errorf("list the ResourceClaims: %w", err)
		}
		for i := range page.Items {
			c := &page.Items[i]
			if c.Status.Allocation != nil {
				// There are thousands of these: only their devices are kept, and the requests of shares.
				held := resourceapi.ResourceClaim{}
				held.Status.Allocation = c.Status.Allocation
				if slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
					return r.ShareID != nil
				}) {
					held.Spec = c.Spec // its class is that of a GPU that is not published while it is full
				}
				cluster.Claims = append(cluster.Claims, held)
				continue
			}
			reported, known := r.reported[c.UID]
			if known {
				present[c.UID] = reported
			}
			if r.now().Sub(c.CreationTimestamp.Time) >= patience && (!known || r.now().Sub(reported) >= again) {
				cluster.Claims = append(cluster.Claims, *c)
				due[c.Namespace+"/"+c.Name] = c
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	r.reported = present
	if len(due) == 0 {
		return nil
	}
	if err := r.read(ctx, cluster, due); err != nil {
		return err
	}
	r.report(explain.Explain(cluster), due)
	return nil
}

// read adds the classes that the claims name, and the devices of the GPU driver.
func (r *reporter) read(ctx context.Context, cluster *explain.Cluster, due map[string]*resourceapi.ResourceClaim) error {
	for _, claim := range due {
		for _, name := range classesOf(claim) {
			if _, known := cluster.Classes[name]; known {
				continue
			}
			class := &resourceapi.DeviceClass{}
			if err := r.reader.Get(ctx, client.ObjectKey{Name: name}, class); apierrors.IsNotFound(err) {
				class = nil
			} else if err != nil {
				return fmt.Errorf("get DeviceClass %s: %w", name, err)
			}
			cluster.Classes[name] = class
		}
	}
	for next := ""; ; {
		page := &resourceapi.ResourceSliceList{}
		if err := r.reader.List(ctx, page, client.MatchingFields{resourceapi.ResourceSliceSelectorDriver: devices.Driver},
			client.Limit(pageSize), client.Continue(next)); err != nil {
			return fmt.Errorf("list the ResourceSlices of %s: %w", devices.Driver, err)
		}
		cluster.Slices = append(cluster.Slices, page.Items...)
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func classesOf(claim *resourceapi.ResourceClaim) []string {
	var names []string
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			names = append(names, r.Exactly.DeviceClassName)
		}
		for _, alternative := range r.FirstAvailable {
			names = append(names, alternative.DeviceClassName)
		}
	}
	return names
}

// tell writes an Event for each claim with a request for a form in which no GPU is offered. Where no GPU is published at all, no
// form is missing.
func (r *reporter) report(answer explain.Answer, due map[string]*resourceapi.ResourceClaim) {
	if len(answer.Nodes) == 0 {
		return
	}
	other := 0
	for i := range answer.Nodes {
		if answer.Nodes[i].Free > 0 {
			other++
		}
	}
	left := most
	for _, waits := range answer.Waiting {
		claim, found := due[waits.Name]
		if !found {
			continue
		}
		request, wants := missing(claim, waits.Requests)
		if wants == "" || left == 0 {
			continue
		}
		left--
		r.reported[claim.UID] = r.now()
		// The claim's author may be a tenant, and reads the number of nodes, not their names: the doctor shows these to an administrator.
		r.events.Eventf(about(claim), corev1.EventTypeWarning, Reason,
			"Claim %s, request %s asks for %s, and no GPU of the cluster is offered so. %d nodes have GPUs of other forms that no claim "+
				"holds. An administrator can have one offer it with the node label gpufabric.io/gpu-forms: "+
				"gpufabric doctor gpu --claim=%s shows where and how", claim.Name, request, wants, other, waits.Name)
	}
}

// missing returns the first request that no GPU is offered for in any of its alternatives, and its form; empty: there is none. An
// alternative that is not in answers is another driver's, and may be had.
func missing(claim *resourceapi.ResourceClaim, answers []explain.Request) (name, wants string) {
	for _, r := range claim.Spec.Devices.Requests {
		var asked []string
		for _, a := range answers {
			if request, _, _ := strings.Cut(a.Name, "/"); request == r.Name && a.Wants != "" && a.Offered == 0 {
				asked = append(asked, a.Wants)
			}
		}
		if len(asked) > 0 && len(asked) == max(1, len(r.FirstAvailable)) {
			return r.Name, strings.Join(asked, " or ")
		}
	}
	return "", ""
}

// about is the object of the Event: the pod whose claim was made from a template, else the claim.
func about(claim *resourceapi.ResourceClaim) *corev1.ObjectReference {
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: claim.Namespace, Name: owner.Name,
			UID: owner.UID}
	}
	return &corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace,
		Name: claim.Name, UID: claim.UID}
}
