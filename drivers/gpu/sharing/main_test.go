package sharing

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/programs"
)

// The test program becomes a program of the driver as the role does.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "driver-program" {
		fmt.Fprintln(os.Stderr, programs.Enter(os.Args[2], os.Args[3], os.Args[4:]...))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func contextFor(t *testing.T, patience time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), patience)
}
