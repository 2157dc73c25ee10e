package kindcluster

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"gpufabric.io/tests/docker"
)

// Layout is where a node has its hardware and driver.
type Layout string

// The layouts of layout/place.sh.
const (
	// LayoutMoved leaves everything below the chart's root, to which the drivers are pointed.
	LayoutMoved Layout = "none"
	// LayoutKernel has /sys and the RDMA devices in place, and no driver of NVIDIA's yet.
	LayoutKernel Layout = "kernel"
	// LayoutHost has the driver as a distribution's package installs it.
	LayoutHost Layout = "host"
	// LayoutDriverContainer has the driver below /run/nvidia/driver.
	LayoutDriverContainer Layout = "driver-container"
	// layoutForeign is LayoutDriverContainer with a C library of its own.
	layoutForeign Layout = "foreign"
)

// placeScript puts a fake node in the places of real hardware.
//
//go:embed layout/place.sh
var placeScript string

// launcherSource is a program with a C library that starts one of the fake's programs, which have none.
//
//go:embed layout/launcher.c
var launcherSource string

const (
	placePath   = "/kind/bin/place-fake-hardware.sh"
	foreignPath = "/kind/foreign"
)

// Place puts the fake hardware of every worker, which must be rendered, into its place in the layout. LayoutKernel comes before the
// two others where the driver arrives later; LayoutMoved removes everything.
func (c *Cluster) Place(ctx context.Context, layout Layout) error {
	for _, node := range c.Workers() {
		if err := place(ctx, node, layout); err != nil {
			return err
		}
	}
	return nil
}

func place(ctx context.Context, node string, layout Layout) error {
	if err := writeFile(ctx, node, placePath, placeScript); err != nil {
		return err
	}
	if _, err := docker.Script(ctx, node, `bash "$PLACE" "$LAYOUT"`, "PLACE="+placePath, "LAYOUT="+string(layout),
		"FOREIGN="+foreignPath); err != nil {
		return fmt.Errorf("place the hardware of %s as %s: %w", node, layout, err)
	}
	return nil
}

// PlaceForeign gives the first workers a driver container each whose programs are linked with a C library of their own: libraries are the
// unpacked packages of them. It needs gcc, and is for machines of amd64.
func (c *Cluster) PlaceForeign(ctx context.Context, libraries ...string) error {
	directory, err := os.MkdirTemp("", "gpufabric-launcher-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	source, launcher := filepath.Join(directory, "launcher.c"), filepath.Join(directory, "launcher")
	if err := os.WriteFile(source, []byte(launcherSource), 0o600); err != nil {
		return err
	}
	// No start files, since they need symbols of the compiling machine's C library.
	if out, err := exec.CommandContext(ctx, "gcc", "-O2", "-nostartfiles", "-o", launcher, source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the launcher of linked programs: %w\n%s", err, out)
	}
	for i, library := range libraries {
		node := c.Workers()[i]
		if _, err := docker.Script(ctx, node, `rm -rf "$FOREIGN" && mkdir "$FOREIGN"`, "FOREIGN="+foreignPath); err != nil {
			return err
		}
		for from, to := range map[string]string{library: "libc", launcher: "launcher"} {
			if _, err := docker.Run(ctx, "cp", "--archive", from, node+":"+foreignPath+"/"+to); err != nil {
				return err
			}
		}
		if err := place(ctx, node, layoutForeign); err != nil {
			return err
		}
	}
	return nil
}
