package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// ControlNode is the device node that every client of the driver opens first.
const ControlNode = "nvidiactl"

// Search describes where a driver may be. It looks at each call, so it finds a driver that is installed, moved or removed
// later.
type Search struct {
	// Roots are the directories that may hold a driver's files, the preferred one first.
	Roots []Place
	// Dev replaces /dev.
	Dev Place
	// ProcRoot replaces /proc.
	ProcRoot string
	// OwnDev is this container's own /dev. Prepare makes the driver's device nodes there for this process. Empty: it makes none.
	OwnDev string
}

// Location is where a driver is.
type Location struct {
	// Root is the directory with the driver's files.
	Root Place
	// Dev is the directory with its device nodes. A driver container has them in its own /dev.
	Dev Place
	// Library is the management library's real file, as this process sees it; empty where there is no driver.
	Library string
	// ProcDevices replaces /proc/devices, the kernel's table of device numbers (see ReadNumbers); empty: there is none.
	ProcDevices string
}

// Locate finds the driver. Of several roots with a driver it takes the one whose library has the version of the kernel's driver,
// else the first one with a driver. Without any driver it returns the first root, with no library.
func (s Search) Locate() Location {
	loaded := s.Loaded()
	var found *Location
	for _, root := range s.Roots {
		library, err := root.Library()
		if err != nil {
			continue
		}
		at := Location{Root: root, Dev: s.devOf(root), Library: library, ProcDevices: s.procDevices()}
		if loaded == "" || libraryVersion(library) == loaded {
			return at
		}
		if found == nil {
			found = &at
		}
	}
	switch {
	case found != nil:
		return *found
	case len(s.Roots) > 0:
		return Location{Root: s.Roots[0], Dev: s.devOf(s.Roots[0]), ProcDevices: s.procDevices()}
	default:
		return Location{Dev: s.Dev, ProcDevices: s.procDevices()}
	}
}

func (s Search) procDevices() string {
	if s.ProcRoot == "" {
		return ""
	}
	return filepath.Join(s.ProcRoot, "devices")
}

// devOf returns the directory of a root's device nodes: below the root if the driver has made them there, else the node's /dev.
func (s Search) devOf(root Place) Place {
	own := root.Join("dev")
	if _, err := os.Stat(filepath.Join(own.Path, ControlNode)); err == nil {
		return own
	}
	return s.Dev
}

// versionLine matches the first line of /proc/driver/nvidia/version, of the proprietary and the open kernel modules: "NVRM version:
// NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...".
var versionLine = regexp.MustCompile(`^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

// Loaded returns the version of the kernel's driver; empty where none is loaded.
func (s Search) Loaded() string {
	data, err := os.ReadFile(filepath.Join(s.ProcRoot, "driver/nvidia/version"))
	if err != nil {
		return ""
	}
	match := versionLine.FindSubmatch(data)
	if match == nil {
		return ""
	}
	return string(match[1])
}

// libraryFile matches a library under its full version: libnvidia-ml.so.580.95.05.
var libraryFile = regexp.MustCompile(`\.so\.(\d+\.\d+(?:\.\d+)?)$`)

func libraryVersion(path string) string {
	match := libraryFile.FindStringSubmatch(filepath.Base(path))
	if match == nil {
		return ""
	}
	return match[1]
}

// Prepare makes the driver's device nodes in this container's own /dev, as the located driver has them. A container's /dev has only
// the nodes that existed when the container started. NVML opens nodes below /dev by name, so later ones have to be made here too.
// The error names every node that could not be made.
func (s Search) Prepare(at Location) error {
	if s.OwnDev == "" || at.Dev.Path == s.OwnDev {
		return nil
	}
	var errs []error
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		nodes, err := filepath.Glob(filepath.Join(at.Dev.Path, pattern))
		if err != nil {
			return fmt.Errorf("look for device nodes in %s: %w", at.Dev.Path, err)
		}
		for _, node := range nodes {
			below, err := filepath.Rel(at.Dev.Path, node)
			if err == nil {
				err = copyNode(node, filepath.Join(s.OwnDev, below))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
