package provider

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/drivers/doctor/preflight"
	seen "gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/release"
)

// The modes of a preflight.
const (
	preflightFail = "fail"
	preflightWarn = "warn"
	preflightOff  = "off"
)

// preflightTimeout bounds the checks before an apply. A plan waits for adviceTimeout.
const preflightTimeout = time.Minute

// mode is the preflight's mode. Unset means warn.
func (m *driverStackModel) mode() string {
	if m.Preflight.IsNull() || m.Preflight.IsUnknown() {
		return preflightWarn
	}
	return m.Preflight.ValueString()
}

// planPreflight reports problems of the cluster at plan time. A cluster that does not answer must not fail a plan: the apply checks
// again.
func (m *driverStackModel) planPreflight(ctx context.Context, connection *cluster.Connection, spec release.Spec) diag.Diagnostics {
	if m.mode() == preflightOff || connection == nil || !connection.Known() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adviceTimeout)
	defer cancel()
	checks, err := preflightChecks(ctx, connection, spec)
	if err != nil {
		tflog.Info(ctx, "planning without a preflight", map[string]any{"because": err.Error()})
		return nil
	}
	return m.judge(checks)
}

// applyPreflight refuses an install or an upgrade where preflight is fail. The plan may be old, or may not have seen the cluster.
func (m *driverStackModel) applyPreflight(ctx context.Context, connection *cluster.Connection, spec release.Spec) diag.Diagnostics {
	if m.mode() != preflightFail {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	var diags diag.Diagnostics
	checks, err := preflightChecks(ctx, connection, spec)
	if err != nil {
		addError(&diags, fmt.Sprintf("make the preflight of driver stack %s/%s (preflight = \"warn\" or \"off\" does without)", spec.Namespace,
			spec.Name), err)
		return diags
	}
	return m.judge(checks)
}

// preflightChecks makes the checks with the provider's own rights and with the values for the chart.
func preflightChecks(ctx context.Context, connection *cluster.Connection, spec release.Spec) ([]preflight.Check, error) {
	client, err := connection.Client(ctx)
	if err != nil {
		return nil, err
	}
	text, err := spec.Chart.Values(spec.Values)
	if err != nil {
		return nil, err
	}
	values, err := preflight.Read(text)
	if err != nil {
		return nil, err
	}
	scope := seen.Scope{System: spec.Namespace, Preflight: true}
	reader, err := seen.NewReader(client.Config, scope)
	if err != nil {
		return nil, err
	}
	taken, err := reader.Read(ctx, scope)
	if err != nil {
		return nil, err
	}
	// Objects that were not read in time are missing, and no check passes because of them. A plan that was interrupted reports nothing.
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the cluster for the preflight: %w", err)
	}
	return preflight.Run(taken, values, spec.Namespace), nil
}

// judge makes diagnostics from failures and warnings. It omits parts that could not be read.
func (m *driverStackModel) judge(checks []preflight.Check) diag.Diagnostics {
	var diags diag.Diagnostics
	at := path.Root("preflight")
	failing, doubtful := preflight.Failing(checks), preflight.Warnings(checks)
	if len(failing) > 0 {
		summary := fmt.Sprintf("Preflight: %d of %d checks fail", len(failing), len(checks))
		text := "With this cluster and these values the drivers would not work:\n" + checkLines(failing)
		if m.mode() == preflightFail {
			diags.AddAttributeError(at, summary, text+"\n\nNothing was changed. Fix it, or set preflight = \"warn\" to go on in spite of it.")
		} else {
			diags.AddAttributeWarning(at, summary, text)
		}
	}
	if len(doubtful) > 0 {
		diags.AddAttributeWarning(at, "Preflight: look at this", checkLines(doubtful))
	}
	return diags
}

func checkLines(checks []preflight.Check) string {
	lines := make([]string, len(checks))
	for i, c := range checks {
		lines[i] = fmt.Sprintf("- %s: %s. %s (%s)", c.Name, strings.TrimSuffix(c.Detail, "."), c.Do, c.Entry)
	}
	return strings.Join(lines, "\n")
}
