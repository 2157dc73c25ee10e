package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/release"
)

// chartValues merges the values documents and, over them, components and hardware. known is false while a part is unknown.
func (m *driverStackModel) chartValues(ctx context.Context, diags *diag.Diagnostics) (values map[string]any, known bool) {
	if m.Values.IsUnknown() || listHasUnknown(m.Values) || objectHasUnknown(m.Components) || objectHasUnknown(m.Hardware) {
		return nil, false
	}
	var texts []string
	if !m.Values.IsNull() {
		diags.Append(m.Values.ElementsAs(ctx, &texts, false)...)
	}
	documents := make([]map[string]any, 0, len(texts)+2)
	for i, text := range texts {
		parsed, err := release.ParseValues(text)
		if err != nil {
			at := path.Root("values").AtListIndex(i)
			diags.AddAttributeError(at, "Invalid chart values", fmt.Sprintf("%s: %v.", at, err))
			return nil, true
		}
		documents = append(documents, parsed)
	}
	documents = append(documents, m.componentValues(ctx, diags), m.hardwareValues(ctx, diags))
	return release.MergeValues(documents), true
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
		var mounts []string
		diags.Append(h.HostMounts.ElementsAs(ctx, &mounts, false)...)
		list := make([]any, len(mounts))
		for i, mount := range mounts {
			list[i] = mount
		}
		hardware["hostMounts"] = list
	}
	if !h.Privileged.IsNull() {
		hardware["privileged"] = h.Privileged.ValueBool()
	}
	return map[string]any{"hardware": hardware}
}

// wanted reads the chart and the values; known is false while either is unknown.
func (m *driverStackModel) wanted(ctx context.Context, diags *diag.Diagnostics) (spec release.Spec, known bool) {
	if m.Chart.IsUnknown() {
		return spec, false
	}
	chart, err := release.Load(m.Chart.ValueString())
	if err != nil {
		diags.AddAttributeError(path.Root("chart"), "Invalid chart", capital(err.Error())+".")
		return spec, true
	}
	values, known := m.chartValues(ctx, diags)
	if !known || diags.HasError() {
		return spec, known
	}
	if err := chart.CheckValues(values); err != nil {
		diags.AddAttributeError(path.Root("values"), "Values the chart does not allow", fmt.Sprintf("The values (with components and hardware) do not fit the chart %s:\n%v", m.Chart.ValueString(), err))
		return spec, true
	}
	return release.Spec{
		Name: m.Name.ValueString(), Namespace: m.Namespace.ValueString(), CreateNamespace: m.CreateNamespace.ValueBool(),
		Chart: chart, Values: values,
	}, true
}

// observe takes over what Helm has stored.
func (m *driverStackModel) observe(r *release.Release) {
	m.ID = types.StringValue(r.Namespace + "/" + r.Name)
	m.Name, m.Namespace = types.StringValue(r.Name), types.StringValue(r.Namespace)
	m.ChartVersion, m.AppVersion, m.ChartDigest = types.StringValue(r.ChartVersion), types.StringValue(r.AppVersion), types.StringValue(r.ChartDigest)
	m.EffectiveValues = mapOf(release.Flatten(r.Values))
	m.Revision, m.Status = types.Int64Value(int64(r.Revision)), types.StringValue(r.Status)
}

func (m *driverStackModel) observeRollout(state release.Rollout) {
	m.Ready = types.BoolValue(state.Ready())
	m.Waiting = stringList(state.Waiting)
}
