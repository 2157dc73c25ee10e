/* CUDA's functions that allocate and free memory. Each allocation reserves first, then allocates, and releases what it did not use. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "account.h"
#include "cores.h"
#include "devices.h"
#include "holdings.h"
#include "hooks.h"

/* The driver allocates in steps of so many bytes (CUDA's programming guide promises at least 256; allocations have been seen 512 apart). */
#define STEP 512

/* A device without a limit of its own is not limited. Where the limits could not be read, no device allocates anything. */
static bool refused(void)
{
	const struct limits *l = limits_get();
	return l && l->count == 0;
}

/* Rounds up to a step. An amount above 2^47 is cut to that: it fits no GPU either. */
static uint64_t rounded(uint64_t bytes)
{
	return bytes > (uint64_t)1 << 47 ? (uint64_t)1 << 47 : (bytes + STEP - 1) & ~(uint64_t)(STEP - 1);
}

/* The number of the limit by which a device's memory is counted, -1 where it is not. */
static int counted(int limit)
{
	return limit >= 0 && limits_get()->devices[limit].elsewhere ? -1 : limit;
}

struct grant {
	int limit;
	uint64_t bytes;
	CUcontext context;
};

/* Reserves for the current context's device. False: it does not fit. */
static bool reserve(struct grant *g, uint64_t bytes)
{
	g->limit = counted(limit_of_current(&g->context));
	g->bytes = rounded(bytes);
	if (g->limit < 0)
		return !refused();
	return account_reserve(g->limit, g->bytes);
}

static void give_back(const struct grant *g)
{
	if (g->limit >= 0)
		account_release(g->limit, g->bytes);
}

/* Records what was allocated, or releases the reservation. Where there is no memory for the record, the bytes stay reserved until the process ends. */
static CUresult settle(const struct grant *g, CUresult r, enum kind kind, uint64_t key)
{
	if (g->limit < 0)
		return r;
	if (r != CUDA_SUCCESS)
		give_back(g);
	else
		holdings_put(&(struct holding){.kind = kind, .key = key, .bytes = g->bytes, .device = g->limit, .context = g->context, .uses = 1});
	return r;
}

#define NEED(f)           \
	if (!(f))         \
		return NOT_THERE

/* Removes a record before the driver frees, since the driver may give the address to another thread at once. Restores it where the driver refused. */
#define FREE(kind, key, call)                           \
	do {                                            \
		struct holding h;                       \
		bool had = holdings_take(kind, key, &h); \
		CUresult r = call;                      \
		if (had && r == CUDA_SUCCESS)           \
			account_release(h.device, h.bytes); \
		else if (had)                           \
			holdings_put(&h);               \
		return r;                               \
	} while (0)

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	CUresult (*real)(CUdeviceptr *, size_t) = REAL(cuda, cuMemAlloc_v2);
	struct grant g;
	NEED(real);
	if (!reserve(&g, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, size);
	return settle(&g, r, MEMORY, r == CUDA_SUCCESS ? *out : 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	CUresult (*real)(CUdeviceptr *, size_t, unsigned int) = REAL(cuda, cuMemAllocManaged);
	struct grant g;
	NEED(real);
	if (!reserve(&g, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, size, flags);
	return settle(&g, r, MEMORY, r == CUDA_SUCCESS ? *out : 0);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int) = REAL(cuda, cuMemAllocPitch_v2);
	struct grant g;
	uint64_t row = rounded(width);
	NEED(real);
	if (height && row > UINT64_MAX / height)
		row = height = 1u << 24; /* more than any GPU has */
	if (!reserve(&g, row * height))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, pitch, width, height, element);
	if (r == CUDA_SUCCESS && g.limit >= 0 && rounded(*pitch * height) > g.bytes) {
		/* The driver's rows are longer. */
		uint64_t more = rounded(*pitch * height) - g.bytes;
		CUresult (*undo)(CUdeviceptr) = REAL(cuda, cuMemFree_v2);
		if (!account_reserve(g.limit, more)) {
			if (undo)
				undo(*out);
			give_back(&g);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		g.bytes += more;
	}
	return settle(&g, r, MEMORY, r == CUDA_SUCCESS ? *out : 0);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	CUresult (*real)(CUdeviceptr) = REAL(cuda, cuMemFree_v2);
	NEED(real);
	FREE(MEMORY, address, real(address));
}

#define ASYNC(suffix)                                                                                                          \
	EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *out, size_t size, CUstream stream)                                \
	{                                                                                                                      \
		CUresult (*real)(CUdeviceptr *, size_t, CUstream) = REAL(cuda, cuMemAllocAsync##suffix);                       \
		struct grant g;                                                                                                \
		NEED(real);                                                                                                    \
		if (!reserve(&g, size))                                                                                        \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                                       \
		CUresult r = real(out, size, stream);                                                                          \
		return settle(&g, r, MEMORY, r == CUDA_SUCCESS ? *out : 0);                                                    \
	}                                                                                                                      \
	EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)     \
	{                                                                                                                      \
		CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) = REAL(cuda, cuMemAllocFromPoolAsync##suffix); \
		struct grant g;                                                                                                \
		NEED(real);                                                                                                    \
		if (!reserve(&g, size))                                                                                        \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                                       \
		CUresult r = real(out, size, pool, stream);                                                                    \
		return settle(&g, r, MEMORY, r == CUDA_SUCCESS ? *out : 0);                                                    \
	}                                                                                                                      \
	EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr address, CUstream stream)                                           \
	{                                                                                                                      \
		CUresult (*real)(CUdeviceptr, CUstream) = REAL(cuda, cuMemFreeAsync##suffix);                                  \
		NEED(real);                                                                                                    \
		FREE(MEMORY, address, real(address, stream));                                                                  \
	}

ASYNC()
ASYNC(_ptsz)

/* Physical memory stays as long as a handle or a mapping of it does; programs often release the handle as soon as it is mapped. */

static void last_use(CUhandle handle)
{
	struct holding h;
	if (holdings_use(handle, -1, &h))
		account_release(h.device, h.bytes);
}

EXPORT CUresult cuMemCreate(CUhandle *out, size_t size, const CUallocation *what, unsigned long long flags)
{
	CUresult (*real)(CUhandle *, size_t, const CUallocation *, unsigned long long) = REAL(cuda, cuMemCreate);
	struct grant g = {.limit = -1, .bytes = rounded(size)};
	NEED(real);
	if (what && what->location.type == LOCATION_DEVICE)
		g.limit = counted(limit_of(what->location.id));
	if (g.limit >= 0 ? !account_reserve(g.limit, g.bytes) : refused())
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, size, what, flags);
	return settle(&g, r, PHYSICAL, r == CUDA_SUCCESS ? *out : 0);
}

