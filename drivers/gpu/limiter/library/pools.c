/* CUDA's functions that allocate from memory pools, and those after which a pool may have returned memory. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>

#include "devices.h"
#include "memory.h"
#include "overhead.h"

/* An allocation: from the current pool of the stream's device, or from one that the caller names. */
struct request {
	CUresult (*from_current)(CUdeviceptr *, size_t, CUstream);
	CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*undo)(CUdeviceptr, CUstream);
	CUdeviceptr *out;
	size_t size;
	CUmemoryPool pool;
	CUstream stream;
	bool per_thread; /* stream 0 is the thread's own */
};

static CUresult call(const struct request *q)
{
	return q->from_pool ? q->from_pool(q->out, q->size, q->pool, q->stream) : q->from_current(q->out, q->size, q->stream);
}

/*
 * Reports whether the stream is captured: the allocation is then a node of a graph (graphs.c), and takes nothing yet. For the legacy stream
 * the driver returns an error while another stream is captured; it refuses the allocation then, too.
 */
static bool captured(const struct request *q)
{
	CUresult (*ask)(CUstream, int *) = REAL(cuda, cuStreamIsCapturing);
	int status = 0;
	CUstream s = q->stream ? q->stream : (CUstream)(uintptr_t)(q->per_thread ? STREAM_PER_THREAD : STREAM_LEGACY);
	return ask && ask(s, &status) == CUDA_SUCCESS && status != 0;
}

/* The device whose default pool a handle is; -1: none. */
static CUdevice device_of_default(CUmemoryPool pool)
{
	CUresult (*count)(int *) = REAL(cuda, cuDeviceGetCount);
	CUresult (*of)(CUmemoryPool *, CUdevice) = REAL(cuda, cuDeviceGetDefaultMemPool);
	int devices = 0;
	if (!count || !of || count(&devices) != CUDA_SUCCESS)
		return -1;
	for (CUdevice d = 0; d < devices; d++) {
		CUmemoryPool p = NULL;
		if (of(&p, d) == CUDA_SUCCESS && p == pool)
			return d;
	}
	return -1;
}

/* The stock of an allocation; NULL: not counted. Returns false when it is counted, and there is no memory for a record. */
static bool stock_of(const struct request *q, struct stock **out)
{
	CUresult (*current)(CUmemoryPool *, CUdevice) = REAL(cuda, cuDeviceGetMemPool);
	CUmemoryPool pool = q->pool;
	CUdevice device;
	int limit = -1;
	*out = NULL;
	if (!limits_get())
		return true;
	if (!q->from_pool) {
		limit = memory_limit(limit_of_stream(q->stream, &device));
		if (limit < 0 || !current || current(&pool, device) != CUDA_SUCCESS || !pool)
			return true;
	}
	if (!pool || (*out = stocks_find(STOCK_POOL, (uintptr_t)pool)))
		return true;
	/* Every other pool was seen at its creation, or is not GPU memory. A current pool can be another device's default. */
	if (q->from_pool && (device = device_of_default(pool)) >= 0)
		limit = memory_limit(limit_of(device));
	return limit < 0 || (*out = stocks_of(STOCK_POOL, (uintptr_t)pool, limit));
}

