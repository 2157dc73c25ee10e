package driver

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The minor numbers of the driver's fixed nodes.
const (
	minorControl = 255
	minorModeset = 254
)

// Numbers are the major numbers that the kernel gave to the parts of the driver, by name.
type Numbers map[string]int64

// ReadNumbers reads the file in place of /proc/devices. A file that cannot be read does not give numbers: then only the device nodes
// themselves show their numbers.
func ReadNumbers(procDevices string) Numbers {
	f, err := os.Open(procDevices)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	out := Numbers{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if lines.Text() == "Block devices:" {
			break
		}
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			out[fields[1]] = n
		}
	}
	return out
}

// Node returns the numbers of one of the driver's character devices, such as /dev/nvidia0 or nvidia-caps/nvidia-cap30. ok is false
// for nodes that are not the driver's, and where the kernel's table lacks the part of the driver that serves it: that module is not
// loaded.
func (n Numbers) Node(path string) (major, minor int64, ok bool) {
	first := func(names ...string) (int64, bool) {
		for _, name := range names {
			if major, ok := n[name]; ok {
				return major, true
			}
		}
		return 0, false
	}
	name := filepath.Base(path)
	switch name {
	case ControlNode:
		major, ok = first("nvidiactl", "nvidia", "nvidia-frontend")
		return major, minorControl, ok
	case "nvidia-modeset":
		major, ok = first("nvidia-modeset", "nvidia", "nvidia-frontend")
		return major, minorModeset, ok
	case "nvidia-uvm":
		major, ok = first("nvidia-uvm")
		return major, 0, ok
	case "nvidia-uvm-tools":
		major, ok = first("nvidia-uvm")
		return major, 1, ok
	}
	if _, err := fmt.Sscanf(name, "nvidia-cap%d", &minor); err == nil && name == fmt.Sprintf("nvidia-cap%d", minor) {
		major, ok = first("nvidia-caps")
		return major, minor, ok
	}
	if _, err := fmt.Sscanf(name, "nvidia%d", &minor); err == nil && name == fmt.Sprintf("nvidia%d", minor) {
		major, ok = first("nvidia", "nvidia-frontend")
		return major, minor, ok
	}
	return 0, 0, false
}
