// Package sharing sets how processes share a GPU: by time slices of a chosen length, or through an MPS control daemon of the claim's own.
package sharing

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/programs"
)

// smiPatience is how long nvidia-smi may take. On a quiet machine it needs less than a second; on one with a failing GPU it may
// hang for ever.
const smiPatience = 20 * time.Second

// TimeSlicer sets the length of time slices. NVML has no call for it; nvidia-smi does.
type TimeSlicer struct {
	Programs programs.Runner
	// Mountpoint is an empty directory of nvidia-smi's (see programs.Share).
	Mountpoint string
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
	ctx, cancel := context.WithTimeout(ctx, smiPatience)
	defer cancel()
	cmd, err := t.Programs.Command(ctx, programs.Share{Mountpoint: t.Mountpoint}, "nvidia-smi", "compute-policy", "-i", gpu, "--set-timeslice",
		policy)
	if err != nil {
		return fmt.Errorf("setting the time slice of %s to %s: %w", gpu, interval, err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer in %s: %w", smiPatience, err)
		}
		return fmt.Errorf("setting the time slice of %s to %s with nvidia-smi of the driver root %s: %w: %s", gpu, interval,
			t.Programs.Driver().Root.Path, programs.Explain(err), firstLine(out.String()))
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
