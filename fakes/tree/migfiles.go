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

// SyncMIG makes the capability files and devices of MIG instances what the state says: proc/driver/nvidia/capabilities/gpuN/mig and
// dev/nvidia-caps. Clients that cannot write to the tree change only the state.
func SyncMIG(root string, b *state.Body) error {
	wanted := map[string]int{} // access file below proc/driver/nvidia/capabilities to minor
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
	caps := filepath.Join(root, "proc/driver/nvidia/capabilities")
	if err := removeUnwanted(root, caps, wanted); err != nil {
		return fmt.Errorf("MIG capabilities: %w", err)
	}
	var errs []error
	for file, minor := range wanted {
		errs = append(errs, addCapability(root, filepath.Join(caps, file), minor))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("MIG capabilities: %w", err)
	}
	return nil
}

func removeUnwanted(root, caps string, wanted map[string]int) error {
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
		var minor int
		if data, readErr := os.ReadFile(path); readErr == nil {
			if _, scanErr := fmt.Sscanf(string(data), "DeviceFileMinor: %d", &minor); scanErr == nil {
				err = errors.Join(err, ignoreMissing(os.Remove(capDevice(root, minor))))
			}
		}
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

func capDevice(root string, minor int) string {
	return filepath.Join(root, "dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor))
}

func addCapability(root, file string, minor int) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(capability(minor)), 0o644); err != nil {
		return err
	}
	device := capDevice(root, minor)
	if _, err := os.Lstat(device); err == nil {
		return nil
	}
	major, char, err := charMajor(capDevice(root, capMIGConfig))
	if err != nil {
		return err
	}
	return makeDevice(device, major, minor, !char)
}
