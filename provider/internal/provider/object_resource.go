package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/lookout"
	"gpufabric.io/provider/internal/object"
)

// objectModel is the Terraform side of one custom object. Implementations are pointers to structs with tfsdk tags.
type objectModel interface {
	// meta is the part all such resources share.
	meta() *objectMeta
	key() object.Key
	observeMeta(obj *unstructured.Unstructured)
	// fill writes labels and annotations into the object to apply.
	fill(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics
	// spec returns the object's spec as wanted.
	spec(ctx context.Context) (map[string]any, diag.Diagnostics)
	// observe copies spec and status from the object in the cluster.
	observe(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics
	// predict fills in the computed attributes that follow from the configuration.
	predict()
	// settled reports whether the object has reached the state that the resource waits for.
	settled() bool
}

// definition describes a resource that is one custom object.
type definition[M objectModel] struct {
	name   string // of the resource, without the provider's prefix
	kind   object.Kind
	schema func(ctx context.Context) schema.Schema
	empty  func() M
	// validate checks a fully known configuration with the API's own validation; nil: the schema covers everything.
	validate func(ctx context.Context, m M) (field.ErrorList, diag.Diagnostics)
	// attribute finds the attribute of an API field; nil: attributePath.
	attribute func(fieldPath string) path.Path
	// advise checks a planned creation (state is nil) or change against the present cluster; nil: no advice.
	advise func(ctx context.Context, now *inventory.Snapshot, state, plan M) diag.Diagnostics
	// await waits for the configured conditions and returns the object as last read, with a description of the missing ones.
	await func(ctx context.Context, client *cluster.Client, m M, obj *unstructured.Unstructured) (last *unstructured.Unstructured,
		waiting string, err error)
}

// objectResource is the life cycle of every resource that is one custom object.
type objectResource[M objectModel] struct {
	definition[M]
	connection *cluster.Connection
	origin     *object.Origin
}

func newObjectResource[M objectModel](d definition[M]) resource.Resource {
	return &objectResource[M]{definition: d}
}

const (
	defaultApplyTimeout  = 10 * time.Minute
	defaultDeleteTimeout = 10 * time.Minute
	// markTimeout bounds the removal of the mark of a creation, also after the apply's own time is over.
	markTimeout = 10 * time.Second
	// unfinishedKey marks in private state an object whose wait timed out: the next apply continues the wait.
	unfinishedKey = "unfinished"
	// recordKey holds in private state the object.Record of the object.
	recordKey = "object"
)

func (r *objectResource[M]) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + r.name
}

func (r *objectResource[M]) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = r.schema(ctx)
}

func (r *objectResource[M]) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	attributes := map[string]identityschema.Attribute{
		"name": identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the " + r.kind.Name + "."},
	}
	if r.kind.Namespaced {
		attributes["namespace"] = identityschema.StringAttribute{RequiredForImport: true, Description: "Namespace of the " + r.kind.Name + "."}
	}
	resp.IdentitySchema = identityschema.Schema{Attributes: attributes}
}

func (r *objectResource[M]) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
	r.origin = originFrom(req.ProviderData)
}

// ValidateConfig reports at plan time values that the API server or the node plugin would refuse later.
func (r *objectResource[M]) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(nullElements(req.Config.Raw)...)
	if r.validate == nil || !req.Config.Raw.IsFullyKnown() || resp.Diagnostics.HasError() {
		return
	}
	m := r.empty()
	resp.Diagnostics.Append(req.Config.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	errs, diags := r.validate(ctx, m)
	resp.Diagnostics.Append(diags...)
	at := r.attribute
	if at == nil {
		at = attributePath
	}
	addFieldErrors(&resp.Diagnostics, r.kind.Name, errs, at)
}

