package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/release"
)

// adviseUpgrade warns about pods that a planned upgrade disturbs. A cluster that does not answer is no reason to fail a plan.
func adviseUpgrade(ctx context.Context, connection *cluster.Connection, spec release.Spec) diag.Diagnostics {
	now := snapshot(ctx, connection)
	if now == nil {
		return nil
	}
	var impact release.Impact
	if !ask(ctx, connection, "knowing what the upgrade disturbs", func(ctx context.Context, client *cluster.Client) (err error) {
		impact, err = release.NewManager(client, spec.Namespace).Impact(ctx, spec)
		return err
	}) {
		return nil
	}
	return upgradeWarnings(impact, now.Inventory)
}

func upgradeWarnings(impact release.Impact, now *inventory.Inventory) diag.Diagnostics {
	var diags diag.Diagnostics
	pods := func(t release.Touched) []string {
		return now.Holders(func(d *inventory.Device, _ *inventory.Claim) bool {
			return d.Driver == t.Driver && slices.Contains(t.Nodes, d.Node)
		})
	}
	where := func(t release.Touched) string {
		if len(t.Nodes) == 0 {
			return t.Workload
		}
		return fmt.Sprintf("%s on %d nodes (%s)", t.Workload, len(t.Nodes), few(t.Nodes))
	}
	var lines []string
	for _, t := range impact.Restarted {
		line := where(t)
		if t.Driver != "" {
			line += fmt.Sprintf(
				": pods that claim devices of %s wait while their node's plugin restarts; the %d pods that hold some keep them",
				t.Driver,
				len(pods(t)),
			)
		}
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		diags.AddWarning("Drivers will be restarted", "The upgrade replaces the pods of:\n"+strings.Join(lines, "\n"))
	}
	lines = nil
	for _, t := range impact.Removed {
		line := where(t)
		if held := pods(t); t.Driver != "" && len(held) > 0 {
			line += fmt.Sprintf(
				": %d pods hold devices of %s, and once they end nobody unprepares their claims, so that they stay Terminating: %s",
				len(held),
				t.Driver,
				few(held),
			)
		}
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		diags.AddWarning("Drivers will be removed", "The upgrade removes:\n"+strings.Join(lines, "\n"))
	}
	return diags
}
