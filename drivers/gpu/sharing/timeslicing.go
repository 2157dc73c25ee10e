// Package sharing sets how processes share a GPU: by time slices of a chosen length, or through an MPS control daemon of the claim's own.
package sharing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/programs"
)

// smiPatience is how long nvidia-smi may take. On a quiet machine it needs less than a second; on one with a failing GPU it may
// hang for ever.
const smiPatience = 20 * time.Second

// ErrNotSupported is wrapped by the error for a GPU whose time slices cannot be set, such as a P4 or T4. No GPU was changed.
var ErrNotSupported = errors.New("the GPU does not support it")

// Refused reports whether an error is a definite answer that nothing was changed: the program is missing, or it ended by itself with an
// error. A program that was killed, or did not answer in time, may have changed something.
func Refused(err error) bool {
	var exit *exec.ExitError
	return errors.Is(err, ErrNotSupported) || errors.Is(err, fs.ErrNotExist) || errors.As(err, &exit) && exit.Exited()
}

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
		return fmt.Errorf("set the time slice of %s to %s: %w", gpu, interval, err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer in %s: %w", smiPatience, err)
		} else if strings.Contains(strings.ToLower(out.String()), "not supported") {
			err = fmt.Errorf("%w: %w", ErrNotSupported, err)
		}
		return fmt.Errorf("set the time slice of %s to %s with nvidia-smi of the driver root %s: %w: %s", gpu, interval,
			t.Programs.Driver().Root.Path, programs.Explain(err), firstLine(out.String()))
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
