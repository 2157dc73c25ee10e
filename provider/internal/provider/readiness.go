package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/lookout"
	"gpufabric.io/provider/internal/object"
)

// The conditions to wait for.
const (
	waitAccepted = "accepted"
	waitReady    = "ready"
)

// readiness is the common part of resources whose object has a Ready condition: embedded in their models.
type readiness struct {
	WaitFor  types.String `tfsdk:"wait_for"`
	Accepted types.Bool   `tfsdk:"accepted"`
	Ready    types.Bool   `tfsdk:"ready"`
	Message  types.String `tfsdk:"message"`
}

// addReadiness adds the attributes of readiness; accepted and ready are clauses that describe these words for the kind.
func addReadiness(attributes map[string]schema.Attribute, accepted, ready string) {
	attributes["wait_for"] = schema.StringAttribute{
		Optional:            true,
		Computed:            true,
		Default:             stringdefault.StaticString(waitAccepted),
		Validators:          []validator.String{stringvalidator.OneOf(waitNone, waitAccepted, waitReady)},
		MarkdownDescription: fmt.Sprintf("`accepted`, the default, waits until %s; `ready` until %s; `none` does not wait.", accepted, ready),
	}
	attributes["accepted"] = schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether " + accepted + "."}
	attributes["ready"] = schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether " + ready + "."}
	attributes["message"] = schema.StringAttribute{Computed: true, MarkdownDescription: "The controller's message."}
}

// observeConditions takes the status over; observed is the generation that it is about.
func (r *readiness) observeConditions(generation, observed int64, conditions []metav1.Condition) {
	condition := conditionOf(conditions, "Ready")
	r.WaitFor = types.StringValue(or(r.WaitFor.ValueString(), waitAccepted)) // none after an import
	r.Accepted = types.BoolValue(generation > 0 && observed >= generation)
	r.Ready = types.BoolValue(r.Accepted.ValueBool() && condition.Status == metav1.ConditionTrue)
	r.Message = types.StringValue(condition.Message)
}

func (r *readiness) settled() bool {
	switch r.WaitFor.ValueString() {
	case waitNone:
		return true
	case waitReady:
		return r.Ready.ValueBool()
	}
	return r.Ready.ValueBool() || r.Accepted.ValueBool()
}

// speaker is a model that can report the reason of its wait.
type speaker interface {
	objectModel
	waiting(ctx context.Context) string
}

// awaitCondition waits until the model itself is settled, for kinds whose status shows everything.
func awaitCondition[M speaker](
	kind object.Kind,
) func(context.Context, *cluster.Client, M, *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	return func(ctx context.Context, client *cluster.Client, m M, obj *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
		m.observe(ctx, obj) // its diagnostics were reported with the object as applied
		if m.settled() {
			return obj, "", nil
		}
		last, err := object.NewStore(client, kind).Await(ctx, m.key(), obj, func(obj *unstructured.Unstructured) (bool, error) {
			if obj == nil || obj.GetDeletionTimestamp() != nil {
				return false, object.ErrGone
			}
			m.observe(ctx, obj)
			lookout.Progress(ctx, kind.Name+" "+m.key().String(), m.waiting(ctx))
			return m.settled(), nil
		})
		if last == nil {
			last = obj
		}
		return last, m.waiting(ctx), err
	}
}

// conditionOf returns the condition of a type, or an empty one.
func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	for _, c := range conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}
