package sharedgpus

import (
	"fmt"
	"math"
)

// A node counts shared GPU memory, an extended resource, in units. A device plugin lists one ID per unit, and the kubelet reads at
// most 4 MiB in one message. Eight GPUs of 192 GB counted in MiB would need a list of 97 MB with the IDs of the public plugin, and
// the node would lose the resource ("received message larger than max"). So memory is counted in units of a factor of MiB.
// Volcano's scheduler reads memory from the node's annotation without a factor, so every node of a cluster must use the same
// one: see AgreeFactor.

// MessageLimit is the most that the kubelet's device manager receives in one message, in bytes (gRPC's default).
const MessageLimit = 4 << 20

// Budget is how much of MessageLimit a list may use, in bytes; the rest is left for topology hints and longer health texts.
const Budget = 3 << 20

// wireBytes is the size of one device in a ListAndWatch response besides its ID, in bytes: its own tag and length (up to 3), the
// ID's (2), the health string "Healthy" with its (9), and the topology of one NUMA node (8).
const wireBytes = 22

// IDBytes is the longest ID of UnitID, in bytes: two digits of GPU index, a dash, seven digits of unit.
const IDBytes = 10

// leastBytes is the minimum size of one device in a list near MessageLimit, with its ID: 17 bytes (no NUMA node other than 0) and
// an ID of 6.
const leastBytes = 23

// UnitID names unit n of GPU index. Only the plugin parses it. It is short because there are many.
func UnitID(index, n int) string { return fmt.Sprintf("%d-%d", index, n) }

// factors are the values that SmallestFactor chooses from. They are powers of two: a node with larger GPUs than the rest needs few
// steps, and each larger unit is a multiple of the smaller ones.
func factors(yield func(int) bool) {
	for f := 1; f <= 1<<20; f *= 2 {
		if !yield(f) {
			return
		}
	}
}

// CountUnits is the number of units of one GPU: its memory in MiB, scaled (1: unscaled), divided by factor and rounded down.
func CountUnits(memoryMiB int64, scaling float64, factor int) int64 {
	scaled := math.Floor(float64(memoryMiB) * scaling)
	return int64(scaled) / int64(factor)
}

// SmallestFactor is the smallest factor with which the units of all GPUs fit into budget bytes.
func SmallestFactor(memoryMiB []int64, scaling float64, budget int) (int, error) {
	for factor := range factors {
		if count(memoryMiB, scaling, factor)*(wireBytes+IDBytes) <= int64(budget) {
			return factor, nil
		}
	}
	return 0, fmt.Errorf("no memory factor up to 2^20 fits the memory of %d GPUs into a list of %d bytes; set a lower "+
		"device-memory-scaling (it is %g)",
		len(memoryMiB), budget, scaling)
}

// CheckFactor refuses a configured factor with which the kubelet would refuse the list again and again and count no memory.
func CheckFactor(factor int, memoryMiB []int64, scaling float64) error {
	size := count(memoryMiB, scaling, factor) * leastBytes
	if size <= MessageLimit {
		return nil
	}
	least, err := SmallestFactor(memoryMiB, scaling, Budget)
	if err != nil {
		return err
	}
	return fmt.Errorf("gpuMemoryFactor %d: the memory of %d GPUs in units of %d MiB is a list of at least %d bytes, where the kubelet "+
		"takes %d; set %d or more, or 0 to have it chosen, or share fewer GPUs (filterdevices)",
		factor, len(memoryMiB), factor, size, MessageLimit, least)
}

// count is the number of units of all GPUs.
func count(memoryMiB []int64, scaling float64, factor int) int64 {
	var units int64
	for _, m := range memoryMiB {
		units += CountUnits(m, scaling, factor)
	}
	return units
}

// AgreeFactor returns the factor that a cluster should use, given the present one (0: none yet) and the minimum for this node.
// The factor never shrinks, since the requests of waiting pods are in the present unit. It grows only where a node could not
// register otherwise.
func AgreeFactor(inForce, needed int) int { return max(inForce, needed) }

// DescribeFactor describes one unit, for an annotation and for people.
func DescribeFactor(resource string, factor int) string {
	return fmt.Sprintf("1 %s = %d MiB", resource, factor)
}
