package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
)

var (
	_ resource.ResourceWithConfigure   = (*driverStackResource)(nil)
	_ resource.ResourceWithImportState = (*driverStackResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*driverStackResource)(nil)

	_ resource.ResourceWithValidateConfig = (*driverStackResource)(nil)
	_ resource.ResourceWithIdentity       = (*driverStackResource)(nil)
	_ resource.ResourceWithMoveState      = (*driverStackResource)(nil)
)

type driverStackResource struct {
	connection *cluster.Connection
	origin     *object.Origin
}

func newDriverStackResource() resource.Resource { return &driverStackResource{} }

func (r *driverStackResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_driver_stack"
}

func (r *driverStackResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = driverStackSchema(ctx)
}

func (r *driverStackResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"namespace": identityschema.StringAttribute{RequiredForImport: true, Description: "Namespace of the release."},
		"name":      identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the release."},
	}}
}

func (r *driverStackResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
	r.origin = originFrom(req.ProviderData)
}

func (r *driverStackResource) ValidateConfig(_ context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	resp.Diagnostics.Append(nullElements(req.Config.Raw)...)
}

func (r *driverStackResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m driverStackModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("values_wo"), &m.SecretValues)...) // a plan holds none
	if resp.Diagnostics.HasError() {
		return
	}
	hidden := m.redaction(ctx)
	ctx = hidden.log(ctx)
	defer func() { hidden.purge(&resp.Diagnostics) }()
	timeout, diags := m.Timeouts.Create(ctx, defaultApplyTimeout)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	owner := object.NewOwner()
	mark, end := r.origin.Begin(owner)
	defer end()
	manager, installed, secret := r.apply(ctx, &m, true, func(ctx context.Context, manager *release.Manager, spec release.Spec) (
		*release.Release, error) {
		spec.Owner, spec.Creation = owner, mark
		return manager.Install(ctx, spec, r.origin.Abandoned, timeout)
	}, &resp.Diagnostics)
	if installed == nil {
		return
	}
	defer endStackCreation(ctx, manager, installed, &resp.Diagnostics)
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
	salt, diags := saltIn(ctx, resp.Private)
	resp.Diagnostics.Append(diags...)
	m.observe(installed, secret, salt)
	resp.Diagnostics.Append(rememberSecrets(ctx, resp.Private, secret)...)
	record := installed.Record()
	resp.Diagnostics.Append(setStackRecord(ctx, resp.Private, record)...)
	m.observeRollout(release.Rollout{})
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
	// From here on nothing is an error: it would taint the stack, and the next apply would remove drivers that merely start slowly.
	unfinished := r.settle(ctx, manager, &m, installed, &record, timeout, &resp.Diagnostics)
	resp.Diagnostics.Append(setStackRecord(ctx, resp.Private, record)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
	if unfinished != nil {
		resp.Diagnostics.AddWarning(
			unfinished.summary,
			unfinished.detail+"\n\nThe release stays and is in the state; the next terraform apply goes on waiting.",
		)
	}
}

func (r *driverStackResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m, state driverStackModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("values_wo"), &m.SecretValues)...)
	if resp.Diagnostics.HasError() {
		return
	}
	hidden := m.redaction(ctx)
	ctx = hidden.log(ctx)
	defer func() { hidden.purge(&resp.Diagnostics) }()
	timeout, diags := m.Timeouts.Update(ctx, defaultApplyTimeout)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	salt, diags := saltIn(ctx, resp.Private)
	resp.Diagnostics.Append(diags...)
	record := stackRecordIn(ctx, req.Private, &resp.Diagnostics)
	changes := !m.sameRelease(&state)
	manager, upgraded, secret := r.apply(ctx, &m, changes, func(ctx context.Context, manager *release.Manager, spec release.Spec) (
		*release.Release, error) {
		if spec.Owner = record.Owner; spec.Owner == "" {
			spec.Owner = object.NewOwner()
		}
		return manager.Upgrade(ctx, spec, record, r.origin.Abandoned, timeout)
	}, &resp.Diagnostics)
	if upgraded == nil {
		r.observeFailure(ctx, manager, &state, append(secret, recallSecrets(ctx, req.Private, &resp.Diagnostics)...), salt, resp)
		return
	}
	record = record.Follow(upgraded)
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
	m.observe(upgraded, secret, salt)
	resp.Diagnostics.Append(rememberSecrets(ctx, resp.Private, secret)...)
	unfinished := r.settle(ctx, manager, &m, upgraded, &record, timeout, &resp.Diagnostics)
	resp.Diagnostics.Append(setStackRecord(ctx, resp.Private, record)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
	if unfinished != nil {
		resp.Diagnostics.AddError(unfinished.summary, unfinished.detail+"\n\nThe release is upgraded; the next terraform apply goes on waiting.")
	}
}

