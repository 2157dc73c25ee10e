// Package cdi describes a rendered node by the Container Device Interface, so that any container runtime can give it to containers
// (github.com/cncf-tags/container-device-interface, SPEC.md).
package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// Kinds of the devices, each in a file of its own.
const (
	// GPUKind has a device for each GPU, by its index and by its UUID, and all: the names that nvidia-ctk cdi generate gives.
	GPUKind = "nvidia.com/gpu"
	// NodeKind has the device all: every GPU and NIC, and the node's PCI functions, InfiniBand and interfaces in /sys.
	NodeKind = "fakefabric.gpufabric.io/node"
)

// version is the first of the specification with each field that is used here.
const version = "0.5.0"

// Spec is a CDI specification, with the fields that a fake node needs.
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
	Edits   Edits    `json:"containerEdits"`
}

// Device is one device of a specification.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are additions to a container.
type Edits struct {
	Env     []string `json:"env,omitempty"`
	Devices []Node   `json:"deviceNodes,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
}

// Node is a character device, which the runtime makes in the container. It has its number here, because a rendering without privilege
// has plain files in the place of device nodes.
type Node struct {
	Path        string `json:"path"`
	Type        string `json:"type"`
	Major       int    `json:"major"`
	Minor       int    `json:"minor"`
	Permissions string `json:"permissions"`
	// FileMode is the mode of the driver's nodes without udev.
	FileMode uint32 `json:"fileMode"`
}

// Mount is a bind mount of the node's.
type Mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

// Options locate a rendered node.
type Options struct {
	// Root is the node's directory, which must have the same path for the container runtime.
	Root string
	// Node is the machine that was rendered there.
	Node *profile.Node
	// Architecture is the architecture of the libraries, in Go's words: amd64 or arm64.
	Architecture string
}

// Specs returns the specification of each kind. A node without GPUs has none of GPUKind.
func Specs(o Options) ([]Spec, error) {
	driver, err := o.driver()
	if err != nil {
		return nil, fmt.Errorf("CDI specification of %s: %w", o.Root, err)
	}
	shared := Edits{Mounts: append(driver, o.bind("state", state.FallbackRoot+"/state", "rw"))}
	var out []Spec
	whole := Edits{}
	if len(o.Node.GPUs) > 0 {
		// A runtime hook that gives GPUs by the environment leaves a container with this value alone.
		shared.Env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
		shared.Devices = append(shared.Devices, o.nodes(tree.CommonDevices(o.Node))...)
		gpus := Spec{Version: version, Kind: GPUKind, Edits: shared}
		for i, g := range o.Node.GPUs {
			one := Edits{Devices: o.nodes(tree.GPUDevice(o.Node, i))}
			gpus.Devices = append(gpus.Devices, Device{strconv.Itoa(g.Index), one}, Device{g.UUID, one})
			whole.Devices = append(whole.Devices, one.Devices...)
		}
		gpus.Devices = append(gpus.Devices, Device{"all", Edits{Devices: slices.Clone(whole.Devices)}})
		out = append(out, gpus)
	}
	whole.Devices = append(whole.Devices, o.nodes(tree.NICDevices(o.Node))...)
	if whole.Mounts, err = o.sys(); err != nil {
		return nil, fmt.Errorf("CDI specification of %s: %w", o.Root, err)
	}
	return append(out, Spec{Version: version, Kind: NodeKind, Edits: shared, Devices: []Device{{"all", whole}}}), nil
}

// driver mounts the driver's libraries and programs one by one, as nvidia-ctk does, because an image has files of its own in these
// directories. The libraries are in the directory of Red Hat's loader and in that of Debian's: no hook writes a loader's cache.
func (o Options) driver() ([]Mount, error) {
	debian := map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[o.Architecture]
	if debian == "" {
		return nil, fmt.Errorf("architecture %q: want amd64 or arm64", o.Architecture)
	}
	var out []Mount
	for _, directory := range []struct {
		from string
		to   []string
	}{{"driver/usr/lib64", []string{"/usr/lib64", debian}}, {"driver/usr/bin", []string{"/usr/bin"}}} {
		entries, err := os.ReadDir(filepath.Join(o.Root, directory.from))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			for _, to := range directory.to {
				out = append(out, o.bind(filepath.Join(directory.from, e.Name()), filepath.Join(to, e.Name()), "ro"))
			}
		}
	}
	return out, nil
}

// sys mounts the node's buses, classes and devices over the kernel's. Processors and memory stay those that the container runs on, and
// /sys/fs, with the cgroups, stays the kernel's.
func (o Options) sys() ([]Mount, error) {
	var out []Mount
	for _, name := range []string{"bus", "class", "devices"} {
		switch _, err := os.Stat(filepath.Join(o.Root, "sys", name)); {
		case os.IsNotExist(err):
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, o.bind("sys/"+name, "/sys/"+name, "ro"))
	}
	if _, err := os.Stat(filepath.Join(o.Root, "sys/devices/system")); err == nil {
		const system = "/sys/devices/system"
		out = append(out, Mount{HostPath: system, ContainerPath: system, Options: []string{"ro", "nosuid", "nodev", "rbind"}})
	}
	return out, nil
}

func (o Options) bind(from, to, mode string) Mount {
	return Mount{HostPath: filepath.Join(o.Root, from), ContainerPath: to, Options: []string{mode, "nosuid", "nodev", "rbind", "rprivate"}}
}

func (o Options) nodes(devices []tree.Device) []Node {
	var out []Node
	for _, d := range devices {
		out = append(out, Node{Path: "/" + d.Path, Type: "c", Major: d.Major, Minor: d.Minor, Permissions: "rwm", FileMode: 0o666})
	}
	return out
}

// fileName is the file of a kind. CDI takes any name.
func fileName(kind string) string {
	return "fakefabric-" + strings.NewReplacer("/", "-", ".", "-").Replace(kind) + ".json"
}
