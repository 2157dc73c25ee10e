// Package region reads the file through which HAMi-core, the limiter inside a container, shares its accounting: limits and use per
// GPU and per process.
//
// A tenant writes the file, so nothing in it is trusted. It is read with pread into a buffer of a fixed size, since a mapping could
// be truncated under the reader (SIGBUS). Counts are bounded before they index anything. Links and other things that are not plain
// files are refused.
//
// Layouts 1.1 and 1.2 are those of HAMi-core's shared region (offsets in layout.go). Layout 0, which has no version field, follows
// from the sizes of its file and of the parts that later versions added.
package region

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Version is the version of a region's layout. Version{0, 0} is the layout that had no version fields.
type Version struct{ Major, Minor int32 }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Region is one container's accounting at the moment of reading.
type Region struct {
	Version   Version
	Devices   []Device  // in the container's own order (CUDA_VISIBLE_DEVICES order)
	Processes []Process // live slots only
	// Torn counts process slots that their writer kept changing while they were read; they are left out of Processes.
	Torn int
	// LastKernel is the Unix time in seconds of the container's last kernel launch; 0 where the layout has none.
	LastKernel int64
	// Priority is the container's task priority: 0 is the higher one.
	Priority int32
}

// Device is a container's limit on one GPU.
type Device struct {
	UUID        string
	MemoryLimit uint64 // bytes; 0: unlimited
	CoreLimit   uint64 // percent of the GPU's SMs; 0: unlimited
}

// Process is the use of one process on each of Region.Devices.
type Process struct {
	Slot    int   // its place in the table of processes, from 0
	PID     int32 // in the container's PID namespace
	HostPID int32 // 0 where the limiter could not find it out
	Memory  []Memory
	// Utilization is the measured share of SMs in percent, per device; nil in layout 0.
	Utilization []uint64
}

// Memory is one process's memory on one GPU, in bytes.
type Memory struct {
	Context, Module, Data, Total uint64
}

// ErrNotARegion marks a file that is not a shared region (yet): wrong size or no magic. A container that has not called CUDA has such a
// file.
var ErrNotARegion = errors.New("not a HAMi-core shared region")

// maximumReads bounds how often a slot is read again while its writer is inside it. A writer holds a slot for well under a
// microsecond. A slot that stays odd belongs to a process that was killed inside, or to a tenant who wants the reader to loop.
const maximumReads = 4

// Read reads the region in the file at path. It does not follow a link at path's last element.
func Read(path string) (*Region, error) {
	// O_NONBLOCK: a FIFO in place of the file must not hang the reader.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open shared region: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading only
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat shared region %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is a %s, not a plain file: %w", path, info.Mode().Type(), ErrNotARegion)
	}
	region, err := Decode(file, info.Size())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return region, nil
}

// Decode reads a region of size bytes from r. Slots that change while they are read are read again a few times, then counted in Torn.
func Decode(r io.ReaderAt, size int64) (*Region, error) {
	layout, err := recognize(r, size)
	if err != nil {
		return nil, err
	}
	head := make([]byte, layout.processes)
	if err := readFull(r, head, 0); err != nil {
		return nil, err
	}
	tail := make([]byte, layout.size-layout.processCount)
	if err := readFull(r, tail, layout.processCount); err != nil {
		return nil, err
	}

	devices := binary.LittleEndian.Uint64(head[layout.deviceCount:])
	if devices > maximumDevices {
		return nil, fmt.Errorf("%d devices, where at most %d fit: %w", devices, maximumDevices, ErrNotARegion)
	}
	region := &Region{Version: layout.version, Priority: int32(binary.LittleEndian.Uint32(tail[12:]))}
	if layout.lastKernel > 0 {
		region.LastKernel = int64(binary.LittleEndian.Uint64(tail[layout.lastKernel-layout.processCount:]))
	}
	for i := range int64(devices) {
		region.Devices = append(region.Devices, Device{
			UUID:        text(head[layout.uuids+i*uuidSize:][:uuidSize]),
			MemoryLimit: binary.LittleEndian.Uint64(head[layout.memoryLimits+8*i:]),
			CoreLimit:   binary.LittleEndian.Uint64(head[layout.coreLimits+8*i:]),
		})
	}

	// A count beyond the table is wrong or torn; the table's end bounds it in either case.
	count := min(binary.LittleEndian.Uint32(tail), maximumProcesses)
	slot := make([]byte, layout.slotSize)
	for i := range int64(count) {
		ok, err := readSlot(r, slot, layout, layout.processes+i*layout.slotSize)
		if err != nil {
			return nil, err
		}
		if !ok {
			region.Torn++
			continue
		}
		if process := decodeSlot(slot, layout, int(devices)); process.PID != 0 {
			process.Slot = int(i)
			region.Processes = append(region.Processes, process)
		}
	}
	return region, nil
}

