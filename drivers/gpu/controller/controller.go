// Package controller is the cluster's part of the GPU driver. It creates a DeviceClass and claim templates for each VGPUProfile,
// counts how many slices fit where, and summarizes the nodes' reports on MIGLayouts.
package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

const (
	// fieldManager owns the fields that this controller writes.
	fieldManager = "gpufabric-controller"
	// crdPatience is how long it waits for its kinds: for ever, since the manager's other controllers do not need them.
	crdPatience = 100 * 365 * 24 * time.Hour
	// recount is how often the fitting slices are counted again. ResourceSlices are read page by page and not kept, so that the
	// controller's memory does not grow with the cluster's GPUs.
	recount = time.Minute
	// pageSize is how many objects are listed at a time.
	pageSize = 500
)

// Add adds the controllers to a manager.
//
// Rights: gpufabric.io vgpuprofiles and miglayouts get, list, watch; their status patch; resource.k8s.io deviceclasses get, create, patch,
// delete; resourceclaimtemplates get, create, patch, delete; resourceslices and resourceclaims list; core nodes list.
func Add(_ context.Context, m ctrl.Manager) error {
	if err := v1alpha1.AddToScheme(m.GetScheme()); err != nil {
		return err
	}
	// Several managers may run in one process, so controller names need not be unique.
	shared := true
	options := controller.Options{SkipNameValidation: &shared, MaxConcurrentReconciles: 1, CacheSyncTimeout: crdPatience}
	p := &profiles{client: m.GetClient(), reader: m.GetAPIReader(), claims: &claims{reader: m.GetAPIReader(), now: time.Now}, now: time.Now}
	if err := ctrl.NewControllerManagedBy(m).For(&v1alpha1.VGPUProfile{}).Named("vgpuprofile").WithOptions(options).Complete(p); err != nil {
		return err
	}
	l := &layouts{client: m.GetClient(), reader: m.GetAPIReader(), now: time.Now}
	return ctrl.NewControllerManagedBy(m).For(&v1alpha1.MIGLayout{}).Named("miglayout").WithOptions(options).Complete(l)
}

// applyStatus writes the fields of an object's status that belong to owner.
func applyStatus(ctx context.Context, c client.Client, kind, name, owner string, status any) error {
	object, err := v1alpha1.StatusOf(kind, name, status)
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(owner),
		client.ForceOwnership))
}

// setReady sets the condition Ready.
func setReady(conditions *[]metav1.Condition, generation int64, ready bool, reason, message string, now time.Time) {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	c := metav1.Condition{Type: "Ready", Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		LastTransitionTime: metav1.NewTime(now)}
	if old := meta.FindStatusCondition(*conditions, "Ready"); old != nil && old.Status == status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	meta.SetStatusCondition(conditions, c)
}