static CUresult allocate(const struct request *q)
{
	struct stock *from;
	struct draw d;
	uint64_t bytes = (q->size + MEMORY_STEP - 1) & ~(MEMORY_STEP - 1);
	if (captured(q))
		return memory_refused() ? CUDA_ERROR_OUT_OF_MEMORY : call(q);
	int mode = capture_relax();
	bool known = stock_of(q, &from);
	capture_restore(mode);
	if (!known || (!from && memory_refused()))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!from || !bytes)
		return call(q); /* not counted, or the driver refuses the size */
	if (bytes > (uint64_t)1 << 47)
		bytes = (uint64_t)1 << 47;
	if (!stocks_begin(&d, from, bytes) && (!stocks_reclaim(from->limit) || !stocks_begin(&d, from, bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = call(q);
	if (r != CUDA_SUCCESS) {
		stocks_end(&d, false);
		return r;
	}
	if (stocks_end(&d, true)) {
		holdings_put(&(struct holding){.kind = MEMORY, .key = *q->out, .bytes = bytes, .device = from->limit, .stock = from, .uses = 1});
		return r;
	}
	/* The pool has grown by more than the allocation, and above the limit. */
	if (q->undo)
		q->undo(*q->out, q->stream);
	stocks_freed(from, bytes);
	stocks_trim(from);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define ASYNC(suffix, own) \
	EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *out, size_t size, CUstream stream) \
	{ \
		struct request q = {.from_current = REAL(cuda, cuMemAllocAsync##suffix), \
			.undo = REAL(cuda, cuMemFreeAsync##suffix), \
			.out = out, \
			.size = size, \
			.stream = stream, \
			.per_thread = own}; \
		NEED(q.from_current); \
		return allocate(&q); \
	} \
	EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) \
	{ \
		struct request q = {.from_pool = REAL(cuda, cuMemAllocFromPoolAsync##suffix), \
			.undo = REAL(cuda, cuMemFreeAsync##suffix), \
			.out = out, \
			.size = size, \
			.pool = pool, \
			.stream = stream, \
			.per_thread = own}; \
		NEED(q.from_pool); \
		return allocate(&q); \
	} \
	EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr address, CUstream stream) \
	{ \
		CUresult (*real)(CUdeviceptr, CUstream) = REAL(cuda, cuMemFreeAsync##suffix); \
		NEED(real); \
		MEMORY_FREE(MEMORY, address, real(address, stream)); \
	}

ASYNC(, false)
ASYNC(_ptsz, true)

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUpool_properties *what)
{
	CUresult (*real)(CUmemoryPool *, const CUpool_properties *) = REAL(cuda, cuMemPoolCreate);
	CUresult (*undo)(CUmemoryPool) = REAL(cuda, cuMemPoolDestroy);
	NEED(real);
	CUresult r = real(out, what);
	if (r != CUDA_SUCCESS || what->location.type != LOCATION_DEVICE)
		return r;
	int limit = memory_limit(limit_of(what->location.id));
	if (limit < 0 || stocks_of(STOCK_POOL, (uintptr_t)*out, limit))
		return r;
	if (undo)
		undo(*out);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult (*real)(CUmemoryPool) = REAL(cuda, cuMemPoolDestroy);
	NEED(real);
	struct stock *s = pool ? stocks_find(STOCK_POOL, (uintptr_t)pool) : NULL;
	if (s)
		stocks_destroyed(s); /* first, because the driver may give the handle to another thread's pool at once */
	CUresult r = real(pool);
	if (r != CUDA_SUCCESS && s)
		stocks_kept(s, (uintptr_t)pool);
	return r;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult (*real)(CUmemoryPool, size_t) = REAL(cuda, cuMemPoolTrimTo);
	NEED(real);
	CUresult r = real(pool, keep);
	struct stock *s = r == CUDA_SUCCESS && pool ? stocks_find(STOCK_POOL, (uintptr_t)pool) : NULL;
	if (s)
		stocks_settle(s);
	return r;
}

/* A pool gives what is above its release threshold back "on the next call to stream, event or context synchronize"
 * (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD). */
#define SYNCHRONIZE(name, parameters, arguments)                    \
	EXPORT CUresult name parameters                             \
	{                                                           \
		CUresult(*real) parameters = REAL(cuda, name);      \
		NEED(real);                                         \
		CUresult r = real arguments;                        \
		stocks_settle_all();                                \
		overhead_settle();                                  \
		return r;                                           \
	}

SYNCHRONIZE(cuCtxSynchronize, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext c), (c))
SYNCHRONIZE(cuStreamSynchronize, (CUstream s), (s))
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream s), (s))
SYNCHRONIZE(cuEventSynchronize, (CUevent e), (e))
