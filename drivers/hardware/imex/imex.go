// Package imex finds the device numbers that IMEX needs: those of the channels, of the capability to manage the fabric, of the
// driver's control device and of its GPUs.
package imex

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// Channels is the default number of channels: 0 to 2047.
	Channels = 2048

	channelDriver    = "nvidia-caps-imex-channels"
	capabilityDriver = "nvidia-caps"
	managementFile   = "driver/nvidia/capabilities/fabric-imex-mgmt"
	paramsFile       = "driver/nvidia/params"
)

// FS reads /proc from the directory of a devices file.
type FS struct {
	// ProcDevices is the file in place of /proc/devices. The other files of /proc are in the same directory.
	ProcDevices string
}

// Device is a character device. A container can use it without its file on the host.
type Device struct {
	// Path is the path of the device in a container.
	Path         string
	Major, Minor int64
}

// ErrNoDriver marks a node whose driver has no IMEX channels.
var ErrNoDriver = errors.New("no IMEX in the loaded driver")

// Channel returns channel number n, 0 to Channels-1.
func (f FS) Channel(n int) (Device, error) {
	devices, err := f.ChannelRange(n, 1)
	if err != nil {
		return Device{}, err
	}
	return devices[0], nil
}

// ChannelRange returns count channels, starting with number first.
func (f FS) ChannelRange(first, count int) ([]Device, error) {
	if first < 0 || count < 0 || first+count > Channels {
		return nil, fmt.Errorf("IMEX channels %d to %d: allowed are 0 to %d", first, first+count-1, Channels-1)
	}
	major, err := f.major(channelDriver)
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, count)
	for n := first; n < first+count; n++ {
		devices = append(devices, Device{Path: fmt.Sprintf("/dev/%s/channel%d", channelDriver, n), Major: major, Minor: int64(n)})
	}
	return devices, nil
}

// ChannelCount is how many channels the loaded driver made (/proc/driver/nvidia/params: ImexChannelCount, its parameter
// NVreg_ImexChannelCount). It is Channels for a driver without that line.
func (f FS) ChannelCount() (int, error) {
	path := filepath.Join(filepath.Dir(f.ProcDevices), paramsFile)
	count, err := minorOf(path, "ImexChannelCount")
	if errors.Is(err, errNoKey) {
		return Channels, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the driver's number of IMEX channels: %w", err)
	}
	return int(min(count, Channels)), nil
}

// Management returns the device that allows its holder to manage the fabric as an IMEX daemon does
// (/proc/driver/nvidia/capabilities/fabric-imex-mgmt).
func (f FS) Management() (Device, error) {
	path := filepath.Join(filepath.Dir(f.ProcDevices), managementFile)
	minor, err := minorOf(path, "DeviceFileMinor")
	if err != nil {
		return Device{}, fmt.Errorf("find the fabric-imex-mgmt capability: %w", err)
	}
	major, err := f.major(capabilityDriver)
	if err != nil {
		return Device{}, err
	}
	return Device{Path: fmt.Sprintf("/dev/%s/nvidia-cap%d", capabilityDriver, minor), Major: major, Minor: minor}, nil
}

// major finds a driver's number among the character devices. The block devices follow below, with numbers of their own.
func (f FS) major(driver string) (int64, error) {
	file, err := os.Open(f.ProcDevices)
	if err != nil {
		return 0, fmt.Errorf("find the device number of %s: %w", driver, err)
	}
	defer file.Close() //nolint:errcheck // read only
	scanner := bufio.NewScanner(file)
	character := false
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if strings.HasSuffix(line, ":") {
			character = line == "Character devices:"
			continue
		}
		number, name, found := strings.Cut(line, " ")
		if !character || !found || strings.TrimSpace(name) != driver {
			continue
		}
		major, err := strconv.ParseInt(number, 10, 32)
		if err != nil || major <= 0 {
			return 0, fmt.Errorf("%s: number %q of %s is not a device number", f.ProcDevices, number, driver)
		}
		return major, nil
	}
	if err := scanner.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", f.ProcDevices, err)
	}
	return 0, fmt.Errorf("%w: %s lists no character device %s", ErrNoDriver, f.ProcDevices, driver)
}
