package edits

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// majors are the device numbers that the kernel gave to the driver's parts, by name, from the file that stands for /proc/devices. A file that
// cannot be read has none: the container runtime then looks at the device nodes themselves.
func majors(procDevices string) map[string]int64 {
	f, err := os.Open(procDevices)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	out := map[string]int64{}
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

// Minors that the driver gives to its fixed nodes.
const (
	minorControl = 255
	minorModeset = 254
)

// number writes type, major and minor into the driver's device nodes, so that a container gets the right node whatever stands on the host under
// that name. Nodes of others (DRM) are left to the container runtime.
func number(nodes []*specs.DeviceNode, known map[string]int64) {
	for _, n := range nodes {
		if n.Type != "" {
			continue
		}
		major, minor, ok := numbers(n.Path, known)
		if ok {
			n.Type, n.Major, n.Minor = "c", major, minor
		}
	}
}

func numbers(path string, known map[string]int64) (major, minor int64, ok bool) {
	first := func(names ...string) (int64, bool) {
		for _, name := range names {
			if n, ok := known[name]; ok {
				return n, true
			}
		}
		return 0, false
	}
	name := filepath.Base(path)
	switch name {
	case "nvidiactl":
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
	var n int64
	if _, err := fmt.Sscanf(name, "nvidia-cap%d", &n); err == nil && name == fmt.Sprintf("nvidia-cap%d", n) {
		major, ok = first("nvidia-caps")
		return major, n, ok
	}
	if _, err := fmt.Sscanf(name, "nvidia%d", &n); err == nil && name == fmt.Sprintf("nvidia%d", n) {
		major, ok = first("nvidia", "nvidia-frontend")
		return major, n, ok
	}
	return 0, 0, false
}
