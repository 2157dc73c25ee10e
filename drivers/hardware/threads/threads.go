// Package threads reads the kernel's accounts of a process's threads, and reports whether the process could not continue because its
// node gave it no processor or no disk.
package threads

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"
)

// States of a thread, the third field of /proc/PID/task/TID/stat.
const (
	// runnable: it runs, or waits for a processor.
	runnable = "R"
	// uninterruptible: it waits for the kernel, mostly for a disk, and no signal wakes it.
	uninterruptible = "D"
)

// Thread is the kernel's account of one thread.
type Thread struct {
	// State is the letter of its state.
	State string
	// Ran is how long it has had a processor, and Waited how long it waited for one: the first two fields of schedstat, in nanoseconds
	// there. The kernel adds a wait when it ends (kernel/sched/stats.h, sched_info_arrive).
	Ran, Waited time.Duration
	// Turns is how often it was given a processor: the third field of schedstat.
	Turns uint64
}

// Sample is the state of a process's threads at a time, by their number.
type Sample struct {
	At      time.Time
	Threads map[int]Thread
}

// FS is a proc file system.
type FS struct {
	// Root is where it is mounted; empty: /proc.
	Root string
}

// Read reads a process's threads. It fails where the process is gone, and where the kernel accounts no waits (CONFIG_SCHED_INFO).
func (f FS) Read(pid int) (Sample, error) {
	if f.Root == "" {
		f.Root = procfs.DefaultMountPoint
	}
	proc, err := procfs.NewFS(f.Root)
	if err != nil {
		return Sample{}, fmt.Errorf("read the threads of process %d: %w", pid, err)
	}
	threads, err := proc.AllThreads(pid)
	if err != nil {
		return Sample{}, fmt.Errorf("read the threads of process %d: %w", pid, err)
	}
	sample := Sample{At: time.Now(), Threads: make(map[int]Thread, len(threads))}
	var failed error
	for _, thread := range threads {
		stat, err := thread.Stat()
		schedule, without := thread.Schedstat()
		if err := errors.Join(err, without); err != nil {
			failed = err
			continue // mostly it has ended since
		}
		sample.Threads[thread.PID] = Thread{
			State: stat.State, Turns: schedule.RunTimeslices,
			Ran:    time.Duration(schedule.RunningNanoseconds), //nolint:gosec // 292 years
			Waited: time.Duration(schedule.WaitingNanoseconds), //nolint:gosec // 292 years
		}
	}
	if len(sample.Threads) == 0 {
		if failed == nil {
			failed = fs.ErrNotExist
		}
		return Sample{}, fmt.Errorf("read the threads of process %d: %w", pid, failed)
	}
	return sample, nil
}

// Shortage is the missing resource of a process, in words.
type Shortage string

// Shortages.
const (
	Nothing   Shortage = ""
	Processor Shortage = "a processor"
	Disk      Shortage = "a disk"
)

// Lacked returns the missing resource of a process between two samples: for at least half of the time one of its threads was ready to run,
// and did not get it. A thread that sleeps, is stopped or runs lacks none, so neither does a process that hangs in a lock or a loop.
func Lacked(before, after Sample) Shortage {
	span := after.At.Sub(before.At)
	if span <= 0 {
		return Nothing
	}
	lacked := Nothing
	for number, now := range after.Threads {
		was, known := before.Threads[number]
		if !known {
			continue
		}
		ran := now.Ran - was.Ran
		still := was.State == now.State && 2*ran < span
		switch {
		// A wait that has not ended is not in Waited: the thread has been runnable, and was given no turn.
		case 2*(now.Waited-was.Waited) >= span, still && now.State == runnable && now.Turns == was.Turns:
			return Processor
		case still && now.State == uninterruptible:
			lacked = Disk
		}
	}
	return lacked
}

// LackedSince is Lacked from the start of a process to a sample, for one of which there is no earlier sample: a program that runs for a
// moment. A wait that continues counts by the thread's state alone.
func LackedSince(start time.Time, now Sample) Shortage {
	before := Sample{At: start, Threads: make(map[int]Thread, len(now.Threads))}
	for number, thread := range now.Threads {
		before.Threads[number] = Thread{State: thread.State, Turns: thread.Turns}
	}
	return Lacked(before, now)
}
