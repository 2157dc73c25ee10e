/*
 * A driver for the unit tests: it counts what is allocated and nothing else, so that a test can compare that with what the limiter counts.
 * It takes the place of the real driver by real_cuda, through which the limiter looks up the driver's functions.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

#include "driver.h"
#include "hooks.h"
#include "launches.h"
#include "warehouse.h"

_Atomic uint64_t driver_allocated[2];
_Atomic int driver_fails;
_Atomic uint64_t driver_overhead[2];
_Atomic unsigned int driver_pid;
_Atomic enum driver_nvml driver_nvml;
static _Atomic uint64_t next = 1 << 20;
static __thread int current;

/* Sizes by address or handle. These count up, and at most MOST_ITEMS exist at a time. */
#define MOST_ITEMS (1 << 20)
static struct {
	_Atomic uint64_t bytes;
	atomic_int device, uses;
} items[MOST_ITEMS];

static CUresult make(uint64_t *out, uint64_t bytes, int device)
{
	if (atomic_load(&driver_fails))
		return 999;
	uint64_t id = atomic_fetch_add(&next, 512);
	atomic_store(&items[id / 512 % MOST_ITEMS].bytes, bytes);
	atomic_store(&items[id / 512 % MOST_ITEMS].device, device);
	atomic_store(&items[id / 512 % MOST_ITEMS].uses, 1);
	atomic_fetch_add(&driver_allocated[device], bytes);
	*out = id;
	return CUDA_SUCCESS;
}

static CUresult use(uint64_t id, int by)
{
	int i = (int)(id / 512 % MOST_ITEMS);
	if (atomic_load(&items[i].uses) <= 0)
		return 1;
	if (atomic_fetch_add(&items[i].uses, by) + by == 0)
		atomic_fetch_sub(&driver_allocated[atomic_load(&items[i].device)], atomic_load(&items[i].bytes));
	return CUDA_SUCCESS;
}

void driver_use(int device)
{
	current = device;
}

int driver_current(void)
{
	return current;
}

static CUresult uuid(CUuuid *out, CUdevice d)
{
	memset(out->bytes, d + 1, sizeof out->bytes);
	return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *d)
{
	*d = current;
	return CUDA_SUCCESS;
}

static CUresult get_context(CUcontext *c)
{
	*c = (void *)(uintptr_t)(current + 1);
	return CUDA_SUCCESS;
}

static CUresult alloc(CUdeviceptr *out, size_t n)
{
	uint64_t id;
	CUresult r = make(&id, n, current);
	*out = id;
	return r;
}

static CUresult pitch(CUdeviceptr *out, size_t *p, size_t w, size_t h, unsigned int e)
{
	(void)e;
	*p = (w + 1023) & ~(size_t)1023; /* longer than the limiter guesses */
	return alloc(out, *p * h);
}

static CUresult managed(CUdeviceptr *out, size_t n, unsigned int f)
{
	(void)f;
	return alloc(out, n);
}

static CUresult release(CUdeviceptr at)
{
	return warehouse_frees(at) ? CUDA_SUCCESS : use(at, -1);
}

static CUresult create(CUhandle *out, size_t n, const CUallocation *what, unsigned long long f)
{
	uint64_t id;
	(void)f;
	CUresult r = make(&id, n, what->location.id);
	*out = id;
	return r;
}

static CUdeviceptr mapped_at;
static CUhandle mapped;

static CUresult map(CUdeviceptr at, size_t n, size_t offset, CUhandle h, unsigned long long f)
{
	(void)n, (void)offset, (void)f;
	mapped_at = at;
	mapped = h;
	return use(h, 1);
}

static CUresult unmap(CUdeviceptr at, size_t n)
{
	(void)n;
	return at == mapped_at ? use(mapped, -1) : 1;
}

/* The descriptor is of a file in place of the memory; the import's handle is not counted here. */
static CUresult export_memory(void *out, CUhandle h, int type, unsigned long long f)
{
	(void)h, (void)f;
	*(int *)out = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	return type == HANDLE_DESCRIPTOR && *(int *)out >= 0 ? CUDA_SUCCESS : 1;
}

