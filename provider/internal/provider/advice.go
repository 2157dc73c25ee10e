package provider

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

// adviceTimeout bounds how long a plan waits for a cluster that does not answer.
const adviceTimeout = 5 * time.Second

// snapshot returns the present inventory, or nil: a plan must not fail because the cluster does not answer, or lacks these kinds.
func snapshot(ctx context.Context, connection *cluster.Connection) *inventory.Snapshot {
	if connection == nil || !connection.Known() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adviceTimeout)
	defer cancel()
	client, err := connection.Client(ctx)
	if err != nil {
		return nil
	}
	now, err := client.Inventory.Snapshot(ctx)
	if err != nil {
		tflog.Info(ctx, "planning without live capacity", map[string]any{"because": err.Error()})
		return nil
	}
	return now
}

// mostNamed is how many names a warning lists before it counts the rest.
const mostNamed = 20

// few joins names, the first of them when they are many.
func few(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}
