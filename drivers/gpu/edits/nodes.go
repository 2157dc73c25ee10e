package edits

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/hardware/driver"
)

// controlNodes are the driver's device nodes besides those of GPUs, each with the way for an administrator to make it. A container
// cannot use CUDA without the nodes that have a remedy. The others are for profilers and graphics, and do not exist where their
// module is not loaded.
var controlNodes = []struct{ path, remedy string }{
	{"/dev/nvidiactl", "nvidia-modprobe, or nvidia-smi on the node, makes it"},
	{"/dev/nvidia-uvm", "nvidia-modprobe -u -c 0, or modprobe nvidia-uvm, loads the module and makes it"},
	{"/dev/nvidia-uvm-tools", ""},
	{"/dev/nvidia-modeset", ""},
}

// MissingNodeError is a device node of which neither the file nor the number is known.
type MissingNodeError struct {
	// Path is the node's path in a container, Looked where it was searched, Table the kernel's table of numbers.
	Path, Looked, Table string
	// Err is why the file could not be found.
	Err error
}

func (e *MissingNodeError) Error() string {
	return fmt.Sprintf("device node %s: there is no %s (%v), and %s has no number for it", e.Path, e.Looked, e.Err, e.Table)
}

// Unwrap returns the underlying error.
func (e *MissingNodeError) Unwrap() error { return e.Err }

// nodePath is a GPU's device node in a container.
func nodePath(g *inventory.GPU) string { return fmt.Sprintf("/dev/nvidia%d", g.Minor) }

// deviceNode is a node with its number, the file under the dev root, or both. The file may be of any kind: on a machine that allows
// no device nodes they are plain files, and the container runtime reports that where it matters.
func (o Options) deviceNode(path string, known driver.Numbers) (*specs.DeviceNode, error) {
	n := &specs.DeviceNode{Path: path}
	number([]*specs.DeviceNode{n}, known)
	below := strings.TrimPrefix(path, "/dev")
	looked := filepath.Join(o.DevRoot, below)
	if _, err := os.Stat(looked); err != nil {
		if n.Type == "" {
			return nil, &MissingNodeError{Path: path, Looked: looked, Table: o.ProcDevices, Err: unwrapped(err)}
		}
		return n, nil
	}
	if host := filepath.Join(cmp.Or(o.HostDevRoot, o.DevRoot), below); host != path {
		n.HostPath = host
	}
	return n, nil
}

// unwrapped omits the path, which the message already has.
func unwrapped(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// complete adds the device nodes that were not found as files but whose numbers are known. It records those that containers cannot
// do without.
func (s *Set) complete(o Options, n *inventory.Node) {
	for _, node := range controlNodes {
		if err := o.add(&s.common, node.path, s.seen.majors); err != nil && node.remedy != "" {
			s.lacking[""] = append(s.lacking[""], fmt.Errorf("%w: %s", err, node.remedy))
		}
	}
	for _, g := range n.GPUs {
		e := s.gpus[g.UUID]
		if err := o.add(&e, nodePath(g), s.seen.majors); err != nil {
			s.lacking[g.UUID] = append(s.lacking[g.UUID], fmt.Errorf("%s: %w: nvidia-modprobe -c %d, or nvidia-smi on the node, makes it", g.UUID,
				err, g.Minor))
		}
		s.gpus[g.UUID] = e
	}
	for _, uuid := range slices.Sorted(maps.Keys(s.lacking)) {
		s.Problems = append(s.Problems, s.lacking[uuid]...)
	}
}

// add makes sure that a node is among a container's.
func (o Options) add(e *specs.ContainerEdits, path string, known driver.Numbers) error {
	if slices.ContainsFunc(e.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == path }) {
		return nil
	}
	found, err := o.deviceNode(path, known)
	if err != nil {
		return err
	}
	e.DeviceNodes = append(e.DeviceNodes, found)
	return nil
}

// Lacking reports which device nodes a container with these GPUs would lack; errors.As finds a MissingNodeError in it.
func (s *Set) Lacking(gpus ...*inventory.GPU) error {
	errs := slices.Clone(s.lacking[""])
	for _, g := range gpus {
		errs = append(errs, s.lacking[g.UUID]...)
	}
	return errors.Join(errs...)
}

// traces show whether another search may find something else.
type traces struct {
	procDevices string
	majors      driver.Numbers
	// files are the files of the node that containers get, and the directories of the driver's files, with their modification times.
	files       []string
	directories map[string]time.Time
}

// trace records the device nodes and files of containers, with the paths of this process.
func (o Options) trace(common specs.ContainerEdits, gpus ...specs.ContainerEdits) traces {
	t := traces{procDevices: o.ProcDevices, majors: driver.ReadNumbers(o.ProcDevices), directories: map[string]time.Time{}}
	for _, e := range append(gpus, common) {
		for _, m := range e.Mounts {
			t.files = append(t.files, m.HostPath)
			t.directories[filepath.Dir(m.HostPath)] = time.Time{}
		}
		for _, n := range e.DeviceNodes {
			t.files = append(t.files, cmp.Or(n.HostPath, n.Path))
		}
	}
	slices.Sort(t.files)
	t.files = slices.Compact(t.files)
	for directory := range t.directories {
		t.directories[directory] = changed(directory)
	}
	return t
}

// changed is when a directory's entries last changed; the zero time for a missing one.
func changed(directory string) time.Time {
	info, err := os.Stat(directory)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Outdated reports whether another search may find something else: something was missing, is gone or was replaced, or the kernel's
// numbers changed.
func (s *Set) Outdated() bool {
	if len(s.Problems) > 0 || !maps.Equal(s.seen.majors, driver.ReadNumbers(s.seen.procDevices)) {
		return true
	}
	for directory, at := range s.seen.directories {
		if !changed(directory).Equal(at) {
			return true
		}
	}
	return slices.ContainsFunc(s.seen.files, func(file string) bool {
		_, err := os.Stat(file)
		return err != nil
	})
}