static CUresult import_memory(CUhandle *out, void *handle, int type)
{
	(void)handle, (void)type;
	uint64_t id;
	CUresult r = make(&id, 0, 0);
	*out = id;
	return r;
}

static CUresult properties(CUallocation *out, CUhandle h)
{
	*out = (CUallocation){.type = 1, .location = {LOCATION_DEVICE, atomic_load(&items[h / 512 % MOST_ITEMS].device)}};
	return CUDA_SUCCESS;
}

static CUresult multicast(CUhandle *out, const void *what)
{
	return import_memory(out, (void *)(uintptr_t)what, 0);
}

static CUresult bind_memory(CUhandle m, size_t offset, CUhandle h, size_t from, size_t n, unsigned long long f)
{
	(void)m, (void)offset, (void)h, (void)from, (void)n, (void)f;
	return CUDA_SUCCESS;
}

static CUresult bind_memory_v2(CUhandle m, CUdevice d, size_t offset, CUhandle h, size_t from, size_t n, unsigned long long f)
{
	(void)d;
	return bind_memory(m, offset, h, from, n, f);
}

static CUresult bind_address(CUhandle m, size_t offset, CUdeviceptr at, size_t n, unsigned long long f)
{
	return bind_memory(m, offset, at, 0, n, f);
}

static CUresult bind_address_v2(CUhandle m, CUdevice d, size_t offset, CUdeviceptr at, size_t n, unsigned long long f)
{
	(void)d;
	return bind_address(m, offset, at, n, f);
}

static CUresult unbind_memory(CUhandle m, CUdevice d, size_t offset, size_t n)
{
	(void)m, (void)d, (void)offset, (void)n;
	return CUDA_SUCCESS;
}

static CUresult array(CUarray *out, const CUarray_descriptor *d)
{
	uint64_t id;
	CUresult r = make(&id, d->width * (d->height ? d->height : 1) * d->channels, current);
	*out = (void *)(uintptr_t)id;
	return r;
}

/* A sparse array, or one with deferred mapping, has addresses alone. */
static CUresult array3d(CUarray *out, const CUarray3d_descriptor *d)
{
	uint64_t id;
	CUresult r = make(&id, d->flags & 0xc0 ? 0 : d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1) * d->channels, current);
	*out = (void *)(uintptr_t)id;
	return r;
}

static CUresult mipmapped(CUarray *out, const CUarray3d_descriptor *d, unsigned int levels)
{
	(void)levels;
	return array3d(out, d);
}

static CUresult destroy_array(CUarray a)
{
	return use((uintptr_t)a, -1);
}

static CUresult destroy_context(CUcontext c)
{
	int device = (int)(uintptr_t)c - 1;
	for (int i = 0; i < MOST_ITEMS; i++)
		if (atomic_load(&items[i].uses) > 0 && atomic_load(&items[i].device) == device) {
			atomic_store(&items[i].uses, 0);
			atomic_fetch_sub(&driver_allocated[device], atomic_load(&items[i].bytes));
		}
	atomic_store(&driver_overhead[device], 0);
	return CUDA_SUCCESS;
}

static CUresult create_context(CUcontext *c, unsigned int flags, CUdevice d)
{
	(void)flags;
	*c = (void *)(uintptr_t)(d + 1);
	atomic_store(&driver_overhead[d], (uint64_t)300 << 20);
	return CUDA_SUCCESS;
}

/* A driver that does not say how much (NVML_VALUE_NOT_AVAILABLE) does not say it then either. */
static void more_overhead(int64_t bytes)
{
	if (atomic_load(&driver_overhead[current]) != ~0ull)
		atomic_fetch_add(&driver_overhead[current], (uint64_t)bytes);
}

static CUresult load(CUmodule *m, const void *image)
{
	(void)image;
	*m = (void *)1;
	more_overhead(10 << 20);
	return CUDA_SUCCESS;
}

static CUresult unload(CUmodule m)
{
	(void)m;
	more_overhead(-(10 << 20));
	return CUDA_SUCCESS;
}

