package draplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

const (
	// conditionReady is the condition that the API defines for a prepared device.
	conditionReady = "Ready"
	// reportTimeout bounds a report. A slow API server must not use up the margin in which the kubelet wants its answer.
	reportTimeout = 2 * time.Second
	// maxConditionMessage is the API's limit for a condition's message, in bytes; Events take 1 KiB.
	maxConditionMessage, maxEventMessage = 32 << 10, 1 << 10
)

// reporter reports the result for a claim to users: Events on the claim and its pods, and a condition on the claim's devices. A claim that
// is prepared at the first try costs no write.
type reporter struct {
	config Config
	waits  waits
}

func newReporter(config Config) *reporter {
	return &reporter{config: config, waits: waits{claim: map[types.UID]*claimWait{}}}
}

// waiting reports the reason of a claim's wait, but not every variant of the message.
func (r *reporter) waiting(claim *resourceapi.ResourceClaim, reason, message string) {
	if r.waits.due(claim.UID, reason, message, time.Now()) {
		r.events(claim, corev1.EventTypeNormal, reason, message)
	}
}

// failed reports why a claim is not prepared. A young wait that merely outlasts the kubelet's call is no failure: its Event exists
// already, and the kubelet makes another from the answer.
func (r *reporter) failed(ctx context.Context, claim *resourceapi.ResourceClaim, err error) {
	defer caught(ctx, new(error))
	if ctx.Err() != nil && r.waits.patient(claim.UID, reasonOf(err), time.Now()) {
		return
	}
	r.events(claim, corev1.EventTypeWarning, reasonOf(err), err.Error())
	r.condition(ctx, claim, metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonOf(err), Message: err.Error()})
}

// succeeded removes the condition that failed wrote, if any.
func (r *reporter) succeeded(ctx context.Context, claim *resourceapi.ResourceClaim) {
	defer caught(ctx, new(error))
	r.waits.forget(claim.UID)
	for _, device := range claim.Status.Devices {
		if device.Driver == r.config.Driver && meta.IsStatusConditionFalse(device.Conditions, conditionReady) {
			r.condition(ctx, claim, metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: "Prepared",
				Message: "prepared on node " + r.config.Node.NodeName})
			return
		}
	}
}

// node reports a problem of the node as a whole.
func (r *reporter) node(reason, message string) {
	r.config.Recorder.Event(r.nodeReference(), corev1.EventTypeWarning, reason, truncate(message, maxEventMessage))
}

// nodeReference names the node as the kubelet's own Events do: with the name for a UID, by which kubectl describe looks for them.
func (r *reporter) nodeReference() runtime.Object {
	return &corev1.ObjectReference{Kind: "Node", Name: r.config.Node.NodeName, UID: types.UID(r.config.Node.NodeName)}
}

func (r *reporter) events(claim *resourceapi.ResourceClaim, kind, reason, message string) {
	message = truncate(message, maxEventMessage)
	r.config.Recorder.Event(&corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}, kind, reason, message)
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			r.config.Recorder.Event(&corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: consumer.Name, UID: consumer.UID,
			}, kind, reason, message)
		}
	}
}

// condition sets a condition on every device of this driver in the claim's status, unless it is set already.
func (r *reporter) condition(ctx context.Context, claim *resourceapi.ResourceClaim, condition metav1.Condition) {
	condition.Message = truncate(condition.Message, maxConditionMessage)
	condition.ObservedGeneration, condition.LastTransitionTime = claim.Generation, metav1.Now()
	// The call's own context may have ended: often its end is the error being reported.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	claims := r.config.Client.ResourceV1().ResourceClaims(claim.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		devices, changed := r.withCondition(claim, condition)
		if !changed {
			return nil
		}
		// A merge patch does not change the bytes of fields that it does not name. Server-side apply would write the claim's opaque
		// parameters with sorted keys. The API server takes that for a change of the allocation and refuses it.
		var patch bytes.Buffer
		encoder := json.NewEncoder(&patch)
		encoder.SetEscapeHTML(false) // other drivers' data must not change by a byte
		if err := encoder.Encode(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
			"status":   map[string]any{"devices": devices},
		}); err != nil {
			return err
		}
		_, err := claims.Patch(ctx, claim.Name, types.MergePatchType, patch.Bytes(), metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			return err
		}
		newest, getErr := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if getErr != nil || newest.UID != claim.UID || !equality.Semantic.DeepEqual(newest.Status.Allocation, claim.Status.Allocation) {
			return getErr // a claim that was allocated again may have devices of another node, of which this one knows nothing
		}
		claim = newest
		return err
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not set the claim's condition", "condition", condition.Type, "status", condition.Status)
	}
}

// withCondition returns the claim's device statuses with the condition on every device of this driver, and whether that changes any.
func (r *reporter) withCondition(claim *resourceapi.ResourceClaim, condition metav1.Condition) (devices []resourceapi.AllocatedDeviceStatus,
	changed bool) {
	devices = claim.DeepCopy().Status.Devices
	if claim.Status.Allocation == nil {
		return devices, false // there is no device for the condition
	}
	for _, allocated := range claim.Status.Allocation.Devices.Results {
		if allocated.Driver != r.config.Driver {
			continue
		}
		i := slices.IndexFunc(devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return d.Driver == allocated.Driver && d.Pool == allocated.Pool && d.Device == allocated.Device &&
				sameShare(d.ShareID, allocated.ShareID)
		})
		if i < 0 {
			entry := resourceapi.AllocatedDeviceStatus{Driver: allocated.Driver, Pool: allocated.Pool, Device: allocated.Device}
			if allocated.ShareID != nil {
				entry.ShareID = ptr.To(string(*allocated.ShareID))
			}
			devices, i = append(devices, entry), len(devices)
		}
		changed = meta.SetStatusCondition(&devices[i].Conditions, condition) || changed
	}
	return devices, changed
}

func sameShare(a *string, b *types.UID) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return *a == string(*b)
}

func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const more = "…"
	return strings.ToValidUTF8(text[:limit-len(more)], "") + more
}
