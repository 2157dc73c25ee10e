package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// awaitPause is how long Await waits before it looks for the driver again: nothing tells when a driver is installed.
const awaitPause = 10 * time.Second

// Await starts a library, and waits for a driver that is not there yet: it may be installed while the node runs. told gets in words what is
// waited for, once for each reason. The error is that of ctx.
func Await(ctx context.Context, lib nvml.Interface, driverRoot string, told func(message string)) error {
	last := ""
	for {
		code := lib.Init()
		if code == nvml.SUCCESS {
			return nil
		}
		message := fmt.Sprintf("waiting for the NVIDIA driver: starting NVML under %s: %s (is the driver installed there, and its kernel module loaded?)", driverRoot, describe(code))
		if l, ok := lib.(*located); ok {
			message = l.explain(message)
		}
		if message != last {
			told(message)
			last = message
		}
		select {
		case <-time.After(awaitPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