static CUresult info(size_t *available, size_t *total)
{
	*total = DRIVER_TOTAL;
	*available = *total - atomic_load(&driver_allocated[current]);
	return CUDA_SUCCESS;
}

static CUresult total(size_t *bytes, CUdevice d)
{
	(void)d;
	*bytes = DRIVER_TOTAL;
	return CUDA_SUCCESS;
}

void *real_cuda(const char *exported)
{
	static const struct {
		const char *name;
		void *function;
	} table[] = {
		{"cuDeviceGetUuid_v2", uuid},
		{"cuCtxGetDevice", get_device},
		{"cuCtxGetCurrent", get_context},
		{"cuMemAlloc_v2", alloc},
		{"cuMemAllocPitch_v2", pitch},
		{"cuMemAllocManaged", managed},
		{"cuMemFree_v2", release},
		{"cuMemCreate", create},
		{"cuMemRelease", release},
		{"cuMemMap", map},
		{"cuMemUnmap", unmap},
		{"cuMemExportToShareableHandle", export_memory},
		{"cuMemImportFromShareableHandle", import_memory},
		{"cuMemGetAllocationPropertiesFromHandle", properties},
		{"cuMulticastCreate", multicast},
		{"cuMulticastBindMem", bind_memory},
		{"cuMulticastBindMem_v2", bind_memory_v2},
		{"cuMulticastBindAddr", bind_address},
		{"cuMulticastBindAddr_v2", bind_address_v2},
		{"cuMulticastUnbind", unbind_memory},
		{"cuArrayCreate_v2", array},
		{"cuArray3DCreate_v2", array3d},
		{"cuMipmappedArrayCreate", mipmapped},
		{"cuMipmappedArrayDestroy", destroy_array},
		{"cuArrayDestroy", destroy_array},
		{"cuCtxDestroy_v2", destroy_context},
		{"cuMemGetInfo_v2", info},
		{"cuDeviceTotalMem_v2", total},
		{"cuCtxCreate_v2", create_context},
		{"cuModuleLoadData", load},
		{"cuModuleUnload", unload},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (strcmp(table[i].name, exported) == 0)
			return table[i].function;
	void *found = warehouse_function(exported);
	return found ? found : launches_function(exported);
}

static int nvml_good(void)
{
	return 0;
}

static int nvml_handle(const char *name, void **out)
{
	*out = (void *)(uintptr_t)(strncmp(name, "GPU-01", 6) == 0 ? 1 : 2);
	return 0;
}

/* This process, as soon as it has something on the GPU, and another one. */
static int nvml_processes(void *device, unsigned int *count, void *out)
{
	struct {
		unsigned int pid;
		unsigned long long bytes;
		unsigned int instances[2];
	} *list = out;
	int d = (int)(uintptr_t)device - 1, n = 1;
	enum driver_nvml does = atomic_load(&driver_nvml);
	if (does == NVML_FAILS)
		return 999; /* NVML_ERROR_UNKNOWN */
	list[0].pid = 1;
	list[0].bytes = 77;
	if (atomic_load(&driver_overhead[d]) && does == NVML_LISTS_TWO) {
		for (; n < 3; n++) {
			list[n].pid = 7000u + (unsigned int)n;
			list[n].bytes = atomic_load(&driver_overhead[d]);
		}
	} else if (atomic_load(&driver_overhead[d]) && does != NVML_LISTS_OTHERS) {
		list[1].pid = atomic_load(&driver_pid);
		list[1].bytes = atomic_load(&driver_overhead[d]) == ~0ull ? ~0ull : atomic_load(&driver_overhead[d]) + atomic_load(&driver_allocated[d]);
		n = 2;
	}
	*count = (unsigned int)n;
	return 0;
}

void *real_nvml(const char *exported)
{
	if (atomic_load(&driver_nvml) == NVML_MISSING)
		return NULL;
	if (strcmp(exported, "nvmlInit_v2") == 0)
		return nvml_good;
	if (strcmp(exported, "nvmlDeviceGetHandleByUUID") == 0)
		return nvml_handle;
	return strcmp(exported, "nvmlDeviceGetComputeRunningProcesses_v3") == 0 ? nvml_processes : NULL;
}
