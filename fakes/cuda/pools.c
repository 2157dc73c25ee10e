/*
 * Memory pools, by the rules of CUDA's driver API reference, "Stream Ordered Memory Allocator", and of its programming guide. All streams
 * of a context are one here, so what was freed serves the next allocation at once. A pool takes its memory by granules of 2 MiB, in no
 * order that matters.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "stock.h"

enum {
	REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	REUSE_ALLOW_OPPORTUNISTIC = 2,
	REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
	RELEASE_THRESHOLD = 4,
	RESERVED_MEM_CURRENT = 5,
	RESERVED_MEM_HIGH = 6,
	USED_MEM_CURRENT = 7,
	USED_MEM_HIGH = 8,
};

struct pool {
	const struct device *device;
	CUdevice number;
	bool destroyed;
	int reuse[3];
	unsigned long long threshold, reserved, reserved_high, used, used_high;
	size_t most;		     /* 0: as much as the device has */
	unsigned long long freed_at; /* when the GPU has reached the last free */
	bool observed;		     /* the program has waited for that */
	size_t count;		     /* allocations */
	struct pool *next;
};

struct block {
	CUdeviceptr address;
	size_t bytes;
	struct pool *pool;
	struct block *next;
};

#define MOST_DEVICES (FF_MAX_GPUS * FF_MAX_GPU_INSTANCES)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool defaults[MOST_DEVICES], *current_of[MOST_DEVICES], *made;
static struct block *blocks;

static struct pool *default_of(const struct device *device, CUdevice number)
{
	struct pool *p = &defaults[number];
	if (!p->device) {
		*p = (struct pool){.device = device, .number = number, .reuse = {1, 1, 1}, .observed = true};
		current_of[number] = p;
	}
	return p;
}

