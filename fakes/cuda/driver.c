/* CUDA's driver interface, as far as the stand-in has it: memory is counted and never touched, and a kernel only takes time (launch.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "context.h"
#include "stock.h"

/* One allocation; its address is made up, in a range that no host pointer is in. */
struct allocation {
	CUdeviceptr address;
	size_t size;
	struct context *context;
	struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised, used;
static struct allocation *allocations;
static _Atomic CUdeviceptr next_address = 0x7f0000000000ull;
static struct context primary[FF_MAX_GPUS * FF_MAX_GPU_INSTANCES];

/* The thread's stack of contexts; the one on top is current. */
static __thread struct context *stack[64];
static __thread size_t depth;
#define TOP (depth ? stack[depth - 1] : NULL)

struct context *context_current(void)
{
	return TOP;
}

bool context_any(void)
{
	return initialised;
}

EXPORT CUresult cuInit(unsigned int flags)
{
	NEED(flags == 0, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	CUresult r = initialised ? CUDA_SUCCESS : devices_find();
	initialised |= r == CUDA_SUCCESS;
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	uint32_t v;
	NEED(version, CUDA_ERROR_INVALID_VALUE);
	NEED(ff_state_copy(offsetof(struct ff_node, cuda_version), &v, sizeof v), CUDA_ERROR_UNKNOWN);
	*version = (int)v;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	NEED_INIT();
	NEED(count, CUDA_ERROR_INVALID_VALUE);
	*count = devices_count();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	NEED_DEVICE(ordinal);
	(void)device;
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice number)
{
	char text[sizeof ((struct ff_model *)0)->name];
	NEED_DEVICE(number);
	(void)device;
	NEED(name && length > 0, CUDA_ERROR_INVALID_VALUE);
	NEED(ff_state_copy(offsetof(struct ff_node, model.name), text, sizeof text), CUDA_ERROR_UNKNOWN);
	snprintf(name, (size_t)length, "%.*s", (int)sizeof text - 1, text);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice number)
{
	NEED_DEVICE(number);
	NEED(uuid, CUDA_ERROR_INVALID_VALUE);
	memcpy(uuid->bytes, device->uuid, 16);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice number)
{
	return cuDeviceGetUuid_v2(uuid, number);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice number)
{
	NEED_DEVICE(number);
	NEED(bytes, CUDA_ERROR_INVALID_VALUE);
	*bytes = device->memory;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice number)
{
	NEED_DEVICE(number);
	NEED(text && length > 0, CUDA_ERROR_INVALID_VALUE);
	snprintf(text, (size_t)length, "%04x:%02x:%02x.%x", device->core.domain, device->core.bus, device->core.device, device->core.function);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text)
{
	unsigned int a[4];
	NEED_INIT();
	NEED(out && text && sscanf(text, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) == 4, CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < devices_count(); i++) {
		const struct ff_core *c = &device_at(i)->core;
		if (c->domain == a[0] && c->bus == a[1] && c->device == a[2] && c->function == a[3]) {
			*out = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice number)
{
	static struct ff_model m;
	NEED_DEVICE(number);
	NEED(value, CUDA_ERROR_INVALID_VALUE);
	NEED(ff_state_copy(offsetof(struct ff_node, model), &m, sizeof m), CUDA_ERROR_UNKNOWN);
	switch (attribute) {
	case ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		return CUDA_SUCCESS;
	case ATTRIBUTE_WARP_SIZE:
		*value = 32;
		return CUDA_SUCCESS;
	case ATTRIBUTE_CLOCK_RATE:
		*value = (int)m.clock_sm * 1000;
		return CUDA_SUCCESS;
	case ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = (int)device->multiprocessors;
		return CUDA_SUCCESS;
	case ATTRIBUTE_INTEGRATED:
		*value = 0;
		return CUDA_SUCCESS;
	case ATTRIBUTE_COMPUTE_MODE:
		*value = (int)device->core.compute_mode;
		return CUDA_SUCCESS;
	case ATTRIBUTE_ECC_ENABLED:
		*value = (int)m.ecc;
		return CUDA_SUCCESS;
	case ATTRIBUTE_PCI_BUS_ID:
		*value = (int)device->core.bus;
		return CUDA_SUCCESS;
	case ATTRIBUTE_PCI_DEVICE_ID:
		*value = (int)device->core.device;
		return CUDA_SUCCESS;
	case ATTRIBUTE_PCI_DOMAIN_ID:
		*value = (int)device->core.domain;
		return CUDA_SUCCESS;
	case ATTRIBUTE_MEMORY_CLOCK_RATE:
		*value = (int)m.clock_memory * 1000;
		return CUDA_SUCCESS;
	case ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		*value = (int)m.memory_bus_bits;
		return CUDA_SUCCESS;
	case ATTRIBUTE_UNIFIED_ADDRESSING:
		*value = 1;
		return CUDA_SUCCESS;
	case ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)m.compute_major;
		return CUDA_SUCCESS;
	case ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)m.compute_minor;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

size_t context_overhead(const char *variable)
{
	const char *mib = getenv(variable);
	unsigned long v;
	return mib && sscanf(mib, "%lu", &v) == 1 && v < 1 << 20 ? (size_t)v << 20 : 0;
}

/* A primary context is entered again and again, and takes memory once. */
static CUresult enter(struct context *c, const struct device *device)
{
	pthread_mutex_lock(&lock);
	CUresult r = device_use(device, c->device ? 0 : (long long)context_overhead("FAKEFABRIC_CONTEXT_MIB"));
	if (r == CUDA_SUCCESS) {
		c->device = device;
		used = true;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice number)
{
	(void)flags;
	NEED_DEVICE(number);
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	NEED(depth < sizeof stack / sizeof stack[0], CUDA_ERROR_OUT_OF_MEMORY);
	struct context *c = calloc(1, sizeof *c);
	NEED(c, CUDA_ERROR_OUT_OF_MEMORY);
	CUresult r = enter(c, device);
	if (r != CUDA_SUCCESS) {
		free(c);
		return r;
	}
	*out = stack[depth++] = c;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice number)
{
	NEED_DEVICE(number);
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	CUresult r = enter(&primary[number], device);
	if (r == CUDA_SUCCESS)
		*out = &primary[number];
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number)
{
	NEED_DEVICE(number);
	(void)device;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned int *flags, int *active)
{
	NEED_DEVICE(number);
	(void)device;
	NEED(flags && active, CUDA_ERROR_INVALID_VALUE);
	*flags = 0;
	*active = primary[number].device != NULL;
	return CUDA_SUCCESS;
}

/* Gives the memory of a context back. What is in pools, and in graphs, is the device's. */
static void release(struct context *c)
{
	pthread_mutex_lock(&lock);
	for (struct allocation **a = &allocations; *a;) {
		struct allocation *gone = *a;
		if (gone->context != c) {
			a = &gone->next;
			continue;
		}
		device_use(c->device, -(long long)gone->size);
		*a = gone->next;
		free(gone);
	}
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext c)
{
	NEED_INIT();
	NEED(c, CUDA_ERROR_INVALID_CONTEXT);
	/* A primary context is the device's, and no memory of its own. */
	NEED((uintptr_t)c < (uintptr_t)primary || (uintptr_t)c >= (uintptr_t)primary + sizeof primary, CUDA_ERROR_INVALID_CONTEXT);
	NEED(!atomic_exchange(&c->destroyed, true), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	release(c);
	device_use(c->device, -(long long)(context_overhead("FAKEFABRIC_CONTEXT_MIB") + c->modules));
	if (TOP == c)
		depth--;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext c)
{
	NEED_INIT();
	NEED(c, CUDA_ERROR_INVALID_CONTEXT);
	NEED(!c->destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	NEED(depth < sizeof stack / sizeof stack[0], CUDA_ERROR_OUT_OF_MEMORY);
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	NEED_INIT();
	NEED(depth, CUDA_ERROR_INVALID_CONTEXT);
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

/* Replaces the context on top of the stack. Without a context it is removed, as by a pop. */
EXPORT CUresult cuCtxSetCurrent(CUcontext c)
{
	NEED_INIT();
	NEED(!c || !c->destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	if (depth)
		depth--;
	return c ? cuCtxPushCurrent_v2(c) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	NEED_INIT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = TOP;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
	NEED_CONTEXT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < devices_count(); i++)
		if (device_at(i) == current->device)
			*out = i;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	NEED_CONTEXT();
	NEED(available && total, CUDA_ERROR_INVALID_VALUE);
	return device_memory(current->device, available, total);
}

CUdeviceptr context_address(size_t size)
{
	return atomic_fetch_add(&next_address, (size + 0x1fffff) & ~(CUdeviceptr)0x1fffff);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	NEED_CONTEXT();
	NEED_SAFE();
	NEED(out && size, CUDA_ERROR_INVALID_VALUE);
	NEED(size <= current->device->memory, CUDA_ERROR_OUT_OF_MEMORY); /* so that it is a positive number of bytes with a sign, too */
	struct allocation *a = calloc(1, sizeof *a);
	NEED(a, CUDA_ERROR_OUT_OF_MEMORY);
	CUresult r = device_use(current->device, (long long)size);
	if (r != CUDA_SUCCESS) {
		free(a);
		return r;
	}
	pthread_mutex_lock(&lock);
	*a = (struct allocation){context_address(size), size, current, allocations};
	allocations = a;
	pthread_mutex_unlock(&lock);
	*out = a->address;
	return CUDA_SUCCESS;
}

CUresult driver_free(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	struct allocation **a = &allocations, *found;
	while (*a && (*a)->address != address)
		a = &(*a)->next;
	found = *a;
	if (found)
		*a = found->next;
	pthread_mutex_unlock(&lock);
	if (!found) /* it frees what a pool or a graph has allocated, too (cuMemFreeAsync, cuGraphAddMemAllocNode) */
		return pools_free(address) || graphs_free(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	CUresult r = device_use(found->context->device, -(long long)found->size);
	free(found);
	return r;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	NEED_INIT();
	NEED_SAFE();
	return driver_free(address);
}

__attribute__((destructor)) static void leave(void)
{
	if (used)
		devices_leave();
}
