package nvml

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/pci"
)

// awaitPause is how long Await waits before it looks for the driver again: there is no event for a driver's installation.
const awaitPause = 10 * time.Second

// KernelDriver is the name of NVIDIA's kernel driver in sysfs.
const KernelDriver = "nvidia"

// Bound counts the GPUs that NVIDIA's kernel driver has bound, for Await.
func Bound(sysfsRoot string) func() int {
	sysfs := pci.NewFS(sysfsRoot)
	return func() int { return len(sysfs.Bound(KernelDriver)) }
}

// awaitLooks is how often Await looks for missing GPUs before it continues without them: one may be broken for good.
const awaitLooks = 3

// Await starts a library, and waits for a driver that is not there yet: it may be installed while the node runs. NVML lists GPUs
// when it starts. So Await starts it again while it shows none of the GPUs that bound counts, and a few times while it lacks some:
// a driver container makes their device nodes one after another. Await calls report with a reason and a message for each wait,
// once. It returns ctx's error.
func Await(ctx context.Context, lib nvml.Interface, driverRoot string, bound func() int, report func(reason, message string)) error {
	last := ""
	for lacking := 0; ; {
		code := lib.Init()
		if code == nvml.SUCCESS {
			shown, has := 0, bound()
			if shown, code = lib.DeviceGetCount(); code != nvml.SUCCESS || shown >= has {
				return nil // errors of one GPU are returned by the calls for that GPU
			}
			if lacking++; shown > 0 && lacking >= awaitLooks {
				return nil
			}
			_ = lib.Shutdown()
			message := fmt.Sprintf("waiting for the GPUs' device nodes: the NVIDIA driver has taken %d GPUs, and NVML under %s shows %d of them",
				has, driverRoot, shown)
			if message != last {
				report(Incomplete, message)
				last = message
			}
			if !pause(ctx) {
				return context.Cause(ctx)
			}
			continue
		}
		reason := reasonOf(code)
		message := fmt.Sprintf("waiting for the NVIDIA driver: starting NVML under %s: %s (is the driver installed there, and its kernel "+
			"module loaded?)", driverRoot, describe(code))
		if l, ok := lib.(*located); ok {
			reason, message = l.explain(reason, message)
		}
		if message != last {
			report(reason, message)
			last = message
		}
		if !pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// pause waits between two looks; it returns false when ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(awaitPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// The reasons why a driver cannot be used, beside those of package driver.
const (
	// TooOld: the library lacks functions that the roles call.
	TooOld = "DriverTooOld"
	// Incomplete: the library lists fewer GPUs than the kernel's driver has.
	Incomplete = "GPUsIncomplete"
	// Failed: the library does not start, for another reason.
	Failed = "DriverFailed"
)

// reasonOf is the reason that the library's own error gives for a failed start.
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
