package exclusive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// Mover gives devices to pod sandboxes and takes them back. It is safe for concurrent use.
type Mover struct {
	links Links

	// mu is held while links move, which is quick, but not while waiting for a namespace that has ended. Two sandboxes of one pod must
	// not race for its devices.
	mu   sync.Mutex
	book book
}

// NewMover makes a mover with its records in dir. It sets records that cannot be read aside and returns them.
func NewMover(dir string, links Links, writer atomicfile.Writer) (*Mover, []store.Unreadable, error) {
	b, unreadable, err := openBook(dir, writer)
	if err != nil {
		return nil, nil, err
	}
	return &Mover{links: links, book: b}, unreadable, nil
}

// Collector is the metric of the records that could not be read.
func (m *Mover) Collector() prometheus.Collector { return m.book }

// Exclusive reports whether the kernel's RDMA subsystem is in the mode in which devices can be moved.
func (m *Mover) Exclusive() (bool, error) { return m.links.Exclusive() }

// Give moves the devices of grants into a sandbox's network namespace: all of it or, with an error, nothing. A sandbox that was given
// something before, which a restarted plugin finds running, keeps it even with an error. Give also returns descriptions of the
// addresses and routes that the interfaces lack in the pod.
func (m *Mover) Give(ctx context.Context, sandbox, pod, namespace string, grants []Grant) (missing []string, err error) {
	e := grantRecord{Sandbox: sandbox, Pod: pod, Namespace: namespace, Grants: grants}
	m.await(ctx, func(other grantRecord) bool { return other.Sandbox != sandbox && other.shares(e) })
	m.mu.Lock()
	defer m.mu.Unlock()
	old, before := m.book.Get(sandbox)
	if aside, err := m.book.Aside(); err != nil || slices.Contains(aside, sandbox) {
		before = true // A record that cannot be read is one, and is written again.
	}
	if err := m.free(ctx, e); err != nil {
		return nil, err
	}
	if e.Interfaces = old.Interfaces; !before {
		if e.Interfaces, err = m.look(e); err != nil {
			return nil, err
		}
	}
	if err := m.book.put(e); err != nil {
		return nil, err
	}
	missing, err = m.giveAll(e)
	if err != nil && !before {
		return nil, errors.Join(err, m.takeAll(ctx, e))
	}
	// With an error the pod may have renamed the interface and still use it.
	return missing, err
}

// free refuses devices that another sandbox has. An earlier sandbox of the same pod has ended: a pod has one sandbox at a time.
func (m *Mover) free(ctx context.Context, e grantRecord) error {
	for _, other := range m.book.All() {
		if other.Sandbox == e.Sandbox || !other.shares(e) {
			continue
		}
		if other.Grants[0].PodUID != e.Grants[0].PodUID {
			device := other.common(e)[0].RDMA
			klog.FromContext(ctx).Info("An RDMA device is in another pod's network", "device", device, "pod", e.Pod, "holder", other.Pod)
			return fmt.Errorf("%s is in the network of another pod (the log of this node's rdma-plugin names it): an RDMA device is in one "+
				"pod's at a time", device)
		}
		if err := m.takeAll(ctx, other); err != nil {
			return err
		}
	}
	return nil
}

// look reads the interfaces' settings on the node.
func (m *Mover) look(e grantRecord) ([]Interface, error) {
	var interfaces []Interface
	for _, device := range e.devices() {
		for _, name := range device.Nets {
			i, err := m.links.Look(name)
			if err != nil {
				return nil, fmt.Errorf("give %s to pod %s: %w", device, e.Pod, err)
			}
			interfaces = append(interfaces, i)
		}
	}
	return interfaces, nil
}

// giveAll moves the RDMA devices first: the kernel removes IPoIB interfaces with them, and makes others on the node. Where a device
// fails, its interfaces stay; the other devices are still moved.
func (m *Mover) giveAll(e grantRecord) (missing []string, err error) {
	devices := e.devices()
	errs := each(devices, func(d Device) error { return m.links.GiveRDMA(d.RDMA, e.Namespace) })
	for n, device := range devices {
		for _, i := range e.interfaces(device) {
			if errs[n] != nil {
				break
			}
			var without []string
			without, errs[n] = m.links.GiveInterface(i, e.Namespace)
			missing = append(missing, without...)
		}
		if errs[n] != nil {
			errs[n] = fmt.Errorf("give %s to pod %s: %w", device, e.Pod, errs[n])
		}
	}
	return missing, errors.Join(errs...)
}

