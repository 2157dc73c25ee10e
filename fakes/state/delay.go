package state

import (
	"fmt"
	"hash/fnv"
	"time"
)

// AnyFunction as a function's name means all of them.
const AnyFunction = "*"

// FunctionHash is how a Delay names a function: 32-bit FNV-1a, 0 for AnyFunction.
func FunctionHash(name string) uint32 {
	if name == AnyFunction {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // hash.Hash never returns an error
	return h.Sum32()
}

// SetDelay makes a function take at least d longer; 0 removes the delay.
func (n *Node) SetDelay(function string, d time.Duration) error {
	hash := FunctionHash(function)
	kept := n.Delays[:0]
	for _, x := range n.Delays[:min(n.DelayCount, MaxDelays)] {
		if x.Function != hash {
			kept = append(kept, x)
		}
	}
	if d > 0 {
		if len(kept) == MaxDelays {
			return fmt.Errorf("%d functions are slow already, the maximum; set one to 0 first", MaxDelays)
		}
		kept = append(kept, Delay{Function: hash, Microseconds: uint32(d.Microseconds())})
	}
	clear(n.Delays[len(kept):])
	n.DelayCount = uint32(len(kept))
	return nil
}

// Delay is how much longer a function takes.
func (n *Node) Delay(function string) time.Duration {
	if n.DelayCount == 0 {
		return 0
	}
	hash := FunctionHash(function)
	var total time.Duration
	for _, x := range n.Delays[:min(n.DelayCount, MaxDelays)] {
		if x.Function == hash || x.Function == 0 {
			total += time.Duration(x.Microseconds) * time.Microsecond
		}
	}
	return total
}
