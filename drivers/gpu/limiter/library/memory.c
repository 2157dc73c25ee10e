/* CUDA's functions that allocate and free memory. Each allocation first reserves, then allocates, then releases the unused part. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "devices.h"
#include "graphs.h"
#include "memory.h"
#include "overhead.h"

struct grant {
	int limit;
	uint64_t bytes;
	CUcontext context;
};

/* Reserves for the current context's device. Returns false when it does not fit. */
static bool reserve(struct grant *g, uint64_t bytes)
{
	g->limit = memory_limit(limit_of_current(&g->context));
	g->bytes = memory_rounded(bytes);
	if (g->limit < 0)
		return !memory_refused();
	return stocks_reserve(g->limit, g->bytes);
}

static void give_back(const struct grant *g)
{
	if (g->limit >= 0)
		account_release(g->limit, g->bytes);
}

/* Records an allocation, or releases the reservation. On lack of memory for the record, the bytes stay reserved until the process ends. */
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
	uint64_t row = memory_rounded(width);
	NEED(real);
	if (height && row > UINT64_MAX / height)
		row = height = 1u << 24; /* more than any GPU has */
	if (!reserve(&g, row * height))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, pitch, width, height, element);
	if (r == CUDA_SUCCESS && g.limit >= 0 && memory_rounded(*pitch * height) > g.bytes) {
		/* The driver's rows are longer. */
		uint64_t more = memory_rounded(*pitch * height) - g.bytes;
		CUresult (*undo)(CUdeviceptr) = REAL(cuda, cuMemFree_v2);
		if (!stocks_reserve(g.limit, more)) {
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
	MEMORY_FREE(MEMORY, address, real(address));
}

/* Memory of another process counts there. */
#define IMPORT(name, parameters, arguments)                         \
	EXPORT CUresult name parameters                             \
	{                                                           \
		CUresult(*real) parameters = REAL(cuda, name);      \
		NEED(real);                                         \
		CUresult r = real arguments;                        \
		if (r == CUDA_SUCCESS)                              \
			overhead_imported();                        \
		return r;                                           \
	}

IMPORT(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipc_handle handle, unsigned int flags), (out, handle, flags))
IMPORT(cuMemPoolImportPointer, (CUdeviceptr * out, CUmemoryPool pool, void *data), (out, pool, data))
IMPORT(cuImportExternalMemory, (void **out, const void *what), (out, what))

/*
 * Bytes of a channel of an element, by CUarray_format. An unknown format counts as the largest. Normalized formats (from 0xc0) have 1 or 2;
 * block-compressed ones (from 0x91) and NV12 have 1 or less.
 */
static uint64_t element_bytes(int format)
{
	switch (format) {
	case 0x01:
	case 0x08:
	case 0x91 ... 0x9e:
	case 0xb0:
	case 0xc0 ... 0xc2:
	case 0xc6 ... 0xc8:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
	case 0xc3 ... 0xc5:
	case 0xc9 ... 0xcb:
		return 2;
	default:
		return 4;
	}
}

/* Arrays that have no memory until memory of cuMemCreate is mapped into them (cuMemMapArrayAsync), which is counted. */
static bool without_memory(const CUarray3d_descriptor *d)
{
	return d->flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING);
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
	if (!d || without_memory(d))
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
	if (!d || without_memory(d))
		return real(out, d, levels);
	/*
	 * Each level has half the sides of the previous one. With one dimension, the worst case, all levels together need twice the first.
	 */
	if (!reserve(&g, array_bytes(d) * (levels > 1 ? 2 : 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, d, levels);
	return settle(&g, r, ARRAY, r == CUDA_SUCCESS ? (uintptr_t)*out : 0);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
	CUresult (*real)(CUarray) = REAL(cuda, cuArrayDestroy);
	NEED(real);
	MEMORY_FREE(ARRAY, (uintptr_t)array, real(array));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUarray array)
{
	CUresult (*real)(CUarray) = REAL(cuda, cuMipmappedArrayDestroy);
	NEED(real);
	MEMORY_FREE(ARRAY, (uintptr_t)array, real(array));
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

/* The child does not own allocations of the parent. */
static void forget_memory(void)
{
	holdings_forget();
	devices_forget();
	stocks_forget();
	graphs_forget();
	overhead_forget();
}

FORGET_IN_CHILD(forget_memory);