EXPORT CUresult cuMemRelease(CUhandle handle)
{
	CUresult (*real)(CUhandle) = REAL(cuda, cuMemRelease);
	NEED(real);
	CUresult r = real(handle);
	if (r == CUDA_SUCCESS)
		last_use(handle);
	return r;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *out, void *address)
{
	CUresult (*real)(CUhandle *, void *) = REAL(cuda, cuMemRetainAllocationHandle);
	struct holding h;
	NEED(real);
	CUresult r = real(out, address);
	if (r == CUDA_SUCCESS)
		holdings_use(*out, 1, &h);
	return r;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
	CUresult (*real)(CUdeviceptr, size_t, size_t, CUhandle, unsigned long long) = REAL(cuda, cuMemMap);
	struct holding h;
	NEED(real);
	CUresult r = real(at, size, offset, handle, flags);
	if (r == CUDA_SUCCESS && limits_get() && holdings_put(&(struct holding){.kind = MAPPING, .key = at, .other = handle}))
		holdings_use(handle, 1, &h);
	return r;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	CUresult (*real)(CUdeviceptr, size_t) = REAL(cuda, cuMemUnmap);
	struct holding h;
	NEED(real);
	CUresult r = real(at, size);
	while (r == CUDA_SUCCESS && limits_get() && holdings_take_mapping(at, size, &h))
		last_use(h.other);
	return r;
}

/* Bytes of an element, by CUarray_format. An unknown format counts as the largest. */
static uint64_t element_bytes(int format)
{
	switch (format) {
	case 0x01:
	case 0x08:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2;
	default:
		return 4;
	}
}

