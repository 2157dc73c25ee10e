package imex

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Library is necessary for a daemon's start; it is loaded by this name.
const Library = "libnvidia-imex.so.1"

// Surroundings are the parts of a node in a daemon's container.
type Surroundings interface {
	// Device reports whether there is a device node: /dev/nvidiactl.
	Device(path string) bool
	// Library reports whether the loader finds a library.
	Library(name string) bool
}

// Capability is the minor of the nvidia-caps device to manage the fabric.
const Capability = 4323

// Needs are the device nodes that a daemon on the node at root needs: nvidiactl, every GPU's and the capability to manage the fabric.
// Public pull request #1222 of NVIDIA's DRA driver: "without access to all the GPUs, the IMEX daemon doesn't work properly"; the
// capability: NVIDIA's IMEX guide.
func Needs(root string) ([]string, error) {
	gpus, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return nil, fmt.Errorf("the node's GPUs: %w", err)
	}
	var minors []string
	for _, gpu := range gpus {
		minor, err := value(gpu, "Device Minor")
		if err != nil {
			return nil, err
		}
		minors = append(minors, minor)
	}
	minor, err := value(filepath.Join(root, "proc/driver/nvidia/capabilities/fabric-imex-mgmt"), "DeviceFileMinor")
	if err != nil {
		return nil, err
	}
	return needs(minors, minor), nil
}

// NeedsOf is Needs where a container has the node's state and nothing else of it. minors are the GPUs'.
func NeedsOf(minors []uint32) []string {
	var gpus []string
	for _, minor := range minors {
		gpus = append(gpus, strconv.FormatUint(uint64(minor), 10))
	}
	return needs(gpus, strconv.Itoa(Capability))
}

func needs(gpus []string, capability string) []string {
	devices := []string{"/dev/nvidiactl"}
	for _, minor := range gpus {
		devices = append(devices, "/dev/nvidia"+minor)
	}
	return append(devices, "/dev/nvidia-caps/nvidia-cap"+capability)
}

// value reads a line "KEY: VALUE".
func value(path, key string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("find an IMEX daemon's devices: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("find an IMEX daemon's devices: %s has no line %s", path, key)
}

// Machine is the surroundings of a daemon that runs directly on this machine.
type Machine struct {
	// Dev is the directory in the place of /dev.
	Dev string
	// LibraryDirs are where the loader looks.
	LibraryDirs []string
}

// Device implements Surroundings.
func (m Machine) Device(path string) bool {
	_, err := os.Stat(filepath.Join(m.Dev, strings.TrimPrefix(path, "/dev")))
	return err == nil
}

// Library implements Surroundings. A library with its version in its name counts too: in a container ldconfig would make the link to it,
// but passes over the fake's, which is empty.
func (m Machine) Library(name string) bool {
	versioned := strings.TrimSuffix(name, ".1") + ".*"
	return slices.ContainsFunc(m.LibraryDirs, func(dir string) bool {
		found, _ := filepath.Glob(filepath.Join(dir, versioned)) // an error is that of a bad pattern
		return len(found) > 0
	})
}

// Container is the surroundings of a daemon in a container of a simulation that does not run containers, as the container was
// given.
type Container struct {
	Devices []string
	// Mounts are the mounts, by the container's path.
	Mounts map[string]string
}

// Device implements Surroundings.
func (c Container) Device(path string) bool { return slices.Contains(c.Devices, path) }

// Library implements Surroundings.
func (c Container) Library(name string) bool {
	for mounted := range c.Mounts {
		if path.Base(mounted) == name {
			return true
		}
	}
	return false
}

// ReadContainer reads a container's bundle, as an OCI runtime gets it.
func ReadContainer(file string) (Container, error) {
	var bundle struct {
		Mounts []struct{ Destination, Source string } `json:"mounts"`
		Linux  struct {
			Devices []struct{ Path string } `json:"devices"`
		} `json:"linux"`
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Container{}, fmt.Errorf("the daemon's container: %w", err)
	}
	if err := json.Unmarshal(data, &bundle); err != nil {
		return Container{}, fmt.Errorf("the daemon's container %s: %w", file, err)
	}
	c := Container{Mounts: map[string]string{}}
	for _, mount := range bundle.Mounts {
		c.Mounts[mount.Destination] = mount.Source
	}
	for _, device := range bundle.Linux.Devices {
		c.Devices = append(c.Devices, device.Path)
	}
	return c, nil
}

// checkStart returns the reason why a daemon cannot start.
func (d *Daemon) checkStart() error {
	if in := d.options.Surroundings; in != nil && !in.Library(Library) {
		return fmt.Errorf("%s: cannot open shared object file: %w", Library, fs.ErrNotExist)
	}
	return nil
}

// initGPU opens the node's session. Its error makes a daemon UNAVAILABLE for good.
func (d *Daemon) initGPU() error {
	if in := d.options.Surroundings; in != nil {
		var missing []string
		for _, device := range d.options.Needs {
			if !in.Device(device) {
				missing = append(missing, device)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("initialise GPUs: no access to %s", strings.Join(missing, ", "))
		}
	}
	if d.options.StateDir == "" {
		return nil
	}
	session, err := OpenSession(d.options.StateDir)
	if err != nil {
		return errors.Join(errors.New("initialise GPUs"), err)
	}
	d.session = session
	return nil
}
