// Package nvfm calls a node's fabric manager (nv-fabricmanager) by libnvfm.so.1, the library of NVIDIA's Fabric Manager SDK. It has the
// functions that manage partitions in shared NVSwitch mode (FABRIC_MODE=1). Their source is the chapter "Fabric Manager SDK" of the
// Fabric Manager user guide (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide).
package nvfm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// The structures of the SDK. A version is the size of the structure with 1 in the highest byte.
typedef struct {
	unsigned version;
	char address[256];
	unsigned timeoutMs;
	unsigned isUnixSocket;
} connectParams;

typedef struct {
	unsigned physicalId;
	char uuid[80];
	char busId[32];
	unsigned links, maxLinks, lineRate;
} partitionGPU;

typedef struct {
	unsigned id, active, gpus;
	partitionGPU gpu[16];
} partitionInfo;

typedef struct {
	unsigned version, count, maxCount;
	partitionInfo partition[64];
} partitionList;

typedef struct {
	unsigned version, count;
	unsigned id[64];
} activatedList;

#define VERSION(type) (unsigned)(sizeof(type) | 1u << 24)

typedef struct {
	int (*init)(void);
	int (*connect)(connectParams *, void **);
	int (*disconnect)(void *);
	int (*list)(void *, partitionList *);
	int (*activate)(void *, unsigned);
	int (*deactivate)(void *, unsigned);
	int (*set)(void *, activatedList *);
} functions;

// openLibrary returns the first symbol that the library lacks, or dlopen's error; NULL: it has all.
static const char *openLibrary(const char *path, functions *f) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return dlerror();
	struct { const char *name; void **target; } all[] = {
		{"fmLibInit", (void **)&f->init}, {"fmConnect", (void **)&f->connect}, {"fmDisconnect", (void **)&f->disconnect},
		{"fmGetSupportedFabricPartitions", (void **)&f->list}, {"fmActivateFabricPartition", (void **)&f->activate},
		{"fmDeactivateFabricPartition", (void **)&f->deactivate}, {"fmSetActivatedFabricPartitions", (void **)&f->set},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!(*all[i].target = dlsym(library, all[i].name)))
			return all[i].name;
	return NULL;
}

static int callInit(functions *f) { return f->init(); }

static int callConnect(functions *f, const char *address, int isUnixSocket, unsigned timeoutMs, void **handle) {
	connectParams p;
	memset(&p, 0, sizeof p);
	p.version = VERSION(connectParams);
	strncpy(p.address, address, sizeof p.address - 1);
	p.timeoutMs = timeoutMs;
	p.isUnixSocket = (unsigned)isUnixSocket;
	return f->connect(&p, handle);
}

static int callDisconnect(functions *f, void *handle) { return f->disconnect(handle); }

static int callList(functions *f, void *handle, partitionList *list) {
	list->version = VERSION(partitionList);
	return f->list(handle, list);
}

static int callActivate(functions *f, void *handle, unsigned id) { return f->activate(handle, id); }
static int callDeactivate(functions *f, void *handle, unsigned id) { return f->deactivate(handle, id); }

static int callSet(functions *f, void *handle, activatedList *list) {
	list->version = VERSION(activatedList);
	return f->set(handle, list);
}
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"unsafe"
)

// Library is the file name of the SDK's library.
const Library = "libnvfm.so.1"

// Status is the answer of a function of the SDK, other than success.
type Status int

// The answers that callers distinguish.
const (
	NotSupported  Status = -3
	Uninitialized Status = -4
	InUse         Status = -7
	NotConfigured Status = -8
	NotConnected  Status = -9
)

// Error implements error: the SDK's name of the status, and its meaning.
func (s Status) Error() string {
	names := map[Status]string{
		-1:            "FM_ST_BADPARAM: an argument is invalid, or there is no such partition",
		-2:            "FM_ST_GENERIC_ERROR",
		NotSupported:  "FM_ST_NOT_SUPPORTED: the fabric manager does not run in shared NVSwitch mode (FABRIC_MODE=1 in fabricmanager.cfg)",
		Uninitialized: "FM_ST_UNINITIALIZED: the partition is not active",
		-5:            "FM_ST_TIMEOUT",
		-6:            "FM_ST_VERSION_MISMATCH: the library and the fabric manager are of different versions",
		InUse:         "FM_ST_IN_USE: the partition is active, or another active partition has one of its GPUs",
		NotConfigured: "FM_ST_NOT_CONFIGURED: the fabric manager is starting",
		NotConnected:  "FM_ST_CONNECTION_NOT_VALID: the fabric manager does not answer (systemctl status nvidia-fabricmanager)",
		-10:           "FM_ST_NVLINK_ERROR: NVLinks cannot be trained",
	}
	if text, known := names[s]; known {
		return text
	}
	return fmt.Sprintf("status %d of the fabric manager", int(s))
}

// GPU is a GPU of a partition.
type GPU struct {
	// Module is its physical ID. From H100 on that is the module ID which nvidia-smi -q shows.
	Module int
	// BusID is its PCI address as the SDK writes it, such as 00000000:1B:00.0. From H100 on it is empty or all zeros.
	BusID string
}

// Partition is a set of GPUs that the NVSwitches can connect.
type Partition struct {
	ID     int
	Active bool
	GPUs   []GPU
}

// Client calls a fabric manager. It connects for each call, so that a restart of the fabric manager does not matter. It is safe for
// concurrent use; calls are made one at a time, as the SDK does not document concurrent ones.
type Client struct {
	// Open returns the path of the library; it is called until it has found one.
	Open func() (string, error)
	// Address is the path of a Unix socket (FM_CMD_UNIX_SOCKET_PATH).
	Address string

	once      sync.Once
	turn      chan struct{} // holds a token while no call is made
	functions *C.functions  // nil until the library is open
}

