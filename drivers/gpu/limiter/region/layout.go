package region

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Sizes that every version shares, in entries and bytes.
const (
	magic            = 19920718
	maximumDevices   = 16
	maximumProcesses = 1024
	uuidSize         = 96
	memorySize       = 64 // context, module, data, offset, total and three spare words
	utilizationSize  = 48
	slotMemory       = 8 // after pid and hostpid
)

// layout is where a version has its fields, in bytes from the region's start; a slot's fields count from the slot's start. 0: the
// version lacks the field.
type layout struct {
	version                                      Version
	size                                         int64
	deviceCount, uuids, memoryLimits, coreLimits int64
	processes, slotSize                          int64
	utilization, sequence                        int64 // inside a slot
	processCount, lastKernel                     int64
}

var (
	layoutV0 = layout{
		size: 1197896, deviceCount: 48, uuids: 56, memoryLimits: 1592, coreLimits: 1720,
		processes: 1848, slotSize: 1168, processCount: 1197880,
	}
	layoutV1 = layout{
		version: Version{1, 1},
		size:    2008952, deviceCount: 56, uuids: 64, memoryLimits: 1600, coreLimits: 1728,
		processes: 1856, slotSize: 1960, utilization: 1160, processCount: 2008896, lastKernel: 2008912,
	}
)

// sequenceV12 is the offset of a slot's sequence lock in layout 1.2: odd while the slot is being written.
const sequenceV12 = 1936

// recognize determines a region's layout from its size, its magic and its version. The file is one byte longer than the region (the
// limiter extends it by writing a byte at its end); that byte may be missing.
func recognize(r io.ReaderAt, size int64) (layout, error) {
	var head [12]byte
	if size < int64(len(head)) {
		return layout{}, fmt.Errorf("%d bytes: %w", size, ErrNotARegion)
	}
	if err := readFull(r, head[:], 0); err != nil {
		return layout{}, err
	}
	if got := binary.LittleEndian.Uint32(head[0:]); got != magic {
		return layout{}, fmt.Errorf("begins with %d, not with %d: %w", got, magic, ErrNotARegion)
	}
	switch size {
	case layoutV0.size, layoutV0.size + 1:
		return layoutV0, nil
	case layoutV1.size, layoutV1.size + 1:
	default:
		return layout{}, fmt.Errorf("%d bytes, not %d (layout 0) or %d (layout 1): %w", size, layoutV0.size+1, layoutV1.size+1, ErrNotARegion)
	}
	found := layoutV1
	found.version = Version{int32(binary.LittleEndian.Uint32(head[4:])), int32(binary.LittleEndian.Uint32(head[8:]))}
	switch found.version {
	case Version{1, 1}:
	case Version{1, 2}:
		found.sequence = sequenceV12
	default:
		return layout{}, fmt.Errorf("layout %s, where 0, 1.1 and 1.2 are supported: %w", found.version, ErrNotARegion)
	}
	return found, nil
}
