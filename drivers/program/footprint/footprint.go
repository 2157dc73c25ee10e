// Package footprint keeps the memory that a process of this program holds close to what it uses.
//
// The program contains every role, about 40 MB, of which a running role needs little. While it starts it touches most of it once,
// and the kernel maps 64 KiB around each touch. That is clean memory which the kernel may take back at any time. Until it has to, a
// node's accounting shows it as the plugin's: 40 MB resident instead of 23. The way the program is linked matters as much
// (Makefile).
//
// The package serves operators who judge a node's agents by their resident memory (ps, process_resident_memory_bytes), as
// docs/measurements.md compares them with the public plugins. For limits and evictions only the collector's pace matters: there,
// pages of a file count as page cache, and go when memory is short.
package footprint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// look is how often a process checks its resident memory, which is one read of /proc/self/statm. What an event touched is released
	// that long after. An event touches some 200 places of the program, and the kernel maps 64 KiB around each: 10 to 15 MB, which the
	// next event has to map again. That adds 1.4 ms to the preparation of a claim, of 4.8, and claims that are prepared for one job
	// should not each pay for it. The kubelet's readiness probe is such an event, every 5 s: rdma-plugin, which looked every 250 ms, spent
	// 25 s of processor time an hour on releasing and mapping again, of 41 in all (GB200, 8 ports, 2026-11-23).
	look = 30 * time.Second
	// settled is when a role has started: it has registered, listed and published what it has.
	settled = 10 * time.Second
	// Memory is released when it has grown by leastGrown bytes and by a quarter since the last release: a role at rest soon needs
	// smaller amounts again. A process that uses more than smallProcess is only trimmed every period: its heap normally doubles between
	// collections, and collecting it each time would cost more than it gains.
	leastGrown   = 3 << 20
	smallProcess = 64 << 20
	// period is when memory is released however little it has grown. Kernels 6.2 to 6.16 count a process's pages for each CPU and read
	// the sum without what the CPUs still hold, which on large machines is megabytes.
	period = 10 * time.Minute
	// A heap below smallHeap is collected when it has grown by smallGrowth percent instead of by its own size: collecting a few
	// megabytes more often had no measurable cost for a node's plugin. The environment's GOGC takes precedence.
	smallHeap   = 16 << 20
	smallGrowth = 20
	usualGrowth = 100
)

// Nobody asks this program for a profile of its allocations, and the samples would use memory.
func init() { runtime.MemProfileRate = 0 }

// growth sets the collector's pace from the size of the heap, from the program's first moment on. What a start leaves scattered
// over a heap that was allowed to double stays resident, since Go moves nothing.
type growth struct {
	// live is the heap after the last collection, percent the present pace.
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

// Keep trims the process once it has started, and at each check if its resident memory has grown since, until ctx ends. It is for a
// process with a single role, since it affects the whole process.
func Keep(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		(&growth{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}).adapt()
	}
	var last trim
	timer := time.NewTimer(settled)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := last.renew(); err != nil {
			klog.FromContext(ctx).V(2).Info("Memory of the program's file was not given back", "err", err)
			return
		}
		timer.Reset(look)
	}
}

// trim is when memory was last released.
type trim struct {
	at   time.Time // zero: never
	left int       // bytes resident right after
}

// due says whether to release memory now, with so many bytes resident.
func (t trim) due(now time.Time, resident int) bool {
	grown := t.left <= smallProcess && resident >= t.left+max(leastGrown, t.left/4)
	return grown || now.Sub(t.at) >= period
}

// renew releases memory if that is due.
func (t *trim) renew() error {
	size, err := resident()
	if err != nil {
		return err
	}
	if !t.due(time.Now(), size) {
		return nil
	}
	if err := Trim(); err != nil {
		return err
	}
	t.at = time.Now()
	t.left, err = resident()
	return err
}

// resident is how much memory of the process is mapped, in bytes.
func resident() (int, error) {
	const path = "/proc/self/statm" // in pages: size, resident, shared, ...
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the process's size: %w", err)
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the process's size: %s has %q, want at least two numbers", path, text)
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, fmt.Errorf("read the process's size: %s: %w", path, err)
	}
	return pages * os.Getpagesize(), nil
}

// Trim releases free heap, and the clean pages of the program's own file, to the kernel. What is still in use comes back by minor
// faults, from the page cache.
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
		// Without this the next touch may map two megabytes. A kernel without huge pages for files refuses it, and does not need it.
		_ = madvise(m, unix.MADV_NOHUGEPAGE)
		// Safe for what clean() accepts. Such a page is the file's own: whoever needs it gets it from the file again, and the kernel lets
		// nobody write to a running program (ETXTBSY). It would lose the change of a page that this process has changed.
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
