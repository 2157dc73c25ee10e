package bench

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "cuda.h"
#include "spinner.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/limiter"
)

// figures are what one process measured.
type figures struct {
	// Total is what cuMemGetInfo reports, and Had what could be allocated, in bytes.
	Total, Had uint64
	// Pair, Launch, Graph and Refuse are the times of an allocation with its free, of a launch of a kernel and of a graph, and of a
	// refused allocation, in nanoseconds; 0: there was none.
	Pair, Launch, Graph, Refuse float64
}

// step is the size of the allocations that fill the limit, in bytes. graphKernels is how many kernels the measured graph has.
const (
	step         = C.STEP
	graphKernels = C.GRAPH
)

// order is what a worker reads from its standard input when it may begin.
type order struct {
	// CUDA is the driver's libcuda.so.1.
	CUDA string
	// Most is how many bytes it may allocate, besides one step.
	Most uint64
	// Repeats is how often each operation runs in a batch; the median of 15 batches counts.
	Repeats uint
	// Limits is the content of the file with the limiter's limits; empty: there is none, and nothing is mounted.
	Limits string
	// Turns is the directory with the socket by which the limiter asks for turns on the GPU; empty: there is none.
	Turns string
	// Spin has the worker keep the GPU busy, instead of measuring.
	Spin *spin
}

// spin is how a worker keeps the GPU busy.
type spin struct {
	// Rounds are those of each kernel's work; 0: as many as make a kernel of a millisecond.
	Rounds uint
	// Seconds is how long the work is counted, Warm how long it goes on before that.
	Seconds, Warm float64
	// Graph has the kernels launched in graphs.
	Graph bool
}

// report is what a busy worker says: first that it can begin, with its kernels' rounds; then that its work counts from now on; then
// what was done. Before the first it waits for a true value, and it works until its standard input ends.
type report struct {
	Rounds      uint
	Kernels     uint64
	Nanoseconds float64
}

// work is the worker: it reads an order, and writes its measurements.
func work(in io.Reader, out io.Writer) error {
	var o order
	orders := json.NewDecoder(in)
	if err := orders.Decode(&o); err != nil {
		return fmt.Errorf("read what to measure: %w", err)
	}
	if o.Limits != "" {
		if err := stage(o.Limits, o.Turns); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // CUDA's current context is a thread's
	library := C.CString(o.CUDA)
	defer C.free(unsafe.Pointer(library))
	if o.Spin != nil {
		return keepBusy(*o.Spin, library, orders, json.NewEncoder(out))
	}
	var got C.struct_figures
	if r := C.measure(library, C.uint64_t(o.Most), C.uint(o.Repeats), &got); r != 0 {
		return fmt.Errorf("measure with %s: %s (CUDA's error %d)", o.CUDA, C.GoString(&got.failed[0]), int(r))
	}
	return json.NewEncoder(out).Encode(figures{Total: uint64(got.total), Had: uint64(got.had), Pair: float64(got.pair),
		Launch: float64(got.launch), Graph: float64(got.graph), Refuse: float64(got.refuse)})
}

// keepBusy keeps the GPU busy, and reports what it had of it.
func keepBusy(order spin, library *C.char, orders *json.Decoder, reports *json.Encoder) error {
	// C's memory, because the driver may keep the addresses of what is in it.
	s := (*C.struct_spinner)(C.calloc(1, C.sizeof_struct_spinner))
	if s == nil {
		return errors.New("keep the GPU busy: this process has no memory left")
	}
	defer C.free(unsafe.Pointer(s))
	failed := func(r C.int) error {
		return fmt.Errorf("keep the GPU busy with %s: %s (CUDA's error %d)", C.GoString(library), C.GoString(&s.failed[0]), int(r))
	}
	if r := C.spinner_open(s, library, C.uint(order.Rounds), C.bool(order.Graph)); r != 0 {
		return failed(r)
	}
	if err := reports.Encode(report{Rounds: uint(s.rounds)}); err != nil {
		return err
	}
	var begin bool
	if err := orders.Decode(&begin); err != nil || !begin {
		return fmt.Errorf("wait until the others can begin: %w", err)
	}
	ended := make(chan struct{})
	go func() { // until the other side closes its end, which it does when it ends too
		defer close(ended)
		_ = orders.Decode(&begin)
	}()
	for _, seconds := range []float64{order.Warm, order.Seconds} {
		var kernels C.uint64_t
		var nanoseconds C.double
		if r := C.spinner_work(s, C.double(seconds*1e9), &kernels, &nanoseconds); r != 0 {
			return failed(r)
		}
		if err := reports.Encode(report{Kernels: uint64(kernels), Nanoseconds: float64(nanoseconds)}); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ended:
			if r := C.spinner_end(s); r != 0 {
				return failed(r)
			}
			return nil
		default: // the work goes on, so that the others keep their competitor
		}
		var kernels C.uint64_t
		var nanoseconds C.double
		if r := C.spinner_work(s, 1, &kernels, &nanoseconds); r != 0 {
			return failed(r)
		}
	}
}

// stage puts the limiter's files in their places for containers. The process must have its own mount namespace.
func stage(limits, turns string) error {
	for _, directory := range stages() {
		if err := empty(directory); err != nil {
			return fmt.Errorf("make %s for the limiter, as its containers have it: %w", directory, err)
		}
	}
	if turns != "" {
		if err := os.Symlink(turns, limiter.Turns); err != nil {
			return fmt.Errorf("give the limiter its socket for turns: %w", err)
		}
	}
	return os.WriteFile(limiter.File, []byte(limits), 0o444) //nolint:gosec // as in a container
}

// empty makes an empty directory that only this process sees, by mounting a tmpfs over it, or over its parent where that cannot be
// written to.
func empty(directory string) error {
	if err := os.MkdirAll(directory, 0o755); errors.Is(err, unix.EROFS) {
		if err := unix.Mount("tmpfs", filepath.Dir(directory), "tmpfs", 0, ""); err != nil {
			return err
		}
		return os.Mkdir(directory, 0o755)
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return unix.Mount("tmpfs", directory, "tmpfs", 0, "")
}