// each does something with all devices at once: a driver takes time to unregister an HCA and register it again, and one HCA must
// not wait for another.
func each(devices []Device, do func(Device) error) []error {
	errs := make([]error, len(devices))
	var group sync.WaitGroup
	for n, device := range devices {
		group.Go(func() { errs[n] = do(device) })
	}
	group.Wait()
	return errs
}

// Take moves the devices of a sandbox back; a sandbox that was given nothing is no error.
func (m *Mover) Take(ctx context.Context, sandbox string) error {
	m.await(ctx, func(e grantRecord) bool { return e.Sandbox == sandbox })
	m.mu.Lock()
	defer m.mu.Unlock()
	e, found := m.book.Get(sandbox)
	if !found {
		return nil
	}
	return m.takeAll(ctx, e)
}

// await waits, without the lock, for the interfaces of all those entries at once, so that they are on the node when they are taken
// back.
func (m *Mover) await(ctx context.Context, which func(grantRecord) bool) {
	var group sync.WaitGroup
	for _, e := range m.book.All() {
		if !which(e) {
			continue
		}
		var interfaces []Interface
		for _, device := range e.devices() {
			interfaces = append(interfaces, e.interfaces(device)...)
		}
		group.Go(func() { m.links.Await(ctx, e.Namespace, interfaces) })
	}
	group.Wait()
}

// takeAll takes back everything that it can, and removes the sandbox's record only when that was all. Here too the RDMA devices
// come first: IPoIB interfaces can be restored once they are back.
func (m *Mover) takeAll(ctx context.Context, e grantRecord) error {
	devices := e.devices()
	errs := each(devices, func(d Device) error { return m.links.TakeRDMA(d.RDMA, e.Namespace) })
	for _, device := range devices {
		for _, i := range e.interfaces(device) {
			missing, err := m.links.TakeInterface(i, e.Namespace)
			errs = append(errs, err)
			if len(missing) > 0 {
				klog.FromContext(ctx).Error(nil, "An interface is back from a pod without some of its settings", "pod", e.Pod, "missing", missing)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take back the devices of pod %s: %w", e.Pod, err)
	}
	return m.book.Delete(e.Sandbox)
}

// Keep takes back the devices of sandboxes other than live ones: those that ended while the plugin was away.
func (m *Mover) Keep(ctx context.Context, live map[string]bool) error {
	return m.takeWhere(ctx, func(e grantRecord) bool { return !live[e.Sandbox] })
}

// TakeFrom takes the devices of a claim back from the sandbox that has them.
func (m *Mover) TakeFrom(ctx context.Context, claim, podUID string) error {
	return m.takeWhere(ctx, func(e grantRecord) bool {
		return slices.ContainsFunc(e.Grants, func(g Grant) bool { return g.Claim == claim && g.PodUID == podUID })
	})
}

func (m *Mover) takeWhere(ctx context.Context, which func(grantRecord) bool) error {
	m.await(ctx, which)
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, e := range m.book.All() {
		if which(e) {
			errs = append(errs, m.takeAll(ctx, e))
		}
	}
	return errors.Join(errs...)
}

// shares reports whether two entries have a device in common.
func (e grantRecord) shares(other grantRecord) bool { return len(e.common(other)) > 0 }

// common returns the devices that both entries have.
func (e grantRecord) common(other grantRecord) []Device {
	return slices.DeleteFunc(e.devices(), func(mine Device) bool {
		return !slices.ContainsFunc(other.devices(), func(d Device) bool { return d.RDMA == mine.RDMA })
	})
}

func (e grantRecord) devices() []Device {
	var devices []Device
	for _, grant := range e.Grants {
		devices = append(devices, grant.Devices...)
	}
	return devices
}

// interfaces returns a device's interfaces with their settings on the node. Those of an absent interface are empty.
func (e grantRecord) interfaces(device Device) []Interface {
	interfaces := make([]Interface, len(device.Nets))
	for n, name := range device.Nets {
		interfaces[n] = Interface{Name: name}
		if at := slices.IndexFunc(e.Interfaces, func(i Interface) bool { return i.Name == name }); at >= 0 {
			interfaces[n] = e.Interfaces[at]
		}
	}
	return interfaces
}