// Create applies the object, records it in the state, then waits. If the object is merely not ready in time, it ends with a
// warning: an error would taint the resource, and the next apply would delete a domain that is about to work.
func (r *objectResource[M]) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	m := r.empty()
	resp.Diagnostics.Append(req.Plan.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := m.meta().Timeouts.Create(ctx, defaultApplyTimeout)
	resp.Diagnostics.Append(diags...)
	client, obj := r.wanted(ctx, m, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	applied, recorded, err := object.NewStore(client, r.kind).Create(waiting, obj, r.origin, m.meta().ForceConflicts.ValueBool())
	if err != nil {
		addError(&resp.Diagnostics, "create "+r.title(m), err)
		return
	}
	defer r.endCreation(ctx, m, recorded, &resp.Diagnostics)
	resp.Diagnostics.Append(setRecord(ctx, resp.Private, object.RecordOf(applied))...)
	// Write identity and state before the wait: whatever happens in it, Terraform knows the object.
	resp.Diagnostics.Append(r.identify(ctx, resp.Identity, m)...)
	m.observeMeta(applied)
	resp.Diagnostics.Append(m.observe(ctx, applied)...)
	resp.Diagnostics.Append(keepPlanned(ctx, req.Plan, &resp.State, m)...)
	unfinished := r.settle(waiting, client, m, applied, timeout)
	resp.Diagnostics.Append(keepPlanned(ctx, req.Plan, &resp.State, m)...)
	if unfinished != nil {
		resp.Diagnostics.AddWarning(
			unfinished.summary,
			unfinished.detail+"\n\nThe object exists and is in the state; the next terraform apply goes on waiting.",
		)
		resp.Diagnostics.Append(resp.Private.SetKey(ctx, unfinishedKey, []byte("true"))...)
	}
}

// endCreation removes the mark of a creation: from here on the state holds the object.
func (r *objectResource[M]) endCreation(ctx context.Context, m M, recorded func(context.Context) error, diags *diag.Diagnostics) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if err := recorded(ctx); err != nil {
		summary, detail := explain("remove the annotation "+object.CreationAnnotation+" of "+r.title(m), err)
		diags.AddWarning(summary, detail+" The next change of the object removes it.")
	}
}

