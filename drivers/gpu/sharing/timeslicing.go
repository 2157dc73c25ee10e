// Package sharing sets how processes share a GPU: by time slices of a chosen length, or through an MPS control daemon of the claim's own.
package sharing

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// TimeSlicer sets the length of time slices. NVML has no call for it; nvidia-smi does.
type TimeSlicer struct {
	// DriverRoot is where usr/bin/nvidia-smi is.
	DriverRoot string
}

// policies are nvidia-smi's numbers for the intervals.
func policies() map[v1beta1.TimeSliceInterval]string {
	return map[v1beta1.TimeSliceInterval]string{
		v1beta1.DefaultTimeSlice: "0", v1beta1.ShortTimeSlice: "1", v1beta1.MediumTimeSlice: "2", v1beta1.LongTimeSlice: "3",
	}
}

// Set gives a GPU a time slice.
func (t TimeSlicer) Set(ctx context.Context, interval v1beta1.TimeSliceInterval, gpu string) error {
	policy, ok := policies()[interval]
	if !ok {
		return fmt.Errorf("time slice %q: allowed are Default, Short, Medium, Long", interval)
	}
	program := filepath.Join(t.DriverRoot, "usr/bin/nvidia-smi")
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "compute-policy", "-i", gpu, "--set-timeslice", policy)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraryPath(t.DriverRoot))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("setting the time slice of %s to %s with %s: %w: %s", gpu, interval, program, err, firstLine(out.String()))
	}
	return nil
}

// libraryPath is where a driver root keeps its libraries.
func libraryPath(root string) string {
	return strings.Join([]string{filepath.Join(root, "usr/lib64"), filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, "usr/lib/aarch64-linux-gnu")}, ":")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
