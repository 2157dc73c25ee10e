package exclusive

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"gpufabric.io/drivers/node/atomicfile"
)

// Mover gives devices to pod sandboxes and takes them back. It is safe for concurrent use.
type Mover struct {
	links Links

	mu   sync.Mutex // Moves are rare and quick, and two sandboxes of one pod must not race for its devices.
	book *book
}

// NewMover makes a mover that keeps its record in dir.
func NewMover(dir string, links Links, writer atomicfile.Writer) (*Mover, error) {
	b, err := openBook(dir, writer)
	if err != nil {
		return nil, err
	}
	return &Mover{links: links, book: b}, nil
}

// Exclusive says whether the kernel's RDMA subsystem is in the mode in which devices can be given.
func (m *Mover) Exclusive() (bool, error) { return m.links.Exclusive() }

// Give moves what grants say into a sandbox's network namespace: all of it or, with an error, nothing. A sandbox that was given something before,
// which a plugin that starts finds running, keeps with an error what it has.
func (m *Mover) Give(sandbox, pod, namespace string, grants []Grant) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := entry{Sandbox: sandbox, Pod: pod, Namespace: namespace, Grants: grants}
	old, before, err := m.book.get(sandbox)
	before = before || err != nil // A record that cannot be read is one, and is written again.
	if err := m.free(e); err != nil {
		return err
	}
	if e.Interfaces = old.Interfaces; !before {
		if e.Interfaces, err = m.look(e); err != nil {
			return err
		}
	}
	if err := m.book.put(e); err != nil {
		return err
	}
	var errs []error
	for _, device := range e.devices() {
		if err := m.give(e, device); err != nil {
			errs = append(errs, fmt.Errorf("give %s to pod %s: %w", device, pod, err))
			if !before {
				return errors.Join(append(errs, m.takeAll(e))...)
			}
			// The pod may have renamed the interface, and works with it.
		}
	}
	return errors.Join(errs...)
}

// free refuses devices that another sandbox has. One of the same pod has ended: a pod has one sandbox at a time.
func (m *Mover) free(e entry) error {
	others, err := m.book.list()
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Sandbox == e.Sandbox {
			continue
		}
		for _, device := range other.devices() {
			if !slices.ContainsFunc(e.devices(), func(d Device) bool { return d.RDMA == device.RDMA }) {
				continue
			}
			if other.Grants[0].PodUID != e.Grants[0].PodUID {
				return fmt.Errorf("%s is in the network of pod %s: an RDMA device is in one pod's at a time", device.RDMA, other.Pod)
			}
			if err := m.takeAll(other); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// look reads how the interfaces are set up on the node.
func (m *Mover) look(e entry) ([]Interface, error) {
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

// give moves the RDMA device first: the kernel removes IPoIB's interfaces with it, and makes others on the node.
func (m *Mover) give(e entry, device Device) error {
	if err := m.links.GiveRDMA(device.RDMA, e.Namespace); err != nil {
		return err
	}
	for _, i := range e.interfaces(device) {
		if err := m.links.GiveInterface(i, e.Namespace); err != nil {
			return err
		}
	}
	return nil
}

// Take moves back what a sandbox was given; a sandbox that was given nothing is no error.
func (m *Mover) Take(sandbox string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, found, err := m.book.get(sandbox)
	if err != nil || !found {
		return err
	}
	return m.takeAll(e)
}

// takeAll takes back everything that it can, and forgets the sandbox only when that was all. The RDMA device comes first here, too: IPoIB's interfaces are
// set up when it is back.
func (m *Mover) takeAll(e entry) error {
	var errs []error
	for _, device := range e.devices() {
		errs = append(errs, m.links.TakeRDMA(device.RDMA, e.Namespace))
		for _, i := range e.interfaces(device) {
			errs = append(errs, m.links.TakeInterface(i, e.Namespace))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take back what pod %s was given: %w", e.Pod, err)
	}
	return m.book.remove(e.Sandbox)
}

// Keep takes back what sandboxes other than live ones were given: those that ended while nobody watched.
func (m *Mover) Keep(live map[string]bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := m.book.list()
	errs := []error{err}
	for _, e := range entries {
		if !live[e.Sandbox] {
			errs = append(errs, m.takeAll(e))
		}
	}
	return errors.Join(errs...)
}

// TakeFrom takes back what a claim gave, from whatever sandbox has it.
func (m *Mover) TakeFrom(claim, podUID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := m.book.list()
	errs := []error{err}
	for _, e := range entries {
		if slices.ContainsFunc(e.Grants, func(g Grant) bool { return g.Claim == claim && g.PodUID == podUID }) {
			errs = append(errs, m.takeAll(e))
		}
	}
	return errors.Join(errs...)
}

func (e entry) devices() []Device {
	var devices []Device
	for _, grant := range e.Grants {
		devices = append(devices, grant.Devices...)
	}
	return devices
}

// interfaces are a device's interfaces as they were on the node. Of a record that an earlier version wrote only their names are known.
func (e entry) interfaces(device Device) []Interface {
	interfaces := make([]Interface, len(device.Nets))
	for n, name := range device.Nets {
		interfaces[n] = Interface{Name: name}
		if at := slices.IndexFunc(e.Interfaces, func(i Interface) bool { return i.Name == name }); at >= 0 {
			interfaces[n] = e.Interfaces[at]
		}
	}
	return interfaces
}
