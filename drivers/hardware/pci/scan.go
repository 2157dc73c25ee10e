package pci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// FS is a sysfs tree.
type FS struct{ root string }

// NewFS makes an FS of the tree at root, which is /sys on a real node.
func NewFS(root string) FS { return FS{root: root} }

// Bus is the result of one scan of the PCI bus.
type Bus struct {
	Functions []Function // the requested functions, by address
	Skipped   []Skipped  // functions left out because their entries could not be read or understood, by name
}

// Skipped is a function that was left out of a scan.
type Skipped struct {
	Name   string // the entry's name in /sys/bus/pci/devices
	Reason error
}

// Function returns the function at address, or nil.
func (b *Bus) Function(address Address) *Function {
	byAddress := func(f Function, a Address) int { return strings.Compare(string(f.Address), string(a)) }
	i, ok := slices.BinarySearchFunc(b.Functions, address, byAddress)
	if !ok {
		return nil
	}
	return &b.Functions[i]
}

// Scan reads the functions whose class want accepts; nil accepts all. It leaves out a function with an unreadable or garbled
// attribute, gives the reason, and returns the others. The error is for a bus that cannot be listed at all. A machine without PCI
// has an empty bus.
func (f FS) Scan(ctx context.Context, want func(Class) bool) (*Bus, error) {
	const devices = "bus/pci/devices"
	names, err := sysfile.Names(filepath.Join(f.root, devices))
	if err != nil {
		return nil, fmt.Errorf("list PCI functions: %w (is %s a sysfs tree? it is set by --sysfs-root)", err, f.root)
	}
	type result struct {
		position position
		function *Function
		virtual  []Address // its virtual functions, by index
		err      error
	}
	results := make([]result, len(names))
	err = sysfile.Each(ctx, len(names), func(dir *sysfile.Dir, i int) {
		r := &results[i]
		target, err := os.Readlink(filepath.Join(f.root, devices, names[i]))
		if err != nil {
			r.err = err
			return
		}
		if r.position, r.err = parsePosition(names[i], target); r.err != nil {
			return
		}
		if r.err = dir.Reopen(filepath.Join(f.root, r.position.path)); r.err != nil {
			return
		}
		is, err := identify(dir)
		if err != nil {
			r.err = err
			return
		}
		if want != nil && !want(is.class) {
			return
		}
		function, err := read(dir, r.position, is)
		if err != nil {
			r.err = err
			return
		}
		r.function, r.virtual = &function, virtualFunctions(dir, &function)
	})
	if err != nil {
		return nil, err
	}
	bus := &Bus{}
	single := f.singleNUMA()
	switches := make(switchCount)
	for i := range results {
		switches.add(results[i].position)
	}
	for i := range results {
		switch r := &results[i]; {
		case r.err != nil:
			bus.Skipped = append(bus.Skipped, Skipped{Name: names[i], Reason: r.err})
		case r.function != nil:
			r.function.Switch = switches.of(r.function)
			if r.function.NUMANode == NUMAUnknown && single {
				r.function.NUMANode = 0
			}
			bus.Functions = append(bus.Functions, *r.function)
		}
	}
	slices.SortFunc(bus.Functions, func(a, b Function) int { return strings.Compare(string(a.Address), string(b.Address)) })
	for i := range results {
		if r := &results[i]; r.function != nil {
			bus.number(r.function.Address, r.virtual)
		}
	}
	return bus, nil
}

// singleNUMA reports whether the machine has one NUMA node. Its firmware often names no node for its functions then, but all of
// them are on that one.
func (f FS) singleNUMA() bool {
	nodes, err := filepath.Glob(filepath.Join(f.root, "devices/system/node/node[0-9]*"))
	return err == nil && len(nodes) == 1
}

// virtualFunctions reads the physical function's virtfnN links, by N. A missing link gives an empty entry: the function is being
// removed, or the tree has fewer links than sriov_numvfs says.
func virtualFunctions(dir *sysfile.Dir, physical *Function) []Address {
	addresses := make([]Address, physical.NumVFs)
	for n := range addresses {
		if name, err := dir.Link("virtfn" + strconv.Itoa(n)); err == nil {
			addresses[n] = Address(name)
		}
	}
	return addresses
}

// number sets the indexes of the virtual functions of physical.
func (b *Bus) number(physical Address, virtual []Address) {
	for n, address := range virtual {
		if f := b.Function(address); f != nil && f.PhysicalFunction == physical {
			f.VirtualIndex = n
		}
	}
}
