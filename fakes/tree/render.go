// Package tree writes a fake node as a directory: sys, proc and dev as the kernel would show them, driver as a driver root, and
// state.
package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// Options select the node to write, and the place.
type Options struct {
	Profile *profile.Profile
	// Node counts the cluster's machines of this profile from 0; Nodes is how many there are (0: unknown), profile.MaxNodes at most.
	Node, Nodes int
	// Root is the node's directory; it is made. An earlier rendering is replaced. It is refused where sys, proc, dev or driver has
	// files that no rendering made.
	Root string
	// LibraryDir holds the C libraries; empty leaves DIR/driver/usr/lib64 without them, for simulations that load no library.
	LibraryDir string
	// Tools is the program that DIR/driver/usr/bin/nvidia-smi and its siblings are hard links to (copies, where that is impossible);
	// empty leaves them out.
	Tools string
	// PlainDevices makes plain files in dev even where device nodes could be made.
	PlainDevices bool
	// NVIDIAPlugins adds to the driver root the files that NVIDIA's DRA driver and nvidia-ctk pass on to containers: device nodes
	// in DIR/driver/dev, as NVIDIA's driver container has them, and the node's state at state.PluginRoot, which they take for a
	// socket of nvidia-persistenced.
	NVIDIAPlugins bool
}

// Rendered describes a rendering in DIR/state/rendered.json, so that a later one can detect a change.
type Rendered struct {
	Profile string `json:"profile"`
	Node    int    `json:"node"`
	Nodes   int    `json:"nodes"`
	// NVIDIAPlugins is Options.NVIDIAPlugins.
	NVIDIAPlugins bool `json:"nvidiaPlugins,omitempty"`
	// Hostname and ClusterUUID are the node's, for people who look.
	Hostname    string `json:"hostname"`
	ClusterUUID string `json:"clusterUUID,omitempty"`
	CliqueID    uint32 `json:"cliqueID,omitempty"`
	GPUs        int    `json:"gpus"`
	NICs        int    `json:"nics"`
	// Devices are the GPUs, then the NICs' InfiniBand devices; Distances has the word of nvidia-smi topo -m for each two of them, PCI only.
	Devices   []string   `json:"devices"`
	Distances [][]string `json:"distances"`
}

// parts are the directories that a rendering replaces as a whole.
var parts = []string{"sys", "proc", "dev", "driver"}

// Render writes the node. It fails without touching an earlier rendering when the new one cannot be written in full.
func Render(ctx context.Context, o Options) error {
	if o.Profile == nil || o.Root == "" {
		return errors.New("render: a profile and a root directory are needed")
	}
	switch {
	case o.Node < 0 || o.Node >= profile.MaxNodes:
		return fmt.Errorf("render: node %d of profile %s: 0 to %d are allowed", o.Node, o.Profile.Name, profile.MaxNodes-1)
	case o.Nodes < 0 || o.Nodes > profile.MaxNodes:
		return fmt.Errorf("render: %d nodes of profile %s: 1 to %d are allowed, and 0 where their number is unknown", o.Nodes, o.Profile.Name,
			profile.MaxNodes)
	case o.Nodes != 0 && o.Node >= o.Nodes:
		return fmt.Errorf("render: node %d is not among %d nodes, counted from 0", o.Node, o.Nodes)
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	if err := vacant(root); err != nil {
		return fmt.Errorf("render in %s: %w", root, err)
	}
	staging, err := os.MkdirTemp(root, ".rendering-")
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}
	defer func() { _ = os.RemoveAll(staging) }() // holds only the earlier rendering by then
	fresh, err := spread(staging)
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}

	n := o.Profile.Node(o.Node)
	w := newWriter(fresh, o.PlainDevices)
	writeSys(w, n)
	writeProc(w, n)
	writeDev(w, n)
	if o.NVIDIAPlugins {
		for _, d := range gpuDevices(n) {
			w.device(filepath.Join("driver", d.Path), d.Major, d.Minor)
		}
		writeFabricCapability(w, n, "driver/")
	}
	writeDriver(w, n, o)
	if err := errors.Join(w.err, ctx.Err()); err != nil {
		return fmt.Errorf("render %s in %s: %w", o.Profile.Name, root, err)
	}
	release, err := claim(root)
	if err != nil {
		return fmt.Errorf("render %s: %w", o.Profile.Name, err)
	}
	defer release()
	for _, part := range parts {
		if err := exchange(filepath.Join(fresh, part), filepath.Join(root, part), filepath.Join(fresh, "old-"+part)); err != nil {
			return fmt.Errorf("render %s: %w", o.Profile.Name, err)
		}
	}
	if err := state.CreateNode(root, n); err != nil {
		return err
	}
	places := []string{filepath.Join(root, "driver")}
	if o.NVIDIAPlugins {
		places = append(places, filepath.Join(root, "driver", state.PluginRoot))
	}
	for _, place := range places {
		if err := shareState(root, place); err != nil {
			return fmt.Errorf("render %s: %w", o.Profile.Name, err)
		}
	}
	// Faults of the previous machine must not remain.
	for _, path := range []string{filepath.Join(root, "state", imex.FaultsName), state.KernelLog(root), state.KernelLog(root) + ".1"} {
		if err := ignoreMissing(os.Remove(path)); err != nil {
			return fmt.Errorf("render %s: %w", o.Profile.Name, err)
		}
	}
	return writeRendered(root, n, o)
}

