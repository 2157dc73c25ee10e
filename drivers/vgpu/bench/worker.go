package bench

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "cuda.h"
*/
import "C"

import (
	"bufio"
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
	// Pair, Launch and Refuse are the times of an allocation with its free, of a launch and of a refused allocation, in nanoseconds;
	// 0: there was none.
	Pair, Launch, Refuse float64
}

// step is the size of the allocations that fill the limit, in bytes.
const step = C.STEP

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
}

// work is the worker: it reads an order, and writes its measurements.
func work(in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(bufio.NewReader(in)).Decode(&o); err != nil {
		return fmt.Errorf("read what to measure: %w", err)
	}
	if o.Limits != "" {
		if err := stage(o.Limits); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // CUDA's current context is a thread's
	library := C.CString(o.CUDA)
	defer C.free(unsafe.Pointer(library))
	var got C.struct_figures
	if r := C.measure(library, C.uint64_t(o.Most), C.uint(o.Repeats), &got); r != 0 {
		return fmt.Errorf("measure with %s: %s (CUDA's error %d)", o.CUDA, C.GoString(&got.failed[0]), int(r))
	}
	return json.NewEncoder(out).Encode(figures{Total: uint64(got.total), Had: uint64(got.had), Pair: float64(got.pair),
		Launch: float64(got.launch), Refuse: float64(got.refuse)})
}

// stage puts the limiter's files in their places for containers. The process must have its own mount namespace.
func stage(limits string) error {
	for _, directory := range stages() {
		if err := empty(directory); err != nil {
			return fmt.Errorf("make %s for the limiter, as its containers have it: %w", directory, err)
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