// operation brings a release to spec.
type operation func(ctx context.Context, m *release.Manager, spec release.Spec) (*release.Release, error)

// endStackCreation removes the mark of a creation: from here on the state holds the release.
func endStackCreation(ctx context.Context, manager *release.Manager, installed *release.Release, diags *diag.Diagnostics) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if err := manager.Settled(ctx, installed); err != nil {
		summary, detail := explain("record that the release is in the state", err)
		diags.AddWarning(summary, detail)
	}
}

// observeFailure records in the state the release after a failed upgrade, so that the next plan starts from the truth.
func (r *driverStackResource) observeFailure(
	ctx context.Context,
	manager *release.Manager,
	state *driverStackModel,
	secret []string,
	salt []byte,
	resp *resource.UpdateResponse,
) {
	if manager == nil {
		return
	}
	if last, err := manager.Get(context.WithoutCancel(ctx), state.Name.ValueString()); err == nil && last != nil {
		state.observe(last, secret, salt)
		resp.Diagnostics.Append(rememberSecrets(ctx, resp.Private, secret)...)
		resp.Diagnostics.Append(resp.State.Set(ctx, state)...)
	}
}

func (r *driverStackResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m driverStackModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
	title := "driver stack " + m.Namespace.ValueString() + "/" + m.Name.ValueString()
	doing := "read " + title
	if !r.connection.Known() {
		addNotRefreshed(&resp.Diagnostics, title)
		return
	}
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	manager := release.NewManager(client, m.Namespace.ValueString())
	last, err := manager.Get(ctx, m.Name.ValueString())
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	if last == nil {
		resp.State.RemoveResource(ctx)
		return
	}
	record := stackRecordIn(ctx, req.Private, &resp.Diagnostics)
	if record.First.IsZero() { // an import
		if record, err = last.Import(); err != nil {
			addError(&resp.Diagnostics, "import "+title, err)
			return
		}
	}
	if !record.Holds(last) {
		resp.Diagnostics.AddWarning("Driver stack belongs to somebody else now", fmt.Sprintf("%s in the state was removed or taken over: the "+
			"cluster has a release of the same name that others installed. It is left alone.", capital(title)))
		resp.State.RemoveResource(ctx)
		return
	}
	secret := recallSecrets(ctx, req.Private, &resp.Diagnostics)
	hidden := redactionIn(last, secret)
	ctx = hidden.log(ctx)
	defer func() { hidden.purge(&resp.Diagnostics) }()
	salt, diags := saltIn(ctx, resp.Private)
	resp.Diagnostics.Append(diags...)
	m.observe(last, secret, salt)
	resp.Diagnostics.Append(m.recall(last)...)
	state, err := manager.Rollout(ctx, last)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	state.Fallen(record.Scheduled)
	if state.Ready() { // the nodes that joined since count too
		record.Scheduled = state.Scheduled
	}
	resp.Diagnostics.Append(setStackRecord(ctx, resp.Private, record.Follow(last))...)
	state.Waiting = hidden.hideAll(state.Waiting)
	m.observeRollout(state)
	drift, err := manager.Drift(ctx, last, m.ignored(ctx, &resp.Diagnostics))
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	m.Drift = stringList(hidden.hideAll(last.Sentences(drift)))
	m.setDefaults()
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}

