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

// figures are the measurements of one process.
type figures struct {
	// Total is cuMemGetInfo's total, and Had the bytes that could be allocated.
	Total, Had uint64
	// Pair, Launch, Graph and Refuse are the times of an allocation with its free, of a launch of a kernel and of a graph, and of a refused
	// allocation, in nanoseconds; 0: not measured.
	Pair, Launch, Graph, Refuse float64
}

// step is the size of the allocations that fill the limit, in bytes. graphKernels is the number of kernels in the measured graph.
const (
	step         = C.STEP
	graphKernels = C.GRAPH
)

// order is a worker's task, which it reads from its standard input when it may begin.
type order struct {
	// CUDA is the driver's libcuda.so.1.
	CUDA string
	// Most is the maximum number of bytes to allocate, besides one step.
	Most uint64
	// Repeats is the number of operations in a batch; the result is the median of 15 batches.
	Repeats uint
	// Limits is the content of the limiter's file of limits; empty: none is mounted.
	Limits string
	// Seats are the files of the limiter's seat on the GPU, by their paths in a container; empty: none.
	Seats map[string]string
	// Spin makes the worker keep the GPU busy instead of measuring.
	Spin *spin
}

// spin configures a worker that keeps the GPU busy.
type spin struct {
	// Rounds are the rounds of each kernel's work; 0: calibrate for a kernel of a millisecond.
	Rounds uint
	// Seconds is the measured time, Warm the time before it.
	Seconds, Warm float64
	// Graph launches the kernels in graphs.
	Graph bool
}

// report is a message of a busy worker: first that it is ready, with its kernels' rounds; then that the measurement began; then the work
// done. After the first message it waits for a true value, and it works until its standard input ends.
type report struct {
	Rounds      uint
	Kernels     uint64
	Nanoseconds float64
}

// work runs the worker: it reads an order, and writes its measurements.
func work(in io.Reader, out io.Writer) error {
	var o order
	orders := json.NewDecoder(in)
	if err := orders.Decode(&o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if o.Limits != "" {
		if err := stage(o.Limits, o.Seats); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // CUDA's current context belongs to a thread
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

// keepBusy keeps the GPU busy, and reports its part of the GPU.
func keepBusy(order spin, library *C.char, orders *json.Decoder, reports *json.Encoder) error {
	// C memory, because the driver may keep addresses in it.
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
	go func() { // until the other side closes its end, also when that process dies
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
		default: // keep working, so that the others keep their competitor
		}
		var kernels C.uint64_t
		var nanoseconds C.double
		if r := C.spinner_work(s, 1, &kernels, &nanoseconds); r != 0 {
			return failed(r)
		}
	}
}

// stage mounts the limiter's files in their places for containers. The process must have its own mount namespace.
func stage(limits string, seats map[string]string) error {
	for _, directory := range stages() {
		if err := empty(directory); err != nil {
			return fmt.Errorf("make %s for the limiter, as its containers have it: %w", directory, err)
		}
	}
	for inside, path := range seats {
		if err := errors.Join(os.MkdirAll(filepath.Dir(inside), 0o755), os.Symlink(path, inside)); err != nil {
			return fmt.Errorf("make the limiter's place in the order of the GPU: %w", err)
		}
	}
	return os.WriteFile(limiter.File, []byte(limits), 0o444) //nolint:gosec // as in a container
}

// empty makes an empty directory that only this process sees, by mounting a tmpfs over it, or over its parent if that is read-only.
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
