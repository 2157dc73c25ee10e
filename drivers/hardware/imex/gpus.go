package imex

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// gpuDriver and controlDriver are the drivers of the GPUs' nodes and of nvidiactl in /proc/devices. Drivers before 550 list one
	// name for both.
	gpuDriver     = "nvidia"
	controlDriver = "nvidiactl"
	legacyDriver  = "nvidia-frontend"
	// controlMinor is the minor number of nvidiactl (nv-linux.h: NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE).
	controlMinor = 255

	gpusDir = "driver/nvidia/gpus"
)

// Control returns nvidiactl, the control device of the driver.
func (f FS) Control() (Device, error) {
	major, err := f.firstMajor(controlDriver, gpuDriver, legacyDriver)
	if err != nil {
		return Device{}, err
	}
	return Device{Path: "/dev/nvidiactl", Major: major, Minor: controlMinor}, nil
}

// GPUs returns the nodes of all GPUs that the driver has, by minor (/proc/driver/nvidia/gpus/<address>/information: Device Minor).
func (f FS) GPUs() ([]Device, error) {
	dir := filepath.Join(filepath.Dir(f.ProcDevices), gpusDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrNoDriver, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("list the driver's GPUs: %w", err)
	}
	major, err := f.firstMajor(gpuDriver, legacyDriver)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(entries))
	for _, entry := range entries {
		minor, err := minorOf(filepath.Join(dir, entry.Name(), "information"), "Device Minor")
		if err != nil {
			return nil, fmt.Errorf("find the device node of GPU %s: %w", entry.Name(), err)
		}
		devices = append(devices, Device{Path: fmt.Sprintf("/dev/nvidia%d", minor), Major: major, Minor: minor})
	}
	slices.SortFunc(devices, func(a, b Device) int { return int(a.Minor - b.Minor) })
	return devices, nil
}

// firstMajor is the number of the first of these drivers that /proc/devices lists.
func (f FS) firstMajor(drivers ...string) (int64, error) {
	var errs []error
	for _, driver := range drivers {
		major, err := f.major(driver)
		if err == nil {
			return major, nil
		}
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}

// errNoKey marks a file of the driver that lacks the requested line.
var errNoKey = errors.New("has no")

// minorOf reads a line "KEY: N" of a file of the driver.
func minorOf(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %s does not exist", ErrNoDriver, path)
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != key {
			continue
		}
		minor, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
		if err != nil || minor < 0 {
			return 0, fmt.Errorf("%s: %s %q is not a valid number", path, key, strings.TrimSpace(value))
		}
		return minor, nil
	}
	return 0, fmt.Errorf("%s %w %s", path, errNoKey, key)
}
