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

// adviceTimeout bounds how long a plan reads a cluster for advice. One that does not answer at all costs the time of the first request
// (cluster.Connection); a slow one is worth the wait, since a plan without the warnings looks like one that disturbs nothing.
const adviceTimeout = time.Minute

// ask reads something for advice during a plan, and reports whether it could. A plan must not fail because the cluster does not
// answer, or lacks these kinds.
func ask(ctx context.Context, connection *cluster.Connection, about string, read func(context.Context, *cluster.Client) error) bool {
	if connection == nil || !connection.Known() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, adviceTimeout)
	defer cancel()
	client, err := connection.Client(ctx)
	if err != nil {
		return false
	}
	if err := read(ctx, client); err != nil {
		tflog.Info(ctx, "planning without "+about, map[string]any{"because": err.Error()})
		return false
	}
	return true
}

// snapshot returns the present inventory, or nil.
func snapshot(ctx context.Context, connection *cluster.Connection) *inventory.Snapshot {
	var now *inventory.Snapshot
	if !ask(ctx, connection, "live capacity", func(ctx context.Context, client *cluster.Client) (err error) {
		now, err = client.Inventory.Snapshot(ctx)
		return err
	}) {
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
