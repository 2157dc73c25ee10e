package scheduling

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// profile takes a CPU profile of the scheduler in the background, if the options ask for it.
func (c *cluster) profile(ctx context.Context, row Row, r *Result) <-chan error {
	done := make(chan error, 1)
	if c.options.CPUProfiles == "" {
		done <- nil
		return done
	}
	go func() { // The reader of done waits for its end.
		done <- func() error {
			transport, err := rest.TransportFor(c.plane.Scheduler())
			if err != nil {
				return err
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.plane.Scheduler().Host+"/debug/pprof/profile?seconds=10", nil)
			if err != nil {
				return err
			}
			answer, err := (&http.Client{Transport: transport}).Do(request)
			if err != nil {
				return fmt.Errorf("profile the scheduler: %w", err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("profile the scheduler: %s", answer.Status)
			}
			file, err := os.Create(filepath.Join(c.options.CPUProfiles, fmt.Sprintf("%s-%d-%.0f.pprof", row.Name, r.Nodes, 100*r.Fill)))
			if err != nil {
				return err
			}
			_, err = file.ReadFrom(answer.Body)
			return errors.Join(err, file.Close())
		}()
	}()
	return done
}

// load is the machine's load average of the last minute.
func load() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the machine's load: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(first, 64)
}

// processorTime is what a process has used so far, of user and system time.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the scheduler's processor time: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the scheduler's processor time: /proc/%d/stat is %q", pid, text)
	}
	var sum int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the scheduler's processor time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
}

// resident is the resident size of a process in MiB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the scheduler's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}