static uint64_t array_bytes(const CUarray3d_descriptor *d)
{
	uint64_t bytes = element_bytes(d->format) * (d->channels ? d->channels : 1);
	const size_t sides[] = {d->width, d->height, d->depth};
	for (int i = 0; i < 3; i++)
		if (sides[i] && __builtin_mul_overflow(bytes, (uint64_t)sides[i], &bytes))
			return (uint64_t)1 << 47;
	return bytes;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUarray_descriptor *d)
{
	CUresult (*real)(CUarray *, const CUarray_descriptor *) = REAL(cuda, cuArrayCreate_v2);
	struct grant g;
	NEED(real);
	if (!d)
		return real(out, d);
	if (!reserve(&g, array_bytes(&(CUarray3d_descriptor){d->width, d->height, 0, d->format, d->channels, 0})))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, d);
	return settle(&g, r, ARRAY, r == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUarray3d_descriptor *d)
{
	CUresult (*real)(CUarray *, const CUarray3d_descriptor *) = REAL(cuda, cuArray3DCreate_v2);
	struct grant g;
	NEED(real);
	if (!d)
		return real(out, d);
	if (!reserve(&g, array_bytes(d)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, d);
	return settle(&g, r, ARRAY, r == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

EXPORT CUresult cuMipmappedArrayCreate(CUarray *out, const CUarray3d_descriptor *d, unsigned int levels)
{
	CUresult (*real)(CUarray *, const CUarray3d_descriptor *, unsigned int) = REAL(cuda, cuMipmappedArrayCreate);
	struct grant g;
	NEED(real);
	if (!d)
		return real(out, d, levels);
	/* Each level has half the sides of the one before. With one dimension, the worst case, all levels together have twice the first. */
	if (!reserve(&g, array_bytes(d) * (levels > 1 ? 2 : 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, d, levels);
	return settle(&g, r, ARRAY, r == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
	CUresult (*real)(CUarray) = REAL(cuda, cuArrayDestroy);
	NEED(real);
	FREE(ARRAY, (uintptr_t)array, real(array));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUarray array)
{
	CUresult (*real)(CUarray) = REAL(cuda, cuMipmappedArrayDestroy);
	NEED(real);
	FREE(ARRAY, (uintptr_t)array, real(array));
}

/* A context takes its memory with it. */
static void context_gone(CUcontext context)
{
	struct holding h;
	while (context && limits_get() && holdings_take_context(context, &h))
		account_release(h.device, h.bytes);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult (*real)(CUcontext) = REAL(cuda, cuCtxDestroy_v2);
	NEED(real);
	cores_forget_context(context);
	CUresult r = real(context);
	if (r == CUDA_SUCCESS)
		context_gone(context);
	return r;
}

static CUcontext primary(CUdevice device)
{
	CUcontext context = NULL;
	CUresult (*retain)(CUcontext *, CUdevice) = REAL(cuda, cuDevicePrimaryCtxRetain);
	CUresult (*release)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxRelease_v2);
	CUresult (*state)(CUdevice, unsigned int *, int *) = REAL(cuda, cuDevicePrimaryCtxGetState);
	unsigned int flags;
	int active = 0;
	/* Retaining a context that does not exist would create it. */
	if (!limits_get() || !retain || !release || !state || state(device, &flags, &active) != CUDA_SUCCESS || !active ||
	    retain(&context, device) != CUDA_SUCCESS)
		return NULL;
	release(device);
	return context;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUresult (*real)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxReset_v2);
	NEED(real);
	CUcontext context = primary(device);
	cores_forget_context(context);
	CUresult r = real(device);
	if (r == CUDA_SUCCESS)
		context_gone(context);
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult (*real)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxRelease_v2);
	CUresult (*state)(CUdevice, unsigned int *, int *) = REAL(cuda, cuDevicePrimaryCtxGetState);
	unsigned int flags;
	int active = 1;
	NEED(real);
	CUcontext context = primary(device);
	cores_forget_context(context);
	CUresult r = real(device);
	if (r == CUDA_SUCCESS && state && state(device, &flags, &active) == CUDA_SUCCESS && !active)
		context_gone(context);
	return r;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUresult (*real)(size_t *, size_t *) = REAL(cuda, cuMemGetInfo_v2);
	CUcontext context;
	NEED(real);
	CUresult r = real(available, total);
	int limit = r == CUDA_SUCCESS ? limit_of_current(&context) : -1;
	if (limit >= 0 && limits_get()->devices[limit].memory) {
		uint64_t most = limits_get()->devices[limit].memory, used = account_used(limit), left = used < most ? most - used : 0;
		*total = *total < most ? *total : most;
		*available = *available < left ? *available : left;
	}
	return r;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult (*real)(size_t *, CUdevice) = REAL(cuda, cuDeviceTotalMem_v2);
	NEED(real);
	CUresult r = real(bytes, device);
	int limit = r == CUDA_SUCCESS ? limit_of(device) : -1;
	if (limit >= 0 && limits_get()->devices[limit].memory && limits_get()->devices[limit].memory < *bytes)
		*bytes = limits_get()->devices[limit].memory;
	return r;
}

/* The child owns nothing that the parent has allocated. */
static void forked(void)
{
	holdings_forget();
	devices_forget();
}

__attribute__((constructor)) static void begin(void)
{
	pthread_atfork(NULL, NULL, forked);
}