// connectPatience bounds a connection attempt, in milliseconds.
const connectPatience = 5000

// Partitions returns the partitions that the fabric manager supports.
func (c *Client) Partitions(ctx context.Context) ([]Partition, error) {
	list := &C.partitionList{}
	err := c.call(ctx, "list the partitions", func(f *C.functions, handle unsafe.Pointer) C.int {
		return C.callList(f, handle, list)
	})
	if err != nil {
		return nil, err // list may still be written to
	}
	if int(list.count) > len(list.partition) {
		return nil, fmt.Errorf("list the partitions: %s returned %d of at most %d: it is of another version", Library, list.count,
			len(list.partition))
	}
	var out []Partition
	for _, p := range list.partition[:list.count] {
		if int(p.gpus) > len(p.gpu) {
			return nil, fmt.Errorf("list the partitions: %s returned %d GPUs of at most %d: it is of another version", Library, p.gpus,
				len(p.gpu))
		}
		partition := Partition{ID: int(p.id), Active: p.active != 0}
		for _, g := range p.gpu[:p.gpus] {
			g.busId[len(g.busId)-1] = 0
			partition.GPUs = append(partition.GPUs, GPU{Module: int(g.physicalId), BusID: C.GoString(&g.busId[0])})
		}
		out = append(out, partition)
	}
	return out, nil
}

// Activate connects the GPUs of a partition. InUse: one of them is in an active partition, which may be this one.
func (c *Client) Activate(ctx context.Context, id int) error {
	return c.call(ctx, fmt.Sprintf("activate partition %d", id), func(f *C.functions, handle unsafe.Pointer) C.int {
		return C.callActivate(f, handle, C.uint(id))
	})
}

// Deactivate disconnects the GPUs of a partition. Uninitialized: it is not active.
func (c *Client) Deactivate(ctx context.Context, id int) error {
	return c.call(ctx, fmt.Sprintf("deactivate partition %d", id), func(f *C.functions, handle unsafe.Pointer) C.int {
		return C.callDeactivate(f, handle, C.uint(id))
	})
}

// SetActivated gives a fabric manager that was restarted (FABRIC_MODE_RESTART=1) the partitions that are active, also where there are
// none. NotSupported: it does not run in that mode.
func (c *Client) SetActivated(ctx context.Context, ids []int) error {
	list := &C.activatedList{}
	if len(ids) > len(list.id) {
		return fmt.Errorf("set the active partitions: %d of at most %d", len(ids), len(list.id))
	}
	list.count = C.uint(len(ids))
	for i, id := range ids {
		list.id[i] = C.uint(id)
	}
	return c.call(ctx, fmt.Sprintf("set the active partitions to %v", ids), func(f *C.functions, handle unsafe.Pointer) C.int {
		return C.callSet(f, handle, list)
	})
}

// call makes one call on a connection of its own. A call cannot be interrupted: when ctx ends, call returns and it goes on; the next
// call waits for it.
func (c *Client) call(ctx context.Context, what string, do func(*C.functions, unsafe.Pointer) C.int) error {
	c.once.Do(func() {
		c.turn = make(chan struct{}, 1)
		c.turn <- struct{}{}
	})
	select {
	case <-c.turn:
	case <-ctx.Done():
		return fmt.Errorf("%s: the fabric manager has not finished an earlier call: %w", what, ctx.Err())
	}
	done := make(chan error, 1)
	go func() { // It ends with the call, and gives the turn back then.
		err := c.connected(do)
		c.turn <- struct{}{}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: the fabric manager has not finished: %w", what, ctx.Err())
	}
}

func (c *Client) connected(do func(*C.functions, unsafe.Pointer) C.int) error {
	if err := c.open(); err != nil {
		return err
	}
	address := C.CString(c.Address)
	defer C.free(unsafe.Pointer(address))
	handle := (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(unsafe.Pointer(nil)))))
	defer C.free(unsafe.Pointer(handle))
	if code := C.callConnect(c.functions, address, 1, connectPatience, handle); code != 0 {
		return fmt.Errorf("connect to %s: %w", c.Address, Status(code))
	}
	code := do(c.functions, *handle)
	closed := C.callDisconnect(c.functions, *handle)
	if code != 0 {
		return Status(code)
	}
	if closed != 0 {
		return fmt.Errorf("disconnect: %w", Status(closed))
	}
	return nil
}

// open opens the library once; it stays open. A library that is missing is looked for again by the next call.
func (c *Client) open() error {
	if c.functions != nil {
		return nil
	}
	if len(c.Address) > 255 || !path.IsAbs(c.Address) {
		return fmt.Errorf("address %q of the fabric manager: want the absolute path of a Unix socket of at most 255 bytes", c.Address)
	}
	file, err := c.Open()
	if err != nil {
		return err
	}
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	functions := (*C.functions)(C.calloc(1, C.sizeof_functions))
	if why := C.openLibrary(name, functions); why != nil {
		C.free(unsafe.Pointer(functions))
		return fmt.Errorf("open %s: %s", file, C.GoString(why))
	}
	// The process may have started the library before: then it answers that it is in use.
	if code := C.callInit(functions); code != 0 && Status(code) != InUse {
		C.free(unsafe.Pointer(functions))
		return errors.Join(fmt.Errorf("start %s", file), Status(code))
	}
	c.functions = functions
	return nil
}
