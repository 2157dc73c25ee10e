package kindcluster

import (
	"context"
	_ "embed"
	"fmt"

	"gpufabric.io/tests/docker"
)

// Layout is where a node has its hardware and driver.
type Layout string

// The layouts of layout/place.sh.
const (
	// LayoutMoved leaves everything below the chart's root, where the drivers are pointed at.
	LayoutMoved Layout = "none"
	// LayoutKernel has /sys and the RDMA devices in place, and no driver of NVIDIA's yet.
	LayoutKernel Layout = "kernel"
	// LayoutHost has the driver as a distribution's package installs it.
	LayoutHost Layout = "host"
	// LayoutDriverContainer has the driver below /run/nvidia/driver.
	LayoutDriverContainer Layout = "driver-container"
)

// placeScript puts a fake node where hardware lies.
//
//go:embed layout/place.sh
var placeScript string

const placePath = "/kind/bin/place-fake-hardware.sh"

// Place puts the fake hardware of every worker, which has to be rendered, where the layout has it. LayoutKernel comes before the two others
// where the driver is to arrive later; LayoutMoved takes everything away.
func (c *Cluster) Place(ctx context.Context, layout Layout) error {
	for _, node := range c.Workers() {
		if err := writeFile(ctx, node, placePath, placeScript); err != nil {
			return err
		}
		if _, err := docker.Script(ctx, node, `bash "$PLACE" "$LAYOUT"`, "PLACE="+placePath, "LAYOUT="+string(layout)); err != nil {
			return fmt.Errorf("place the hardware of %s as %s: %w", node, layout, err)
		}
	}
	return nil
}
