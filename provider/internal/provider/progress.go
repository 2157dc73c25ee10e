package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-log/tflog"
)

// progress writes what is waited for to the log (TF_LOG=INFO shows it).
func progress(ctx context.Context, what, missing string) {
	if missing != "" {
		tflog.Info(ctx, what+": waiting", map[string]any{"for": missing})
	}
}
