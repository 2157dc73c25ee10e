package edits

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
)

// Capabilities finds the device nodes that open MIG devices. It reads them from the driver's list under /proc and never computes
// them.
type Capabilities struct {
	// ProcRoot replaces /proc.
	ProcRoot string
	// DevRoot replaces /dev as this process sees it, HostDevRoot as the container runtime sees it; empty: the same.
	DevRoot, HostDevRoot string
}

// Nodes are the capability nodes of a GPU instance and of its compute instance.
func (c Capabilities) Nodes(gpuMinor, gpuInstance, computeInstance int) ([]*specs.DeviceNode, error) {
	var out []*specs.DeviceNode
	known := driver.ReadNumbers(filepath.Join(c.ProcRoot, "devices"))
	for _, name := range []string{
		fmt.Sprintf("gpu%d/mig/gi%d/access", gpuMinor, gpuInstance),
		fmt.Sprintf("gpu%d/mig/gi%d/ci%d/access", gpuMinor, gpuInstance, computeInstance),
	} {
		minor, err := c.minor(name)
		if err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
		// The kernel's driver makes no such node. NVML and nvidia-modprobe make it in their own /dev, if that is writable. A container
		// needs only its number.
		n, err := Options{DevRoot: c.DevRoot, HostDevRoot: c.HostDevRoot, ProcDevices: filepath.Join(c.ProcRoot, "devices")}.deviceNode(path,
			known)
		if err != nil {
			return nil, fmt.Errorf("MIG capability %s: %w", name, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// minor reads a capability's device minor, from the capability's own file or from the driver's table.
func (c Capabilities) minor(name string) (int, error) {
	own := filepath.Join(c.ProcRoot, "driver/nvidia/capabilities", name)
	if f, err := os.Open(own); err == nil {
		defer func() { _ = f.Close() }()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if value, ok := strings.CutPrefix(lines.Text(), "DeviceFileMinor:"); ok {
				return parseMinor(own, strings.TrimSpace(value))
			}
		}
		return 0, fmt.Errorf("%s has no line DeviceFileMinor", own)
	}
	table := filepath.Join(c.ProcRoot, "driver/nvidia-caps/mig-minors")
	f, err := os.Open(table)
	if err != nil {
		return 0, fmt.Errorf("MIG capability %s: neither %s nor the table of all minors: %w", name, own, err)
	}
	defer func() { _ = f.Close() }()
	// The table omits the word mig: gpu0/gi1/ci0/access 13.
	key := strings.Replace(name, "/mig/", "/", 1) + " "
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), key); ok {
			return parseMinor(table, strings.TrimSpace(value))
		}
	}
	return 0, fmt.Errorf("MIG capability %s is not in %s", name, table)
}

func parseMinor(file, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 20)
	if err != nil {
		return 0, fmt.Errorf("%s: minor %q: %w", file, text, err)
	}
	return int(n), nil //nolint:gosec // 20 bits
}
