package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/observed"
)

// DriverCondition is the condition of a Node that reports whether its NVIDIA driver can be used, and its problem.
const DriverCondition corev1.NodeConditionType = "GPUDriver"

// driverTrouble is a possible problem of a driver, the most severe first.
type driverTrouble int

const (
	// troubleStart: NVML does not start.
	troubleStart driverTrouble = iota
	// troubleDrained: an administrator has drained the GPUs.
	troubleDrained
	// troubleGone: the driver's files were removed or replaced while it runs.
	troubleGone
	// troubleNodes: device nodes are missing without which no container can use a GPU.
	troubleNodes
	// troubleFiles: containers lack some of the driver's files.
	troubleFiles
	troubles
)

// driverWord is a statement about a driver.
type driverWord struct{ reason, message string }

// driverState collects the statements about the driver from the parts that use it. The plugin continues in any case.
type driverState struct {
	mu      sync.Mutex
	wrong   [troubles]driverWord
	version string // of the running driver; empty: unknown
	now     observed.Value[driverWord]
}

// set records a problem; with an empty reason, its end.
func (d *driverState) set(what driverTrouble, reason, message string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrong[what] = driverWord{reason, message}
	d.publish()
}

// runs records that NVML has started on a driver.
func (d *driverState) runs(version string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version = version
	d.wrong = [troubles]driverWord{}
	d.publish()
}

// publish determines the most severe statement. d.mu must be held.
func (d *driverState) publish() {
	word := driverWord{reason: "DriverReady", message: "the NVIDIA driver " + d.version + " can be used"}
	for _, w := range d.wrong {
		if w.reason != "" {
			word = w
			break
		}
	}
	if d.version == "" && word.reason == "DriverReady" {
		return // there is no result yet
	}
	if word != d.now.Now() {
		d.now.Set(word)
	}
}

// found records the result of a search for the files of containers.
func (d *driverState) found(set *edits.Set, lacking error, problems string) {
	if set != nil && lacking != nil {
		d.set(troubleNodes, "DeviceNodeMissing", lacking.Error())
	} else {
		d.set(troubleNodes, "", "")
	}
	reason := ""
	if problems != "" {
		reason = "DriverIncomplete"
	}
	d.set(troubleFiles, reason, problems)
}

// look records whether the running driver has lost its files, for example because a driver container was replaced beneath pods that
// use it.
func (d *driverState) look(search driver.Search, at driver.Location) {
	if at.Library == "" {
		return // it was not found in its place, but it runs
	}
	reason, message := search.Trouble()
	if reason != driver.NotFound && reason != driver.VersionsDiffer {
		reason, message = "", ""
	}
	if reason == driver.NotFound {
		message = "the driver's files were removed while it runs, so no new container gets them: " + message
	}
	d.set(troubleGone, reason, message)
}

// run writes the node's condition whenever it has changed, until ctx ends. A node without an NVIDIA GPU on its PCI bus waits for no
// driver, and gets no condition.
func (d *driverState) run(ctx context.Context, w conditions, sysfs pci.FS) {
	wrote := false
	var retry <-chan time.Time
	for {
		word, changed := d.now.Get()
		retry = nil
		if word.reason != "" && (wrote || word.reason == "DriverReady" || hasGPU(ctx, sysfs)) {
			c := corev1.NodeCondition{Type: DriverCondition, Status: corev1.ConditionFalse, Reason: word.reason, Message: word.message}
			if word.reason == "DriverReady" {
				c.Status = corev1.ConditionTrue
			}
			if err := w.write(ctx, c); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Could not write the condition of the node's driver")
				retry = time.After(conditionRetry)
			}
			wrote = true
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// hasGPU reports whether there is an NVIDIA GPU on the PCI bus. It returns true where the bus cannot be read.
func hasGPU(ctx context.Context, sysfs pci.FS) bool {
	const nvidia, classDisplay = 0x10de, 0x03
	bus, err := sysfs.Scan(ctx, func(class pci.Class) bool { return class>>16 == classDisplay })
	if errors.Is(err, fs.ErrNotExist) {
		return false // a machine without PCI
	}
	if err != nil {
		klog.FromContext(ctx).Error(fmt.Errorf("look for GPUs on the PCI bus: %w", err), "Could not determine whether the node has GPUs")
		return true
	}
	for i := range bus.Functions {
		if bus.Functions[i].Vendor == nvidia {
			return true
		}
	}
	return false
}