// Keep removes the processes that have ended: the library clears their slots only when a process needs more than is left.
func (r *Region) Keep(lives func(slot int) bool) {
	r.Processes = slices.DeleteFunc(r.Processes, func(p Process) bool { return !lives(p.Slot) })
}

// Used is the container's memory on device i in bytes, over all its processes.
func (r *Region) Used(i int) uint64 {
	var total uint64
	for _, process := range r.Processes {
		if sum := total + process.Memory[i].Total; sum >= total {
			total = sum
		} else { // a tenant's numbers: saturate rather than wrap
			return ^uint64(0)
		}
	}
	return total
}

// readSlot reads one process slot; false means that its writer was inside it each time.
func readSlot(r io.ReaderAt, slot []byte, layout layout, offset int64) (bool, error) {
	for range maximumReads {
		if err := readFull(r, slot, offset); err != nil {
			return false, err
		}
		if layout.sequence == 0 {
			return true, nil
		}
		before := binary.LittleEndian.Uint64(slot[layout.sequence:])
		if before%2 == 1 {
			continue
		}
		var again [8]byte
		if err := readFull(r, again[:], offset+layout.sequence); err != nil {
			return false, err
		}
		if binary.LittleEndian.Uint64(again[:]) == before {
			return true, nil
		}
	}
	return false, nil
}

func decodeSlot(slot []byte, layout layout, devices int) Process {
	process := Process{
		PID:     int32(binary.LittleEndian.Uint32(slot[0:])),
		HostPID: int32(binary.LittleEndian.Uint32(slot[4:])),
	}
	for i := range devices {
		used := slot[slotMemory+i*memorySize:]
		process.Memory = append(process.Memory, Memory{
			Context: binary.LittleEndian.Uint64(used[0:]),
			Module:  binary.LittleEndian.Uint64(used[8:]),
			Data:    binary.LittleEndian.Uint64(used[16:]),
			Total:   binary.LittleEndian.Uint64(used[32:]),
		})
		if layout.utilization > 0 {
			// Three counters lead each entry: decoder, encoder, SM.
			process.Utilization = append(process.Utilization, binary.LittleEndian.Uint64(slot[layout.utilization+int64(i)*utilizationSize+16:]))
		}
	}
	return process
}

// readFull reads len(buffer) bytes at offset; a region that ends early was truncated after it was recognised.
func readFull(r io.ReaderAt, buffer []byte, offset int64) error {
	n, err := r.ReadAt(buffer, offset)
	if n == len(buffer) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("ends at byte %d, before byte %d: %w", offset+int64(n), offset+int64(len(buffer)), ErrNotARegion)
	}
	return err
}

// text is the printable part of a NUL-terminated field; a tenant's bytes must not reach a log or a label unchanged.
func text(field []byte) string {
	var out []byte
	for _, b := range field {
		if b < 0x20 || b > 0x7e {
			break
		}
		out = append(out, b)
	}
	return string(out)
}