// Read copies the object into the state. An object of the name that is not the recorded one leaves the state alone with a warning:
// the recorded one is gone.
func (r *objectResource[M]) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	m := r.empty()
	resp.Diagnostics.Append(req.State.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	// Also before a removal: Terraform before 1.12 does not send an identity, but the framework expects one in the answer even then.
	resp.Diagnostics.Append(r.identify(ctx, resp.Identity, m)...)
	if !r.connection.Known() {
		addNotRefreshed(&resp.Diagnostics, r.title(m))
		return
	}
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "read "+r.title(m), err)
		return
	}
	obj, err := object.NewStore(client, r.kind).Get(ctx, m.key())
	if err != nil {
		addError(&resp.Diagnostics, "read "+r.title(m), err)
		return
	}
	if obj == nil {
		resp.State.RemoveResource(ctx)
		return
	}
	record := recordIn(ctx, req.Private, &resp.Diagnostics)
	importing := record.UID == ""
	if importing {
		if record, err = r.kind.Import(obj); err != nil {
			addError(&resp.Diagnostics, "import "+r.title(m), err)
			return
		}
	}
	if !record.Holds(obj) {
		resp.Diagnostics.AddWarning(r.kind.Name+" belongs to somebody else now", fmt.Sprintf(
			"%s in the state was deleted or taken over: the cluster has one of the same name with UID %s, made by others. It is left alone.",
			r.title(m), obj.GetUID()))
		resp.State.RemoveResource(ctx)
		return
	}
	resp.Diagnostics.Append(setRecord(ctx, resp.Private, record.Follow(obj))...)
	m.observeMeta(obj)
	resp.Diagnostics.Append(m.observe(ctx, obj)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if importing {
		if fields := r.unmanaged(ctx, m, obj); fields != "" {
			resp.Diagnostics.AddError(r.kind.Name+" cannot be imported", fmt.Sprintf("The resource has no attributes for fields of %s, which "+
				"an apply would remove: %s. Leave the object to the client that wrote them, and read it with the data source of the resource's "+
				"name; or remove the fields, and import it then.", r.title(m), fields))
			return
		}
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Update applies changes in place, or continues a wait that timed out. Here a time-out is an error: it does not taint.
func (r *objectResource[M]) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	m := r.empty()
	resp.Diagnostics.Append(req.Plan.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := m.meta().Timeouts.Update(ctx, defaultApplyTimeout)
	resp.Diagnostics.Append(diags...)
	client, obj := r.wanted(ctx, m, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	record := recordIn(ctx, req.Private, &resp.Diagnostics)
	store, force := object.NewStore(client, r.kind), m.meta().ForceConflicts.ValueBool()
	applied, reverted, err := store.Update(waiting, obj, record, force)
	if err == nil && applied == nil { // deleted since the plan
		var recorded func(context.Context) error
		if applied, recorded, err = store.Create(waiting, obj, r.origin, force); err == nil {
			defer r.endCreation(ctx, m, recorded, &resp.Diagnostics)
		}
	}
	if err != nil {
		addError(&resp.Diagnostics, "update "+r.title(m), err)
		if applied != nil { // a part was written: the state must not show the object as it was
			resp.Diagnostics.Append(setRecord(ctx, resp.Private, record.Follow(applied))...)
			m.observeMeta(applied)
			resp.Diagnostics.Append(m.observe(ctx, applied)...)
			resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
		}
		return
	}
	resp.Diagnostics.Append(setRecord(ctx, resp.Private, record.Follow(applied))...)
	for _, field := range reverted {
		resp.Diagnostics.AddWarning("A change by others was set back", fmt.Sprintf("%s of %s, last written by %s, is as configured again.",
			field.Field, r.title(m), field.Manager))
	}
	resp.Diagnostics.Append(r.identify(ctx, resp.Identity, m)...)
	m.observeMeta(applied)
	resp.Diagnostics.Append(m.observe(ctx, applied)...)
	unfinished := r.settle(waiting, client, m, applied, timeout)
	resp.Diagnostics.Append(keepPlanned(ctx, req.Plan, &resp.State, m)...)
	mark := []byte(nil)
	if unfinished != nil {
		resp.Diagnostics.AddError(unfinished.summary, unfinished.detail+"\n\nThe change is made; the next terraform apply goes on waiting.")
		mark = []byte("true")
	}
	resp.Diagnostics.Append(resp.Private.SetKey(ctx, unfinishedKey, mark)...)
}

func (r *objectResource[M]) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	m := r.empty()
	resp.Diagnostics.Append(req.State.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := m.meta().Timeouts.Delete(ctx, defaultDeleteTimeout)
	resp.Diagnostics.Append(diags...)
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "delete "+r.title(m), err)
		return
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last, err := object.NewStore(client, r.kind).Delete(waiting, m.key(), recordIn(ctx, req.Private, &resp.Diagnostics))
	var replaced *object.ReplacedError
	if errors.As(err, &replaced) {
		resp.Diagnostics.AddWarning(r.kind.Name+" left alone", fmt.Sprintf("%s in the state no longer exists. The one in the cluster (UID %s, "+
			"managed by %s) was made or taken over by others, and stays.", r.title(m), replaced.Found.UID, strings.Join(replaced.Managers, ", ")))
		return
	}
	if err == nil {
		return
	}
	if last == nil || !errors.Is(err, context.DeadlineExceeded) {
		addError(&resp.Diagnostics, "delete "+r.title(m), err)
		return
	}
	resp.Diagnostics.AddError(
		r.kind.Name+" does not go away",
		fmt.Sprintf("%s is marked for deletion, but after %s finalizers still hold it: %s. "+
			"Their controller removes them once everything of the object is cleaned up: check that it runs, and that no pod still uses the "+
			"object. Then destroy again.",
			r.title(m), timeout, strings.Join(last.GetFinalizers(), ", ")),
	)
}

// ImportState takes an identity, or an id of the form namespace/name (name alone for a cluster-wide kind).
func (r *objectResource[M]) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	importKey(ctx, r.kind.Namespaced, r.kind.Name, req, resp)
}

// advice reads the effects of a change from the cluster.
func (r *objectResource[M]) advice(ctx context.Context, state, plan M) diag.Diagnostics {
	if r.advise == nil {
		return nil
	}
	now := snapshot(ctx, r.connection)
	if now == nil {
		return nil
	}
	return r.advise(ctx, now, state, plan)
}

func (r *objectResource[M]) title(m M) string { return r.kind.Name + " " + m.key().String() }

// unmanaged names the fields of an object's spec that the resource has no attributes for, with their managers.
func (r *objectResource[M]) unmanaged(ctx context.Context, m M, obj *unstructured.Unstructured) string {
	spec, diags := m.spec(ctx)
	if diags.HasError() {
		return "" // the object is in a form that observe reads, and the API refuses
	}
	fields := object.Unmanaged(obj, &unstructured.Unstructured{Object: map[string]any{"spec": spec}})
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = fmt.Sprintf("%s (of %s)", f.Field, f.Manager)
	}
	return strings.Join(names, ", ")
}

// wanted connects and builds the object as configured.
func (r *objectResource[M]) wanted(ctx context.Context, m M, diags *diag.Diagnostics) (*cluster.Client, *unstructured.Unstructured) {
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(diags, "apply "+r.title(m), err)
		return nil, nil
	}
	obj := object.NewStore(client, r.kind).New(m.key())
	diags.Append(m.fill(ctx, obj)...)
	spec, more := m.spec(ctx)
	diags.Append(more...)
	obj.Object["spec"] = spec
	return client, obj
}

