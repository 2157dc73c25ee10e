// Package fabric turns a simulated cluster into one of GPU fabric nodes. It has the fake hardware of each node, and runs the
// roles of gpufabric as the programs of its containers.
package fabric

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/simnode"
)

// hardwareDir is the fake tree's directory in the node's own directory. It is short, since the paths below it are long.
const hardwareDir = "f"

// HardwareOf is the fake tree of the node whose own directory is nodeDir.
func HardwareOf(nodeDir string) string { return filepath.Join(nodeDir, hardwareDir) }

// FakeRoot is where a node's fake tree appears on the node, as the chart fake-hardware puts it in kind.
const FakeRoot = "/var/lib/fakefabric"

// Values are the chart's values for nodes whose hardware is at FakeRoot.
func Values() map[string]any {
	return map[string]any{"hardware": map[string]any{
		"driverRoot": FakeRoot + "/driver", "sysfsRoot": FakeRoot + "/sys", "devRoot": FakeRoot + "/dev",
		"procDevices": FakeRoot + "/proc/devices", "hostMounts": []any{FakeRoot}, "privileged": false,
	}}
}

// hardware renders each node from a profile.
func hardware(name string, nodes int, files built) (cluster.Hardware, error) {
	p, err := profile.Load(name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, index int, dir string) ([]simnode.Mapping, map[string]string, error) {
		root := HardwareOf(dir)
		if _, err := tree.ReadRendered(root); err != nil { // a node that only reboots keeps its hardware
			if err := tree.Render(ctx, tree.Options{Profile: p, Node: index, Nodes: nodes, Root: root, LibraryDir: files.libraryDir,
				Tools: files.tools}); err != nil {
				return nil, nil, err
			}
			if files.tools == "" {
				if err := placeholders(root); err != nil {
					return nil, nil, err
				}
			}
		}
		if err := newBoot(root); err != nil {
			return nil, nil, err
		}
		mappings, err := mount(root, dir)
		return mappings, map[string]string{"fakefabric.gpufabric.io/profile": p.Name}, err
	}, nil
}

// placeholders are files at the paths of IMEX's programs, which run as goroutines here. With a driver that lacks these programs
// no domain forms.
func placeholders(root string) error {
	for _, name := range []string{"nvidia-imex", "nvidia-imex-ctl", "../lib64/libnvidia-ml.so.1"} {
		path := filepath.Join(root, "driver/usr/bin", name)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			return fmt.Errorf("render the node's driver: %w", err)
		}
	}
	return nil
}

// newBoot gives the node a new boot ID, by which drivers notice a reboot.
func newBoot(root string) error {
	dir := filepath.Join(root, "proc/sys/kernel/random")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("boot the node: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte(uuid.NewString()+"\n"), 0o644); err != nil {
		return fmt.Errorf("boot the node: %w", err)
	}
	return nil
}

// mount reports where a node has its hardware: under FakeRoot, and at the paths of a real machine. So the chart works with the
// values for kind and with its defaults.
func mount(root, dir string) ([]simnode.Mapping, error) {
	// "/" is a driver root too: its usr is the fake driver's.
	rootfs := filepath.Join(dir, "r")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return nil, fmt.Errorf("make the node's root: %w", err)
	}
	usr := filepath.Join(rootfs, "usr")
	if err := os.Remove(usr); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("link the driver into the node's root: %w", err)
	}
	if err := os.Symlink(filepath.Join(root, "driver", "usr"), usr); err != nil {
		return nil, fmt.Errorf("link the driver into the node's root: %w", err)
	}
	mappings := []simnode.Mapping{{Path: FakeRoot, Real: root}}
	for _, name := range []string{"sys", "proc", "dev"} {
		mappings = append(mappings, simnode.Mapping{Path: "/" + name, Real: filepath.Join(root, name)})
	}
	return mappings, nil
}
