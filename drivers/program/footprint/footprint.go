// Package footprint keeps the memory that a process of this program holds close to what it uses.
//
// The program has every role in it, some 40 MB, of which a role at work needs a few. While it starts it touches most of it once, and
// the kernel maps 64 KiB around each touch. That is clean memory which the kernel may take back at any time, but until it has to, a
// node's accounting shows it as the plugin's: 40 MB resident in place of 23. How the program is linked matters as much (Makefile).
package footprint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// settled is when a role has started: it has registered, listed and published what it has.
	settled = 10 * time.Second
	// period is how often what was touched since is given back. What is still in use costs a minor fault a page to have again, from
	// the page cache: some tens of microseconds for all of it.
	period = 10 * time.Minute
	// A heap below smallHeap is collected when it has grown by smallGrowth percent rather than by its own size: to collect a few
	// megabytes more often costs a node's plugin nothing that could be measured. The environment's GOGC wins.
	smallHeap   = 16 << 20
	smallGrowth = 20
	usualGrowth = 100
)

// Nobody asks this program for a profile of its allocations, and the samples would take memory.
func init() { runtime.MemProfileRate = 0 }

// growth keeps the collector's pace by the size of the heap, from the program's first moment: what a start leaves scattered over a heap that was
// allowed to double stays resident, since Go moves nothing.
type growth struct {
	// live is the heap that the last collection left, percent the pace that was set.
	live    []metrics.Sample
	percent int
}

// adapt sets the pace now and after each collection.
func (g *growth) adapt() {
	metrics.Read(g.live)
	percent := usualGrowth
	if g.live[0].Value.Kind() == metrics.KindUint64 && g.live[0].Value.Uint64() < smallHeap {
		percent = smallGrowth
	}
	if percent != g.percent {
		g.percent = percent
		debug.SetGCPercent(percent)
	}
	// A finalizer runs once after the collection that found its object unreachable.
	runtime.SetFinalizer(&collected{g}, func(c *collected) { c.growth.adapt() })
}

// collected is an object that is never kept.
type collected struct{ growth *growth }

// Keep trims the process once it has started and now and then after that, until ctx ends. It is for a process that is one role:
// what it does is the whole process's.
func Keep(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		(&growth{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}).adapt()
	}
	timer := time.NewTimer(settled)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := Trim(); err != nil {
			klog.FromContext(ctx).V(2).Info("Memory of the program's file was not given back", "err", err)
			return
		}
		timer.Reset(period)
	}
}

// Trim gives free heap, and the clean pages of the program's own file, back to the kernel.
func Trim() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program's file: %w", err)
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read the process's mappings: %w", err)
	}
	defer smaps.Close() //nolint:errcheck // read only
	mappings, err := parse(smaps)
	if err != nil {
		return fmt.Errorf("read the process's mappings: %w", err)
	}
	var errs []error
	for _, m := range mappings {
		if m.path != program || !m.clean() {
			continue
		}
		// Without this the next touch may map two megabytes. A kernel without huge pages for files refuses it, and needs it not.
		_ = madvise(m, unix.MADV_NOHUGEPAGE)
		// Safe for what clean() lets through: such a page is the file's own, whoever needs it gets it from the file again, and the
		// kernel lets nobody write to a program that runs (ETXTBSY). It would not be for a page that this process has changed,
		// whose change would be lost.
		if err := madvise(m, unix.MADV_DONTNEED); err != nil {
			errs = append(errs, fmt.Errorf("give %x-%x of %s back: %w", m.start, m.end, program, err))
		}
	}
	return errors.Join(errs...)
}

func madvise(m mapping, advice uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, advice); errno != 0 {
		return errno
	}
	return nil
}
