package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/fakes/state"
)

// SyncMIG updates proc/driver/nvidia/capabilities/gpuN/mig from the state, as the kernel module does with every change. It does not
// make device nodes: see MakeMIGNodes.
func SyncMIG(root string, b *state.Body) error {
	wanted := capabilities(b)
	caps := filepath.Join(root, "proc/driver/nvidia/capabilities")
	if err := removeUnwanted(caps, wanted); err != nil {
		return fmt.Errorf("MIG capabilities: %w", err)
	}
	var errs []error
	for file, minor := range wanted {
		errs = append(errs, addCapability(caps, file, minor))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("MIG capabilities: %w", err)
	}
	return nil
}

func removeUnwanted(caps string, wanted map[string]int) error {
	var stale []string
	err := filepath.WalkDir(caps, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(caps, path)
		if _, ok := wanted[rel]; err == nil && !ok && strings.HasPrefix(rel, "gpu") {
			stale = append(stale, path)
		}
		return err
	})
	for _, path := range slices.Backward(stale) { // compute instances before the GPU instance they are in
		err = errors.Join(err, ignoreMissing(os.Remove(path)))
		_ = os.Remove(filepath.Dir(path)) // stays while a compute instance is below it
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// capabilities are the access files below proc/driver/nvidia/capabilities of the existing instances, with their minor numbers.
func capabilities(b *state.Body) map[string]int {
	wanted := map[string]int{}
	for _, g := range b.GPUs {
		gpu := int(g.Core.Minor)
		for i := range g.Instances {
			gi := &g.Instances[i]
			if gi.Used == 0 {
				continue
			}
			dir := fmt.Sprintf("gpu%d/mig/gi%d", gpu, gi.ID)
			wanted[dir+"/access"] = CapabilityMinor(gpu, int(gi.ID), -1)
			for j := range gi.Computes {
				if c := &gi.Computes[j]; c.Used != 0 {
					wanted[fmt.Sprintf("%s/ci%d/access", dir, c.ID)] = CapabilityMinor(gpu, int(gi.ID), int(c.ID))
				}
			}
		}
	}
	return wanted
}

// addCapability writes the access file of an instance. As with the kernel's, a client that reads it meanwhile sees the whole text or none.
func addCapability(caps, file string, minor int) (err error) {
	path, text := filepath.Join(caps, file), capability(minor)
	if has, err := os.ReadFile(path); err == nil && string(has) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	whole, err := os.CreateTemp(caps, ".access-") // beside the GPUs' directories: removeUnwanted looks only into those
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(whole.Name())
		}
	}()
	_, err = whole.WriteString(text)
	if err := errors.Join(err, whole.Chmod(0o644), whole.Close()); err != nil {
		return err
	}
	return os.Rename(whole.Name(), path)
}

// MakeMIGNodes makes the nodes of the existing instances in a client's dev/nvidia-caps. The kernel module makes none. A client
// makes them in its own /dev, with the numbers in /proc, and only where it may (mknod_helper in NVIDIA/nvidia-modprobe,
// modprobe-utils/nvidia-modprobe-utils.c, which NVML calls). Nodes are not removed again, so those of removed instances stay.
func MakeMIGNodes(root string, b *state.Body) error {
	wanted := capabilities(b)
	if len(wanted) == 0 {
		return nil
	}
	dir := filepath.Join(root, "dev/nvidia-caps")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// Where the node's other devices are plain files, since making device nodes was not possible, these are too.
	major, char, err := charMajor(filepath.Join(root, "dev/nvidiactl"))
	if err == nil && char {
		major, err = procMajor(root, "nvidia-caps")
	}
	errs := []error{err}
	for _, minor := range wanted {
		device := filepath.Join(dir, fmt.Sprintf("nvidia-cap%d", minor))
		if _, err := os.Lstat(device); err == nil {
			continue
		}
		errs = append(errs, makeDevice(device, major, minor, !char))
	}
	return errors.Join(errs...)
}

// procMajor is a character device's major in proc/devices.
func procMajor(root, name string) (int, error) {
	data, err := os.ReadFile(filepath.Join(root, "proc/devices"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var major int
		var found string
		if n, _ := fmt.Sscan(line, &major, &found); n == 2 && found == name {
			return major, nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", filepath.Join(root, "proc/devices"), name)
}
