package plugin

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/uverbs"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// VerbsDevice is an HCA that is open for its events. uverbs.Device implements it.
type VerbsDevice interface {
	// Next waits for an event; after an error there are no more.
	Next() (uverbs.Event, error)
	Close() error
}

// OpenVerbs opens the device node at path of an HCA with that kernel driver.
type OpenVerbs func(path, driver string) (VerbsDevice, error)

// openVerbs opens real devices.
func openVerbs(path, driver string) (VerbsDevice, error) { return uverbs.Open(path, driver) }

// verbsEvents receives the kernel's events of HCAs. The periodic reading of ports goes on in any case, since events need access to
// the device nodes, and some drivers refuse.
type verbsEvents struct {
	dev     inventory.DeviceNodes
	open    OpenVerbs
	ports   *health.Watcher
	scanner *scanner

	devices observed.Value[*inventory.Inventory] // nil: before the first discovery

	mu     sync.Mutex
	opened map[string]bool // by the HCA's place and device node: open, or refused
}

// newVerbsEvents opens HCAs with device nodes in dev; a nil open opens the real ones.
func newVerbsEvents(dev inventory.DeviceNodes, open OpenVerbs, ports *health.Watcher, scanner *scanner) *verbsEvents {
	if open == nil {
		open = openVerbs
	}
	return &verbsEvents{dev: dev, open: open, ports: ports, scanner: scanner, opened: make(map[string]bool)}
}

// Set replaces the HCAs of the node.
func (v *verbsEvents) Set(devices *inventory.Inventory) { v.devices.Set(devices) }

// Run receives the HCAs' events until ctx ends. No device is open when it returns.
func (v *verbsEvents) Run(ctx context.Context) {
	var hearing sync.WaitGroup
	defer hearing.Wait()
	for {
		devices, changed := v.devices.Get()
		if devices != nil {
			v.hearNew(ctx, &hearing, devices)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// hearNew opens those of the HCAs that are not open yet. It does not open a virtual function whose physical function it opens: the
// virtual port follows the physical one, and hundreds of contexts would need hundreds of doorbell pages.
func (v *verbsEvents) hearNew(ctx context.Context, hearing *sync.WaitGroup, devices *inventory.Inventory) {
	v.mu.Lock()
	defer v.mu.Unlock()
	physical := make(map[string]bool)
	for i := range devices.HCAs {
		physical[string(devices.HCAs[i].PCI)] = true
	}
	present := make(map[string]bool)
	for i := range devices.HCAs {
		h := &devices.HCAs[i]
		if h.Function == nil || h.Function.Virtual() && physical[string(h.Function.PhysicalFunction)] {
			continue
		}
		key := h.Path + " " + h.Verbs.Name
		present[key] = true
		if !v.opened[key] {
			v.opened[key] = true
			name, path, driver := h.Name, v.dev.Path(h.Verbs), h.Function.Driver
			hearing.Go(func() { v.hear(ctx, key, name, path, driver) })
		}
	}
	for key := range v.opened {
		if !present[key] {
			delete(v.opened, key) // It is opened again when it comes back.
		}
	}
}

// hear reads the events of one HCA until ctx ends or the HCA is gone. It runs in a goroutine of its own, since opening may hang
// with the firmware.
func (v *verbsEvents) hear(ctx context.Context, key, name, path, driver string) {
	log := klog.FromContext(ctx)
	device, err := v.open(path, driver)
	if err != nil {
		log.Info("Could not open an HCA for its events; its ports are still read every 400 ms", "device", name, "reason", err.Error())
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = device.Close() })
	for {
		event, err := device.Next()
		if err != nil {
			if !stop() {
				return // ctx ended, and the device was closed with it.
			}
			log.V(2).Info("An HCA's events ended", "device", name, "err", err)
			_ = device.Close()
			v.mu.Lock()
			delete(v.opened, key)
			v.mu.Unlock()
			v.scanner.AskSoon() // the HCA went
			return
		}
		log.V(4).Info("An HCA sent an event", "device", name, "kind", event.Type, "port", event.Port)
		v.take(event)
	}
}

// take makes the ports be read at once, and the devices be discovered again where more than a port's health may have changed.
func (v *verbsEvents) take(event uverbs.Event) {
	v.ports.Nudge()
	if event.Type != uverbs.PortActive && event.Type != uverbs.PortError {
		v.scanner.AskSoon()
	}
}
