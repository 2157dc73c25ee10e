package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/drivers/doctor/preflight"
)

// maxConfiguration bounds how much of a file is read, in bytes. containerd's own default configuration has 10 KiB.
const maxConfiguration = 1 << 20

// containerd reads from containerd's configuration whether CDI and NRI are on: from config.toml, then from the files in conf.d
// beside it, which distributions import in that order. A file that does not set a switch leaves it unchanged. It keeps nothing
// else: a configuration may contain the passwords of registries.
//
// Source: containerd's documentation of its configuration: enable_cdi is in the CRI plugin's table (io.containerd.grpc.v1.cri in
// version 2, io.containerd.cri.v1.runtime in version 3), disable in that of io.containerd.nri.v1.nri.
func containerd(directory string, f *preflight.Facts) error {
	more, err := filepath.Glob(filepath.Join(directory, "conf.d", "*.toml"))
	if err != nil {
		return fmt.Errorf("look for more of containerd's configuration: %w", err)
	}
	slices.Sort(more)
	for _, name := range append([]string{filepath.Join(directory, "config.toml")}, more...) {
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // containerd has its defaults, or its configuration elsewhere
		case err != nil:
			return fmt.Errorf("read containerd's configuration: %w", err)
		case info.Size() > maxConfiguration || !info.Mode().IsRegular():
			return fmt.Errorf("containerd's configuration %s is no file of at most %d bytes, and was not read", name, maxConfiguration)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read containerd's configuration: %w", err)
		}
		switches(string(text), f)
	}
	return nil
}

// switches reads the two keys, each on a line of its own below its table's heading.
func switches(text string, f *preflight.Facts) {
	table := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			table = line
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case value != "true" && value != "false":
		case key == "enable_cdi" && (strings.Contains(table, "io.containerd.grpc.v1.cri") || strings.Contains(table, "io.containerd.cri.v1")):
			f.CDI = onOff(value == "true")
		case key == "disable" && strings.Contains(table, "io.containerd.nri.v1.nri"):
			f.NRI = onOff(value == "false")
		}
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
