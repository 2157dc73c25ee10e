// Package webhook is the role webhook. It refuses claims, claim templates, device classes and this project's own objects whose
// configuration no node could apply, when they are written instead of when a pod waits for them. It uses the validators of the node
// plugins. It warns of a new ComputeDomain that fits no NVLink clique.
package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/validation"
)

// maxReason bounds a refusal: the API server shows it to the user unchanged.
const maxReason = 4 << 10

// Reviewer answers admission reviews.
type Reviewer struct {
	// Cliques describes the devices of the nodes of cliques; nil: then there are no warnings about ComputeDomains that do not fit.
	Cliques *Cliques
}

var _ admission.Handler = Reviewer{}

// Handle answers one review. It accepts unknown kinds.
func (r Reviewer) Handle(ctx context.Context, request admission.Request) admission.Response {
	if request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return admission.Allowed("")
	}
	if request.Operation == admissionv1.Update && standing(request.OldObject.Raw, request.Object.Raw) {
		return admission.Allowed("")
	}
	errs, err := review(request.Kind.Group, request.Kind.Version, request.Kind.Kind, request.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if len(errs) == 0 {
		return admission.Allowed("").WithWarnings(r.warnings(ctx, &request)...)
	}
	reason := errs.ToAggregate().Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	klog.FromContext(ctx).Info("Refused", "kind", request.Kind.Kind, "namespace", request.Namespace, "name", request.Name, "user",
		request.UserInfo.Username, "reason", reason)
	return admission.Denied(reason)
}

// standing reports whether an update leaves the spec unchanged, or is of an object that is being deleted. An object written while the
// webhook was away must still lose its finalizers and take labels: a claim's spec cannot be changed at all.
func standing(before, after []byte) bool {
	type object struct {
		Metadata struct {
			DeletionTimestamp *string `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec any `json:"spec"`
	}
	var had, has object
	if json.Unmarshal(before, &had) != nil || json.Unmarshal(after, &has) != nil {
		return false
	}
	return has.Metadata.DeletionTimestamp != nil || had.Spec != nil && reflect.DeepEqual(had.Spec, has.Spec)
}

// review decodes an object and returns its mistakes; the error is for an object that cannot be decoded.
func review(group, version, kind string, raw []byte) (field.ErrorList, error) {
	spec := field.NewPath("spec")
	switch group + "/" + version + "/" + kind {
	case "resource.k8s.io/v1/ResourceClaim":
		return decoded(raw, func(o *resourceapi.ResourceClaim) field.ErrorList { return validation.Claim(&o.Spec, spec) })
	case "resource.k8s.io/v1/ResourceClaimTemplate":
		return decoded(raw, func(o *resourceapi.ResourceClaimTemplate) field.ErrorList {
			return validation.Claim(&o.Spec.Spec, spec.Child("spec"))
		})
	case "resource.k8s.io/v1/DeviceClass":
		return decoded(raw, func(o *resourceapi.DeviceClass) field.ErrorList { return validation.DeviceClass(&o.Spec, spec) })
	case "gpufabric.io/v1alpha1/RDMAPool":
		return decoded(raw, func(o *v1alpha1.RDMAPool) field.ErrorList { return o.Spec.Validate(spec) })
	case "gpufabric.io/v1alpha1/MIGLayout":
		return decoded(raw, func(o *v1alpha1.MIGLayout) field.ErrorList { return o.Spec.Validate(spec) })
	case "gpufabric.io/v1alpha1/VGPUProfile":
		return decoded(raw, func(o *v1alpha1.VGPUProfile) field.ErrorList { return o.Spec.Validate(spec) })
	default:
		return nil, nil
	}
}

func decoded[T any](raw []byte, validate func(*T) field.ErrorList) (field.ErrorList, error) {
	object := new(T)
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, err
	}
	return validate(object), nil
}
