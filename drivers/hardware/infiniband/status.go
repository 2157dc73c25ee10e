package infiniband

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// Status decides whether a port can carry traffic.
type Status struct {
	State     PortState // ports/N/state
	PhysState PhysState // ports/N/phys_state
}

// Status reads the status of one port, from the files of its device alone. device is its path under the sysfs root, as in
// Device.Path. On real hardware the read queries the firmware and can hang with it, so the caller must bound it.
func (f FS) Status(device string, port int) (Status, error) {
	dir, err := sysfile.Open(filepath.Join(f.root, device, "ports", strconv.Itoa(port)))
	if err != nil {
		return Status{}, err
	}
	defer dir.Close()
	return readStatus(dir)
}

func readStatus(dir *sysfile.Dir) (Status, error) {
	state, err := number(dir, "state")
	if err != nil {
		return Status{}, err
	}
	phys, err := number(dir, "phys_state")
	if err != nil {
		return Status{}, err
	}
	return Status{State: PortState(state), PhysState: PhysState(phys)}, nil
}

// PKeys reads the partition keys of a port (ports/N/pkeys), sorted and without the empty entries. Scan leaves them out, since a
// physical function's table has up to 128 entries.
func (f FS) PKeys(device string, port int) ([]uint16, error) {
	path := filepath.Join(f.root, device, "ports", strconv.Itoa(port), "pkeys")
	entries, err := sysfile.Optional(sysfile.Names(path))
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	dir, err := sysfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var keys []uint16
	for _, entry := range entries {
		key, err := dir.Hex(entry, 16)
		if err != nil {
			return nil, fmt.Errorf("partition keys: %w", err)
		}
		if key != 0 {
			keys = append(keys, uint16(key))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Counters reads ports/N/counters and ports/N/hw_counters: name to value. Data counters are in units of four bytes, as the kernel
// gives them. It leaves out counters that cannot be read.
func (f FS) Counters(device string, port int) map[string]uint64 {
	counters := make(map[string]uint64)
	for _, set := range []string{"counters", "hw_counters"} {
		path := filepath.Join(f.root, device, "ports", strconv.Itoa(port), set)
		dir, err := sysfile.Open(path)
		if err != nil {
			continue
		}
		names, _ := dir.Names(".")
		for _, name := range names {
			text, err := dir.Text(name)
			if err != nil || !utf8.ValidString(name) {
				continue
			}
			if value, err := strconv.ParseUint(text, 10, 64); err == nil && name != "lifespan" { // lifespan is the cache's age, in milliseconds
				counters[name] = value
			}
		}
		dir.Close()
	}
	return counters
}
