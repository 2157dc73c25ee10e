package provider

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"helm.sh/helm/v3/pkg/chartutil"

	"gpufabric.io/provider/internal/release"
)

// chartValues merges the values documents and, over them, components and hardware; secret are those of values_wo, already in values. known
// is false while a part is unknown.
func (m *driverStackModel) chartValues(ctx context.Context, diags *diag.Diagnostics) (values, secret map[string]any, known bool) {
	if m.Values.IsUnknown() || listHasUnknown(m.Values) || listHasUnknown(m.SecretValues) || m.SecretValues.IsUnknown() ||
		objectHasUnknown(m.Components) ||
		objectHasUnknown(m.Hardware) {
		return nil, nil, false
	}
	open, ok := parseDocuments(ctx, m.Values, path.Root("values"), diags)
	hidden, alsoOK := parseDocuments(ctx, m.SecretValues, path.Root("values_wo"), diags)
	if !ok || !alsoOK {
		return nil, nil, true
	}
	values = release.MergeValues(append(open, m.componentValues(ctx, diags), m.hardwareValues(ctx, diags)))
	secret = release.MergeValues(hidden)
	shown := release.Flatten(values)
	for key := range release.Flatten(secret) {
		if _, both := shown[key]; both {
			diags.AddAttributeError(
				path.Root("values_wo"),
				"Value given twice",
				fmt.Sprintf(
					"values_wo: %s stands in values, components or hardware too, and those are kept in the state: remove it from one of them.",
					key,
				),
			)
			return nil, nil, true
		}
	}
	return release.MergeValues([]map[string]any{values, secret}), secret, true
}

// parseDocuments reads a list of YAML documents; a mistake is reported at its place.
func parseDocuments(ctx context.Context, list types.List, at path.Path, diags *diag.Diagnostics) ([]map[string]any, bool) {
	var texts []string
	if !list.IsNull() {
		diags.Append(list.ElementsAs(ctx, &texts, false)...)
	}
	documents := make([]map[string]any, 0, len(texts)+2)
	for i, text := range texts {
		parsed, err := release.ParseValues(text)
		if err != nil {
			where := at.AtListIndex(i)
			diags.AddAttributeError(where, "Invalid chart values", fmt.Sprintf("%s: %v.", where, err))
			return nil, false
		}
		documents = append(documents, parsed)
	}
	return documents, true
}

func (m *driverStackModel) componentValues(ctx context.Context, diags *diag.Diagnostics) map[string]any {
	values := map[string]any{}
	if m.Components.IsNull() {
		return values
	}
	var c componentsModel
	diags.Append(m.Components.As(ctx, &c, objectAsOptions)...)
	for _, component := range []struct {
		key string
		on  types.Bool
	}{{"computeDomains", c.ComputeDomains}, {"gpus", c.GPUs}, {"rdma", c.RDMA}, {"vgpu", c.VGPU}} {
		if !component.on.IsNull() {
			values[component.key] = map[string]any{"enabled": component.on.ValueBool()}
		}
	}
	return values
}

func (m *driverStackModel) hardwareValues(ctx context.Context, diags *diag.Diagnostics) map[string]any {
	if m.Hardware.IsNull() {
		return map[string]any{}
	}
	var h hardwareModel
	diags.Append(m.Hardware.As(ctx, &h, objectAsOptions)...)
	hardware := map[string]any{}
	for _, location := range []struct {
		key   string
		value types.String
	}{{"driverRoot", h.DriverRoot}, {"sysfsRoot", h.SysfsRoot}, {"devRoot", h.DevRoot}, {"procDevices", h.ProcDevices}} {
		if !location.value.IsNull() {
			hardware[location.key] = location.value.ValueString()
		}
	}
	if !h.HostMounts.IsNull() {
		list := []any{}
		for _, mount := range stringsOf(ctx, h.HostMounts, diags) {
			list = append(list, mount)
		}
		hardware["hostMounts"] = list
	}
	if !h.Privileged.IsNull() {
		hardware["privileged"] = h.Privileged.ValueBool()
	}
	return map[string]any{"hardware": hardware}
}

// wanted reads the chart and the values; known is false while either is unknown, and then the spec has the chart alone, if that is known.
func (m *driverStackModel) wanted(ctx context.Context, diags *diag.Diagnostics) (spec release.Spec, known bool) {
	if m.Chart.IsUnknown() {
		return spec, false
	}
	chart, err := release.Load(ctx, m.Chart.ValueString())
	if err != nil {
		diags.AddAttributeError(path.Root("chart"), "Invalid chart", capital(err.Error())+".")
		return spec, true
	}
	values, secret, known := m.chartValues(ctx, diags)
	if !known || diags.HasError() {
		return release.Spec{Chart: chart}, known
	}
	if err := chart.CheckValues(values); err != nil {
		diags.AddAttributeError(
			path.Root("values"),
			"Values the chart does not allow",
			fmt.Sprintf("The values (with components and hardware) do not fit the chart %s:\n%v", m.Chart.ValueString(), err),
		)
		return spec, true
	}
	return release.Spec{
		Name: m.Name.ValueString(), Namespace: m.Namespace.ValueString(), CreateNamespace: m.CreateNamespace.ValueBool(),
		Chart: chart, Values: values, Secret: slices.Sorted(maps.Keys(release.Flatten(secret))), Ignored: m.ignored(ctx, diags),
	}, true
}