// shareState links the state into the driver root, for pods of others that mount the driver root alone (NVIDIA's device plugin and DRA
// driver, at /driver-root). A driver root on another file system has none.
func shareState(root, place string) error {
	path := state.Path(place)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Link(state.Path(root), path)
	if errors.Is(err, unix.EXDEV) {
		return os.Remove(filepath.Dir(path))
	}
	return err
}

// exchange replaces the content of current by that of fresh, entry by entry, and moves the old content to old. The directory
// current itself stays, since it may be mounted somewhere.
func exchange(fresh, current, old string) error {
	for _, d := range []string{current, old} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := moveAll(current, old); err != nil {
		return err
	}
	return moveAll(fresh, current)
}

func moveAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the node's hardware: everything that a rendering made, except the directory itself and its mark. Without a
// rendering there is nothing to remove.
func Remove(root string) error {
	if ours, err := owned(root); err != nil || !ours {
		return err
	}
	release, err := claim(root)
	if err != nil {
		return fmt.Errorf("remove the hardware of %s: %w", root, err)
	}
	defer release()
	var errs []error
	for _, part := range append([]string{"state"}, parts...) {
		entries, err := os.ReadDir(filepath.Join(root, part))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(root, part, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func writeRendered(root string, n *profile.Node, o Options) error {
	r := Rendered{Profile: o.Profile.Name, Node: o.Node, Nodes: o.Nodes, NVIDIAPlugins: o.NVIDIAPlugins, Hostname: n.Hostname,
		ClusterUUID: n.ClusterUUID, GPUs: len(n.GPUs), NICs: len(n.NICs)}
	if o.Profile.Fabric != nil {
		r.CliqueID = o.Profile.Fabric.CliqueID
	}
	r.Devices, r.Distances = topology(n)
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("describe rendering: %w", err)
	}
	path := renderedPath(root)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("describe rendering: %w", err)
	}
	return os.Rename(path+".new", path)
}

func topology(n *profile.Node) (names []string, distances [][]string) {
	var places []profile.Place
	for _, g := range n.GPUs {
		names, places = append(names, fmt.Sprintf("GPU%d", g.Index)), append(places, g.Place())
	}
	for _, nic := range n.NICs {
		names, places = append(names, nic.Device), append(places, nic.Place())
	}
	for _, a := range places {
		var row []string
		for _, b := range places {
			row = append(row, n.Distance(a, b).String())
		}
		distances = append(distances, row)
	}
	return names, distances
}

func renderedPath(root string) string { return filepath.Join(root, "state", "rendered.json") }

// ReadRendered returns the description of the rendering at root; without one the error wraps os.ErrNotExist.
func ReadRendered(root string) (Rendered, error) {
	var r Rendered
	data, err := os.ReadFile(renderedPath(root))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", renderedPath(root), err)
	}
	return r, nil
}