/* Whether a handle is a pool's. The caller has the lock. */
static bool is_pool(const struct pool *p)
{
	for (const struct pool *other = made; other; other = other->next)
		if (other == p)
			return !p->destroyed;
	return p >= defaults && p < defaults + MOST_DEVICES && p->device;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice number)
{
	NEED_DEVICE(number);
	NEED_SAFE();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	*out = default_of(device, number);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult pool_of(CUmemoryPool *out, CUdevice number)
{
	NEED_DEVICE(number);
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	default_of(device, number);
	*out = current_of[number];
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice number)
{
	NEED_INIT();
	NEED_SAFE();
	return pool_of(out, number);
}

/* "The memory pool must be local to the specified device." */
EXPORT CUresult cuDeviceSetMemPool(CUdevice number, CUmemoryPool p)
{
	NEED_DEVICE(number);
	pthread_mutex_lock(&lock);
	default_of(device, number);
	bool good = p && is_pool(p) && p->number == number;
	if (good)
		current_of[number] = p;
	pthread_mutex_unlock(&lock);
	return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Only pinned memory (1) of a device (1) that is shared by nothing (0), or by file descriptors (1). */
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUpool_properties *what)
{
	NEED_INIT();
	NEED_SAFE();
	NEED(out && what && what->type == 1 && what->location.type == 1 && (what->handle_types & ~1) == 0, CUDA_ERROR_INVALID_VALUE);
	NEED(device_at(what->location.id), CUDA_ERROR_INVALID_VALUE);
	struct pool *p = calloc(1, sizeof *p);
	NEED(p, CUDA_ERROR_OUT_OF_MEMORY);
	pthread_mutex_lock(&lock);
	*p = (struct pool){.device = device_at(what->location.id),
		.number = what->location.id,
		.reuse = {1, 1, 1},
		.most = what->most,
		.observed = true,
		.next = made};
	made = p;
	pthread_mutex_unlock(&lock);
	*out = p;
	return CUDA_SUCCESS;
}

/* Gives back all but so many bytes, as far as nothing uses them. The caller has the lock. */
static void shrink(struct pool *p, unsigned long long keep)
{
	unsigned long long least = GRANULES(p->used);
	if (p->used == 0 && p->destroyed)
		keep = 0;
	least = keep > least ? keep : least;
	if (p->reserved > least) {
		device_use(p->device, -(long long)(p->reserved - least));
		p->reserved = least;
	}
}

/* "The resources associated with the pool will be released automatically once there are no more outstanding allocations." The caller has
 * the lock. */
static void end(struct pool *p)
{
	if (!p->destroyed || p->count)
		return;
	shrink(p, 0);
	for (struct pool **at = &made; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			free(p);
			return;
		}
}

/* "A device's default memory pool cannot be destroyed." A device whose current pool is destroyed gets its default one. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool p)
{
	NEED_INIT();
	NEED_SAFE();
	pthread_mutex_lock(&lock);
	bool good = p && is_pool(p) && (p < defaults || p >= defaults + MOST_DEVICES);
	if (good) {
		default_of(p->device, p->number);
		if (current_of[p->number] == p)
			current_of[p->number] = &defaults[p->number];
		p->destroyed = true;
		end(p);
	}
	pthread_mutex_unlock(&lock);
	return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* "Allocations that have been asynchronously freed but whose completion has not been observed on the host can count as outstanding." Here
 * they do. */
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
	NEED_INIT();
	NEED_SAFE();
	pthread_mutex_lock(&lock);
	bool good = p && is_pool(p);
	if (good && p->observed)
		shrink(p, keep);
	pthread_mutex_unlock(&lock);
	return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/*
 * "When more than the release threshold bytes of memory are held by the memory pool, the allocator will try to release memory back to the
 * OS on the next call to stream, event or context synchronize."
 */
void pools_synchronized(void)
{
	unsigned long long now = launch_now();
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_DEVICES + 1; i++)
		for (struct pool *p = i < MOST_DEVICES ? &defaults[i] : made; p; p = p->next)
			if (p->device && now >= p->freed_at) {
				p->observed = true;
				shrink(p, p->threshold);
			}
	pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool p, int attribute, void *value)
{
	NEED_INIT();
	NEED_SAFE();
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (!p || !is_pool(p) || !value)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (attribute >= REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		*(int *)value = p->reuse[attribute - 1];
	else if (attribute >= RELEASE_THRESHOLD && attribute <= USED_MEM_HIGH)
		*(unsigned long long *)value =
			(unsigned long long[]){p->threshold, p->reserved, p->reserved_high, p->used, p->used_high}[attribute - RELEASE_THRESHOLD];
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return r;
}

/* The current values cannot be set, and the high ones to 0 alone. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool p, int attribute, void *value)
{
	NEED_INIT();
	NEED_SAFE();
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (!p || !is_pool(p) || !value)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (attribute >= REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		p->reuse[attribute - 1] = *(int *)value != 0;
	else if (attribute == RELEASE_THRESHOLD)
		p->threshold = *(unsigned long long *)value;
	else if (attribute == RESERVED_MEM_HIGH && *(unsigned long long *)value == 0)
		p->reserved_high = p->reserved;
	else if (attribute == USED_MEM_HIGH && *(unsigned long long *)value == 0)
		p->used_high = p->used;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return r;
}

/* Allocates; the pool grows where it has too little. The caller has the lock. */
static CUresult take(struct pool *p, struct block *b)
{
	if (p->most && p->used + b->bytes > p->most)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (p->used + b->bytes > p->reserved) {
		size_t more = GRANULES(p->used + b->bytes - p->reserved);
		CUresult r = device_use(p->device, (long long)more);
		if (r != CUDA_SUCCESS)
			return r;
		p->reserved += more;
	}
	p->used += b->bytes;
	p->count++;
	p->reserved_high = p->reserved > p->reserved_high ? p->reserved : p->reserved_high;
	p->used_high = p->used > p->used_high ? p->used : p->used_high;
	b->pool = p;
	b->next = blocks;
	blocks = b;
	return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *out, size_t size, struct pool *p)
{
	if (size > p->device->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct block *b = calloc(1, sizeof *b);
	NEED(b, CUDA_ERROR_OUT_OF_MEMORY);
	*b = (struct block){.address = context_address(size), .bytes = (size + 511) & ~(size_t)511};
	pthread_mutex_lock(&lock);
	CUresult r = is_pool(p) ? take(p, b) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	if (r != CUDA_SUCCESS) {
		free(b);
		return r;
	}
	*out = b->address;
	return CUDA_SUCCESS;
}

static CUdevice number_of(const struct context *c)
{
	CUdevice n = 0;
	while (device_at(n) != c->device)
		n++;
	return n;
}

/* In a stream that is captured it adds a node, and the graph, not the pool, owns the memory. */
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(out && size && p, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	bool good = is_pool(p);
	pthread_mutex_unlock(&lock);
	NEED(good, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	return g ? graphs_capture_allocation(g, p->number, size, out) : allocate(out, size, p);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	CUmemoryPool p;
	NEED_CONTEXT();
	CUresult r = pool_of(&p, number_of(current));
	return r == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(out, size, p, stream) : r;
}

/* Frees a block behind what runs until a time. */
static bool give(CUdeviceptr address, unsigned long long until)
{
	pthread_mutex_lock(&lock);
	struct block **at = &blocks;
	while (*at && (*at)->address != address)
		at = &(*at)->next;
	struct block *gone = *at;
	if (gone) {
		struct pool *p = gone->pool;
		*at = gone->next;
		p->used -= gone->bytes;
		p->count--;
		p->observed = until == 0 && p->observed;
		p->freed_at = until > p->freed_at ? until : p->freed_at;
		end(p);
	}
	pthread_mutex_unlock(&lock);
	free(gone);
	return gone != NULL;
}

/* By cuMemFree, whose caller has waited for all that uses it. */
bool pools_free(CUdeviceptr address)
{
	return give(address, 0);
}

/* In a stream that is captured it adds a node, and "must therefore be passed the address of a graph allocation". */
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	struct graph *g = current->captured;
	if (g)
		return graphs_capture_free(g, address);
	unsigned long long until = current->busy_until;
	return give(address, until ? until : 1) ? CUDA_SUCCESS : driver_free(address);
}