func (r *driverStackResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m driverStackModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := m.Timeouts.Delete(ctx, defaultDeleteTimeout)
	resp.Diagnostics.Append(diags...)
	doing := "remove driver stack " + m.ID.ValueString()
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	manager := release.NewManager(client, m.Namespace.ValueString())
	if secret := recallSecrets(ctx, req.Private, &resp.Diagnostics); len(secret) > 0 {
		last, err := manager.Get(ctx, m.Name.ValueString())
		if err != nil {
			addError(&resp.Diagnostics, doing, err)
			return
		}
		hidden := redactionIn(last, secret)
		ctx = hidden.log(ctx)
		defer func() { hidden.purge(&resp.Diagnostics) }()
	}
	record := stackRecordIn(ctx, req.Private, &resp.Diagnostics)
	notes, err := manager.Uninstall(ctx, m.Name.ValueString(), record, release.Removal{CRDs: m.RemoveCRDs.ValueBool()}, timeout)
	var replaced *release.ReplacedError
	if errors.As(err, &replaced) {
		resp.Diagnostics.AddWarning("Driver stack left alone", capital(replaced.Error())+". It stays.")
		return
	}
	for _, note := range notes {
		resp.Diagnostics.AddWarning("Left behind", note)
	}
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
	}
}

func (r *driverStackResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	importKey(ctx, true, "driver stack", req, resp)
}

// apply runs install or upgrade, where it changes the release after the preflight, and reports errors; the release is nil then.
// secret names the values that must not be shown.
func (r *driverStackResource) apply(ctx context.Context, m *driverStackModel, changes bool, act operation,
	diags *diag.Diagnostics) (manager *release.Manager, applied *release.Release, secret []string) {
	doing := "install driver stack " + m.Namespace.ValueString() + "/" + m.Name.ValueString()
	spec, known := m.wanted(ctx, diags)
	if diags.HasError() {
		return nil, nil, nil
	}
	if !known {
		diags.AddError(
			"Values not known",
			"Could not "+doing+": chart or values are still unknown at apply time. This is a mistake in the provider.",
		)
		return nil, nil, nil
	}
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(diags, doing, err)
		return nil, nil, nil
	}
	manager = release.NewManager(client, spec.Namespace)
	if changes {
		if diags.Append(m.applyPreflight(ctx, r.connection, spec)...); diags.HasError() {
			return manager, nil, spec.Secret
		}
	}
	applied, err = act(ctx, manager, spec)
	if err != nil {
		addError(diags, doing, err)
		return manager, nil, spec.Secret
	}
	return manager, applied, spec.Secret
}

// settle waits for the rollout where wanted and records its progress.
func (r *driverStackResource) settle(
	ctx context.Context,
	manager *release.Manager,
	m *driverStackModel,
	installed *release.Release,
	record *release.Record,
	timeout time.Duration,
	diags *diag.Diagnostics,
) *unfinished {
	m.Drift = stringList(nil)
	watch := manager.Await
	if m.WaitFor.ValueString() == waitNone {
		watch = manager.Rollout
	}
	state, err := watch(ctx, installed)
	record.Scheduled = state.Scheduled
	state.Waiting = m.redaction(ctx).hideAll(state.Waiting)
	m.observeRollout(state)
	for _, note := range state.Notes {
		diags.AddWarning("Nothing to run on", note)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return &unfinished{"Driver stack not ready in time", fmt.Sprintf("After %s, %d of %d workloads of %s are rolled out. Waiting for:\n%s",
			timeout, state.Total-len(state.Waiting), state.Total, m.ID.ValueString(), strings.Join(state.Waiting, "\n"))}
	case errors.Is(err, context.Canceled):
		return &unfinished{"Interrupted", "The wait for the driver stack was interrupted. Waiting for:\n" + strings.Join(state.Waiting, "\n")}
	}
	m.Ready = types.BoolValue(false)
	_, detail := explain("watch driver stack "+m.ID.ValueString(), err)
	return &unfinished{"Could not watch the driver stack", detail}
}

// identify writes the identity, also before a removal: Terraform before 1.12 sends none, but the framework expects one in the
// answer.
func (m *driverStackModel) identify(ctx context.Context, identity *tfsdk.ResourceIdentity) diag.Diagnostics {
	if identity == nil {
		return nil
	}
	diags := identity.SetAttribute(ctx, path.Root("namespace"), m.Namespace)
	diags.Append(identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
	return diags
}
