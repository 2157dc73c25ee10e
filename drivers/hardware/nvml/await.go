package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/hardware/driver"
)

// awaitPause is how long Await waits before it looks for the driver again: nothing tells when a driver is installed.
const awaitPause = 10 * time.Second

// Await starts a library, and waits for a driver that is not there yet: it may be installed while the node runs. told gets in a word and
// in words what is waited for, once for each. The error is that of ctx.
func Await(ctx context.Context, lib nvml.Interface, driverRoot string, told func(reason, message string)) error {
	last := ""
	for {
		code := lib.Init()
		if code == nvml.SUCCESS {
			return nil
		}
		reason := reasonOf(code)
		message := fmt.Sprintf("waiting for the NVIDIA driver: starting NVML under %s: %s (is the driver installed there, and its kernel "+
			"module loaded?)", driverRoot, describe(code))
		if l, ok := lib.(*located); ok {
			reason, message = l.explain(reason, message)
		}
		if message != last {
			told(reason, message)
			last = message
		}
		select {
		case <-time.After(awaitPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// What is wrong with a driver, in a word, beside package driver's.
const (
	// TooOld: the library lacks functions that the roles call.
	TooOld = "DriverTooOld"
	// Failed: the library does not start, for another reason.
	Failed = "DriverFailed"
)

// reasonOf is what the library itself says of why it does not start.
func reasonOf(code nvml.Return) string {
	switch code {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return driver.NotFound
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return driver.NotLoaded
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return driver.VersionsDiffer
	default:
		return Failed
	}
}
