package state

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// FallbackRoot is the node's place when nothing else is set.
	FallbackRoot = "/var/lib/fakefabric"
	// KernelRoot is where a node appears as a part of its kernel: a process with a driver's files and device nodes reaches it from any
	// root that has a /proc.
	KernelRoot = "/proc/driver/fakefabric"
	// PluginRoot is where a container has the node's state from NVIDIA's DRA driver or nvidia-ctk. They give a container with a GPU
	// the file run/nvidia-persistenced/socket of the driver root, to read and to write.
	PluginRoot = "/run/nvidia-persistenced"
)

// KernelLog is the path of the lines that the NVIDIA driver of the node at root has written into its kernel's log.
func KernelLog(root string) string { return filepath.Join(root, "state", "kern.log") }

// Opens returns a function that reports whether this process can open a GPU of the node at root, by the minor number of its device
// node. The nodes are those in /dev only where the driver is the machine's own (FallbackRoot, when nothing points there,
// KernelRoot or PluginRoot). Elsewhere it returns nil: every GPU can be opened. See ff_state_opens.
func Opens(root string) func(minor uint32) bool {
	if root != FallbackRoot && root != KernelRoot && root != PluginRoot || os.Getenv("FAKEFABRIC_ROOT") != "" {
		return nil
	}
	if exe, err := Executable(); err == nil && strings.HasPrefix(exe, FallbackRoot+"/") {
		return nil
	}
	return func(minor uint32) bool {
		info, err := os.Stat(fmt.Sprintf("/dev/nvidia%d", minor))
		return err == nil && info.Mode()&os.ModeCharDevice != 0
	}
}

// Executable is the file of this program. For a program that was started from memory it is the file in its first argument: the kind
// cluster's launcher starts programs with a C library in that way.
func Executable() (string, error) {
	exe, err := os.Executable()
	if err == nil && strings.HasPrefix(exe, "/memfd:") && filepath.IsAbs(os.Args[0]) {
		return os.Args[0], nil
	}
	return exe, err
}

// FindRoot returns the node to which this program belongs: FAKEFABRIC_ROOT's, else the one from whose driver/usr/bin the program
// was started, else the one at FallbackRoot, at KernelRoot, or at PluginRoot. The libraries look in the same order.
func FindRoot() (string, error) {
	if root := os.Getenv("FAKEFABRIC_ROOT"); root != "" {
		if _, err := os.Stat(Path(root)); err != nil {
			return "", fmt.Errorf("FAKEFABRIC_ROOT is %s: %w", root, err)
		}
		return root, nil
	}
	candidates := []string{FallbackRoot, KernelRoot, PluginRoot}
	if exe, err := Executable(); err == nil {
		driver := filepath.Join(filepath.Dir(exe), "../..") // which has the state too, where it is mounted alone
		candidates = append([]string{filepath.Dir(driver), driver}, candidates...)
	}
	for _, root := range candidates {
		if info, err := os.Stat(Path(root)); err == nil && info.Mode().IsRegular() { // nvidia-persistenced's own is a socket
			return filepath.Clean(root), nil
		}
	}
	return "", fmt.Errorf("no fake node at %s; render one with fakefabric render, or set FAKEFABRIC_ROOT", strings.Join(candidates, " or "))
}
