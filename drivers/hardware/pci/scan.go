package pci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	Skipped   []Skipped  // requested functions that could not be read or understood, by name
}

// Skipped is a function that was left out of a scan.
type Skipped struct {
	Name   string // the entry's name in /sys/bus/pci/devices
	Reason error
	// Class is the function's class; 0 if it could not be read, so that nothing shows whether the function was requested.
	Class Class
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
// attribute, gives the reason, and returns the others. It reads nothing but the identity of other functions, and does not report
// them. A function that disappears during the scan, such as a virtual function that is being removed, is not reported either. The
// error is for a bus that cannot be listed at all. A machine without PCI has an empty bus.
func (f FS) Scan(ctx context.Context, want func(Class) bool) (*Bus, error) {
	if want == nil {
		return f.ScanIdentities(ctx, nil)
	}
	return f.ScanIdentities(ctx, func(is Identity) bool { return want(is.Class) })
}

// ScanIdentities is Scan for the functions whose vendor, device and class want accepts.
func (f FS) ScanIdentities(ctx context.Context, want func(Identity) bool) (*Bus, error) {
	names, err := sysfile.Names(filepath.Join(f.root, devices))
	if err != nil {
		return nil, fmt.Errorf("list PCI functions: %w (is %s a sysfs tree? it is set by --sysfs-root)", err, f.root)
	}
	results := make([]result, len(names))
	err = sysfile.Each(ctx, len(names), func(dir *sysfile.Dir, i int) {
		r := &results[i]
		if r.err = f.scan(dir, names[i], want, r); r.err != nil && f.gone(names[i]) {
			*r = result{}
		}
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
			bus.Skipped = append(bus.Skipped, Skipped{Name: names[i], Reason: r.err, Class: r.class})
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

// devices is the directory with a link for each function.
const devices = "bus/pci/devices"

// result is the result for one function.
type result struct {
	position position
	class    Class     // 0: not known
	function *Function // nil: it was not requested, or err reports why it could not be read
	virtual  []Address // its virtual functions, by index
	err      error
}

// scan reads the function of that name into r. The class comes first: the path and the attributes of a function that was not
// requested do not matter, except for the switches above it.
func (f FS) scan(dir *sysfile.Dir, name string, want func(Identity) bool, r *result) error {
	link := filepath.Join(f.root, devices, name)
	target, err := os.Readlink(link)
	if err != nil {
		return err
	}
	place := link
	position, misplaced := parsePosition(name, target)
	if misplaced == nil {
		r.position, place = position, filepath.Join(f.root, position.path)
	}
	if err := dir.Reopen(place); err != nil {
		return err
	}
	is, err := identify(dir)
	if err != nil {
		return err
	}
	r.class = is.Class
	switch {
	case want != nil && !want(is):
		return nil
	case misplaced != nil:
		return misplaced
	}
	function, err := read(dir, position, is)
	if err != nil {
		return err
	}
	r.function, r.virtual = &function, virtualFunctions(dir, &function)
	return nil
}

// gone reports whether the function of that name is no longer on the bus.
func (f FS) gone(name string) bool {
	_, err := os.Lstat(filepath.Join(f.root, devices, name))
	return errors.Is(err, fs.ErrNotExist)
}

// singleNUMA reports whether the machine has one NUMA node. Its firmware often does not name a node for its functions then, but all of
// them are on that one.
func (f FS) singleNUMA() bool {
	nodes, err := filepath.Glob(filepath.Join(f.root, "devices/system/node/node[0-9]*"))
	return err == nil && len(nodes) == 1
}

// virtualFunctions reads the physical function's virtfnN links, by N. A missing link gives an empty entry: the function is being
// removed, or the tree has fewer links than sriov_numvfs.
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
