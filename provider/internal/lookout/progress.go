package lookout

import (
	"context"

	"github.com/hashicorp/terraform-plugin-log/tflog"
)

// Progress writes the reason of a wait to the log (TF_LOG=INFO shows it).
func Progress(ctx context.Context, what, missing string) {
	if missing != "" {
		tflog.Info(ctx, what+": waiting", map[string]any{"for": missing})
	}
}
