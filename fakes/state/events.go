package state

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Post appends an event and wakes every waiter on the node.
func (f *File) Post(e Event) error {
	return f.locked(func(h *Header) error {
		head := atomic.LoadUint64(&h.EventHead)
		slot := &h.Events[head%EventRing]
		atomic.StoreUint64(&slot.Number, 0)
		e.Number = 0
		*slot = e
		atomic.StoreUint64(&slot.Number, head+1)
		atomic.StoreUint64(&h.EventHead, head+1)
		atomic.AddUint32(&h.Wake, 1)
		wake(&h.Wake)
		return nil
	})
}

// EventHead is the number of events so far; Next continues from such a number.
func (f *File) EventHead() (uint64, error) {
	if err := f.alive(); err != nil {
		return 0, err
	}
	return atomic.LoadUint64(&header(f.data).EventHead), nil
}

// ErrReplaced is returned by Next when the node was rendered again; open the file again.
var ErrReplaced = errors.New("the node's state file was replaced")

// Next waits for the event after the given number and returns it. If the ring has wrapped since, it returns the oldest event still
// there, whose Number shows how many were missed.
func (f *File) Next(ctx context.Context, after uint64) (Event, error) {
	defer runtime.KeepAlive(f)
	for {
		if err := f.alive(); err != nil {
			return Event{}, err
		}
		h := header(f.data)
		word := atomic.LoadUint32(&h.Wake)
		if atomic.LoadUint32(&h.Replaced) != 0 {
			return Event{}, ErrReplaced
		}
		if e, ok := f.event(h, after); ok {
			return e, nil
		}
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		// Cancellation cannot wake a futex, so a waiter checks its context now and then. Events wake it at once.
		wait(&h.Wake, word, patience(ctx))
	}
}

// look is how long a waiter may sleep without checking its context. Each of a thousand simulated nodes has two roles that wait for half a
// second again and again: with ten looks in that time they took a fifth of what the nodes need at rest.
const look = 500 * time.Millisecond

// patience is how long to wait for an event: until the context's deadline, or until its cancellation is to be looked for.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return look
	}
	return min(look, max(time.Until(deadline), time.Millisecond))
}

func (f *File) event(h *Header, after uint64) (Event, bool) {
	head := atomic.LoadUint64(&h.EventHead)
	if head > after+EventRing {
		after = head - EventRing
	}
	for ; after < head; after++ {
		slot := &h.Events[after%EventRing]
		e := *slot
		if e.Number == after+1 && atomic.LoadUint64(&slot.Number) == after+1 {
			return e, true
		}
	}
	return Event{}, false
}

const (
	futexWait = 0
	futexWake = 1
)

func wake(word *uint32) {
	// An error means that no waiter could be woken; waiters look again by themselves.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

func wait(word *uint32, value uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
}