// identify writes the identity, where Terraform is new enough to ask for one.
func (r *objectResource[M]) identify(ctx context.Context, identity *tfsdk.ResourceIdentity, m M) diag.Diagnostics {
	if identity == nil {
		return nil
	}
	key := m.key()
	diags := identity.SetAttribute(ctx, path.Root("name"), key.Name)
	if r.kind.Namespaced {
		diags.Append(identity.SetAttribute(ctx, path.Root("namespace"), key.Namespace)...)
	}
	return diags
}

// keepPlanned writes a model to the state, with the planned values as planned: Terraform treats other values as a bug of the provider, and
// taints the new resource. Changes by others during the wait appear in the next plan.
func keepPlanned(ctx context.Context, plan tfsdk.Plan, state *tfsdk.State, model any) diag.Diagnostics {
	diags := state.Set(ctx, model)
	if diags.HasError() {
		return diags
	}
	var planned, applied map[string]tftypes.Value
	if err := errors.Join(plan.Raw.As(&planned), state.Raw.As(&applied)); err != nil {
		diags.AddError("Cannot write the state", fmt.Sprintf("%v. This is a mistake in the provider.", err))
		return diags
	}
	for name, value := range planned {
		if value.IsFullyKnown() {
			applied[name] = value
		}
	}
	state.Raw = tftypes.NewValue(state.Raw.Type(), applied)
	return diags
}

// setRecord and recordIn keep in private state which object is the state's.
func setRecord(ctx context.Context, private privateState, record object.Record) diag.Diagnostics {
	text, err := json.Marshal(record)
	if err != nil {
		return diag.Diagnostics{diag.NewErrorDiagnostic("Cannot write private state", err.Error())} // strings always become JSON
	}
	return private.SetKey(ctx, recordKey, text)
}

func recordIn(ctx context.Context, private privateState, diags *diag.Diagnostics) object.Record {
	var record object.Record
	text, more := private.GetKey(ctx, recordKey)
	diags.Append(more...)
	if len(text) > 0 {
		if err := json.Unmarshal(text, &record); err != nil {
			diags.AddError("Private state cannot be read", fmt.Sprintf("The record of the object is not in this provider's form: %v.", err))
		}
	}
	return record
}

// addNotRefreshed warns that a state is shown as it was.
func addNotRefreshed(diags *diag.Diagnostics, title string) {
	diags.AddWarning("Not refreshed", fmt.Sprintf("%s is planned as the state has it: the provider's cluster is only known after this apply. "+
		"Plan again then.", title))
}

type unfinished struct{ summary, detail string }

// settle waits and copies the object as last read; nil means that the wait is over.
func (r *objectResource[M]) settle(
	ctx context.Context,
	client *cluster.Client,
	m M,
	applied *unstructured.Unstructured,
	timeout time.Duration,
) *unfinished {
	overseen, kept := lookout.Keep(ctx, client, r.title(m))
	last, waiting, err := r.await(overseen, client, m, applied)
	inVain := errors.Is(context.Cause(overseen), lookout.ErrNoController)
	if trouble := kept.End(); trouble != "" {
		waiting += "; " + trouble
	}
	if last != nil {
		m.observe(ctx, last) // its diagnostics were reported with the object as applied
	}
	switch {
	case err == nil:
		return nil
	case inVain:
		return &unfinished{r.kind.Name + " is processed by nobody", fmt.Sprintf("The wait for %s was given up: %s.", r.title(m), waiting)}
	case errors.Is(err, context.DeadlineExceeded):
		return &unfinished{r.kind.Name + " not ready in time", fmt.Sprintf("After %s, %s is not there yet: %s.", timeout, r.title(m), waiting)}
	case errors.Is(err, context.Canceled):
		return &unfinished{"Interrupted", fmt.Sprintf("The wait for %s was interrupted: %s.", r.title(m), waiting)}
	}
	_, detail := explain("watch "+r.title(m), err)
	return &unfinished{"Could not watch " + r.title(m), detail}
}

// timeoutsAttribute is the timeouts attribute all resources share.
func timeoutsAttribute(ctx context.Context) schema.Attribute {
	attribute := timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true,
		CreateDescription: "How long creation may take, with waiting, as a duration such as `10m`. Default 10 minutes.",
		UpdateDescription: "How long a change may take, with waiting. Default 10 minutes.",
		DeleteDescription: "How long deletion may take until the object is gone. Default 10 minutes.",
	})
	nested, ok := attribute.(schema.SingleNestedAttribute)
	if !ok {
		return attribute
	}
	for name, inner := range nested.Attributes {
		if text, ok := inner.(schema.StringAttribute); ok {
			text.Validators = append(text.Validators, positiveDuration{})
			nested.Attributes[name] = text
		}
	}
	return nested
}