// ignored reads drift_ignore; its elements were validated.
func (m *driverStackModel) ignored(ctx context.Context, diags *diag.Diagnostics) release.Ignored {
	var patterns []string
	if !m.DriftIgnore.IsNull() && !m.DriftIgnore.IsUnknown() {
		diags.Append(m.DriftIgnore.ElementsAs(ctx, &patterns, false)...)
	}
	ignored, err := release.ParseIgnored(patterns)
	if err != nil {
		diags.AddAttributeError(path.Root("drift_ignore"), "Invalid drift_ignore", err.Error()+".")
	}
	return ignored
}

// fingerprints stand for values in plans and states, so that one sees which value changes and not which value it is. They are made
// with a salt that only the private state has: a plan's reader cannot try values.
func fingerprints(values map[string]string, salt []byte) map[string]string {
	for name, value := range values {
		mac := hmac.New(sha256.New, salt)
		mac.Write([]byte(name + "=" + value))
		values[name] = hex.EncodeToString(mac.Sum(nil)[:6])
	}
	return values
}

// saltKey holds in private state the salt of the fingerprints.
const saltKey = "salt"

// saltIn returns the salt of a resource, and makes one where there is none yet.
func saltIn(ctx context.Context, private privateState) ([]byte, diag.Diagnostics) {
	text, diags := private.GetKey(ctx, saltKey)
	var salt string
	if len(text) > 0 && json.Unmarshal(text, &salt) == nil {
		return []byte(salt), diags
	}
	salt = rand.Text()
	diags.Append(private.SetKey(ctx, saltKey, fmt.Appendf(nil, "%q", salt))...)
	return []byte(salt), diags
}

// stackRecordKey holds in private state which release is the state's.
const stackRecordKey = "release"

func setStackRecord(ctx context.Context, private privateState, record release.Record) diag.Diagnostics {
	text, err := json.Marshal(record)
	if err != nil {
		return diag.Diagnostics{diag.NewErrorDiagnostic("Cannot write private state", err.Error())} // a time always becomes JSON
	}
	return private.SetKey(ctx, stackRecordKey, text)
}

func stackRecordIn(ctx context.Context, private privateState, diags *diag.Diagnostics) release.Record {
	var record release.Record
	text, more := private.GetKey(ctx, stackRecordKey)
	diags.Append(more...)
	if len(text) > 0 {
		if err := json.Unmarshal(text, &record); err != nil {
			diags.AddError("Private state cannot be read", fmt.Sprintf("The record of the release is not in this provider's form: %v.", err))
		}
	}
	return record
}

// observe copies the values that Helm has stored, without the values of these names, which are secret.
func (m *driverStackModel) observe(r *release.Release, secret []string, salt []byte) {
	m.ID = types.StringValue(r.Namespace + "/" + r.Name)
	m.Name, m.Namespace = types.StringValue(r.Name), types.StringValue(r.Namespace)
	m.ChartVersion, m.AppVersion, m.ChartDigest = types.StringValue(
		r.ChartVersion,
	), types.StringValue(
		r.AppVersion,
	), types.StringValue(
		r.ChartDigest,
	)
	m.EffectiveValues = mapOf(fingerprints(without(release.Flatten(r.Values), secret), salt))
	m.Revision, m.Status = types.Int64Value(int64(r.Revision)), types.StringValue(r.Status)
}

// recall fills in after an import, which comes without a configuration, what the release holds of one: the values, and the name of the
// archive that `helm package` makes of the chart. Nothing records where the chart came from. Values that came by values_wo must not come
// into a state, and which they are is not recorded with the release: then no value is filled in.
func (m *driverStackModel) recall(r *release.Release) diag.Diagnostics {
	var diags diag.Diagnostics
	if !m.Chart.IsNull() {
		return diags
	}
	m.Chart = types.StringValue(r.ChartName + "-" + r.ChartVersion + ".tgz")
	if r.HasSecrets() {
		diags.AddAttributeWarning(path.Root("values"), "Values of the release are left out",
			fmt.Sprintf("Release %s/%s was given secret values by values_wo, and the state would show them. Write values and values_wo into the "+
				"configuration before you apply it: the plan shows which values change.", r.Namespace, r.Name))
		return diags
	}
	if len(r.Values) > 0 {
		text, err := chartutil.Values(r.Values).YAML()
		if err != nil {
			diags.AddError("Cannot write the values of the release", err.Error())
			return diags
		}
		m.Values = stringList([]string{text})
	}
	return diags
}

func (m *driverStackModel) observeRollout(state release.Rollout) {
	m.Ready = types.BoolValue(state.Ready())
	m.Waiting = stringList(state.Waiting)
}

func without(values map[string]string, names []string) map[string]string {
	for _, name := range names {
		delete(values, name)
	}
	return values
}

// secretKey holds in private state the names of the values that came by values_wo, so that a refresh leaves them out.
const secretKey = "secret-values"

// privateState is a resource's storage that no plan shows.
type privateState interface {
	GetKey(ctx context.Context, key string) ([]byte, diag.Diagnostics)
	SetKey(ctx context.Context, key string, value []byte) diag.Diagnostics
}

func rememberSecrets(ctx context.Context, private privateState, names []string) diag.Diagnostics {
	text, err := json.Marshal(names)
	if err != nil {
		return diag.Diagnostics{diag.NewErrorDiagnostic("Cannot write private state", err.Error())} // strings always become JSON
	}
	return private.SetKey(ctx, secretKey, text)
}

func recallSecrets(ctx context.Context, private privateState, diags *diag.Diagnostics) []string {
	text, more := private.GetKey(ctx, secretKey)
	diags.Append(more...)
	var names []string
	if len(text) > 0 {
		if err := json.Unmarshal(text, &names); err != nil {
			diags.AddError(
				"Private state cannot be read",
				fmt.Sprintf("The names of secret values are not in the form in which this provider writes them: %v.", err),
			)
		}
	}
	return names
}
