#include "warehouse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hooks.h"
#include "launches.h"

#define MOST_POOLS 16
#define MOST_BLOCKS 4096
#define MOST_STREAMS 16

_Atomic uint64_t warehouse_step = (uint64_t)2 << 20, warehouse_threshold;
_Atomic int warehouse_scattered;

struct pool {
	bool made, gone;
	int device;
	uint64_t reserved, used, lost; /* lost: freed, and unused until it is trimmed */
};

struct node {
	int type, device;
	uint64_t bytes;
	CUdeviceptr address;
};

struct graph {
	struct node nodes[2];
	size_t count;
	uint64_t kept; /* of an instantiated one: what it has on its own */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[MOST_POOLS] = {{.made = true, .device = 0}, {.made = true, .device = 1}}; /* the first two are the default ones */
static struct {
	struct pool *pool;
	CUdeviceptr address;
	uint64_t bytes;
} blocks[MOST_BLOCKS];
static uint64_t graphs_reserved[2], shared[2][MOST_STREAMS];
#define FIRST ((CUdeviceptr)1 << 40)
static CUdeviceptr next = FIRST;

static void set(struct pool *p, uint64_t reserved)
{
	atomic_fetch_add(&driver_allocated[p->device], reserved - p->reserved);
	p->reserved = reserved;
}

static uint64_t stepped(uint64_t bytes)
{
	uint64_t step = atomic_load(&warehouse_step);
	return (bytes + step - 1) / step * step;
}

static void shrink(struct pool *p, uint64_t keep)
{
	p->lost = 0;
	uint64_t least = stepped(p->used) > keep ? stepped(p->used) : keep;
	if (p->reserved > least)
		set(p, least);
	if (p->gone && !p->used)
		set(p, 0);
}

static CUresult from_pool(CUdeviceptr *out, size_t n, CUmemoryPool handle, CUstream s)
{
	struct pool *p = handle;
	(void)s;
	if (atomic_load(&driver_fails))
		return 999;
	pthread_mutex_lock(&lock);
	*out = next;
	next += (n + 511) & ~(size_t)511;
	for (int i = 0; i < MOST_BLOCKS && !atomic_load(&launches_capturing); i++)
		if (!blocks[i].pool) {
			blocks[i].pool = p;
			blocks[i].address = *out;
			blocks[i].bytes = (n + 511) & ~(size_t)511;
			p->used += blocks[i].bytes;
			if (p->used + p->lost > p->reserved)
				set(p, p->reserved + stepped(p->used + p->lost - p->reserved));
			break;
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult async(CUdeviceptr *out, size_t n, CUstream s)
{
	return from_pool(out, n, &pools[driver_current()], s);
}

bool warehouse_frees(CUdeviceptr address)
{
	bool found = false;
	if (address < FIRST)
		return false;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_BLOCKS && !found; i++)
		if (blocks[i].pool && blocks[i].address == address) {
			blocks[i].pool->used -= blocks[i].bytes;
			if (atomic_load(&warehouse_scattered))
				blocks[i].pool->lost += blocks[i].bytes;
			if (blocks[i].pool->gone)
				shrink(blocks[i].pool, 0);
			blocks[i].pool = NULL;
			found = true;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

static CUresult free_async(CUdeviceptr address, CUstream s)
{
	(void)s;
	return warehouse_frees(address) ? CUDA_SUCCESS : 1;
}

static CUresult current_pool(CUmemoryPool *out, CUdevice d)
{
	*out = &pools[d];
	return CUDA_SUCCESS;
}

static CUresult create(CUmemoryPool *out, const CUpool_properties *what)
{
	CUresult r = 2;
	pthread_mutex_lock(&lock);
	for (int i = 2; i < MOST_POOLS && r; i++)
		if (!pools[i].made || (pools[i].gone && !pools[i].used)) {
			pools[i] = (struct pool){.made = true, .device = what->location.id};
			*out = &pools[i];
			r = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

static CUresult destroy(CUmemoryPool handle)
{
	struct pool *p = handle;
	if (p < &pools[2])
		return 1;
	pthread_mutex_lock(&lock);
	p->gone = true;
	shrink(p, 0);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult trim(CUmemoryPool handle, size_t keep)
{
	pthread_mutex_lock(&lock);
	shrink(handle, keep);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult pool_attribute(CUmemoryPool handle, int attribute, void *out)
{
	const struct pool *p = handle;
	if (attribute != 5 || p->gone)
		return 1;
	pthread_mutex_lock(&lock);
	*(uint64_t *)out = p->reserved;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream s)
{
	(void)s;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_POOLS; i++)
		if (pools[i].made)
			shrink(&pools[i], atomic_load(&warehouse_threshold));
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUgraph warehouse_graph(int device, uint64_t bytes, bool frees)
{
	struct graph *g = calloc(1, sizeof *g);
	pthread_mutex_lock(&lock);
	g->count = frees ? 2 : 1;
	g->nodes[0] = (struct node){10, device, bytes, next};
	g->nodes[1] = (struct node){11, device, bytes, next};
	next += bytes;
	pthread_mutex_unlock(&lock);
	return g;
}

static CUresult nodes_of(CUgraph graph, CUgraphNode *out, size_t *count)
{
	struct graph *g = graph;
	for (size_t i = 0; out && i < g->count; i++)
		out[i] = &g->nodes[i];
	*count = g->count;
	return CUDA_SUCCESS;
}

static CUresult type_of(CUgraphNode node, int *out)
{
	*out = ((struct node *)node)->type;
	return CUDA_SUCCESS;
}

static CUresult allocates(CUgraphNode node, CUmemory_node *out)
{
	const struct node *n = node;
	*out = (CUmemory_node){.pool = {.location = {LOCATION_DEVICE, n->device}}, .bytes = n->bytes, .address = n->address};
	return CUDA_SUCCESS;
}

static CUresult frees(CUgraphNode node, CUdeviceptr *out)
{
	*out = ((struct node *)node)->address;
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	struct graph *g = malloc(sizeof *g);
	(void)flags;
	*g = *(struct graph *)graph;
	*out = g;
	return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec executable, CUgraph graph, void *result)
{
	uint64_t kept = ((struct graph *)executable)->kept;
	(void)result;
	*(struct graph *)executable = *(struct graph *)graph;
	((struct graph *)executable)->kept = kept;
	return CUDA_SUCCESS;
}

/* Graphs of one stream share what they free, and what one keeps is its own. */
static CUresult launch(CUgraphExec graph, CUstream s)
{
	struct graph *g = graph;
	if (!g) /* one that only takes time */
		return ((CUresult (*)(CUgraphExec, CUstream))launches_function("cuGraphLaunch"))(graph, s);
	int d = g->nodes[0].device;
	pthread_mutex_lock(&lock);
	uint64_t needs = stepped(g->nodes[0].bytes), had = graphs_reserved[d],
			 *has = g->count == 2 ? &shared[d][(uintptr_t)s % MOST_STREAMS] : &g->kept;
	if (needs > *has) {
		graphs_reserved[d] += needs - *has;
		*has = needs;
	}
	atomic_fetch_add(&driver_allocated[d], graphs_reserved[d] - had);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static CUresult destroy_graph(CUgraphExec graph)
{
	free(graph);
	return CUDA_SUCCESS;
}

static CUresult graph_attribute(CUdevice d, int attribute, void *out)
{
	pthread_mutex_lock(&lock);
	*(uint64_t *)out = graphs_reserved[d];
	pthread_mutex_unlock(&lock);
	return attribute == 2 ? CUDA_SUCCESS : 1;
}

static CUresult trim_graphs(CUdevice d)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_STREAMS; i++) {
		graphs_reserved[d] -= shared[d][i];
		atomic_fetch_sub(&driver_allocated[d], shared[d][i]);
		shared[d][i] = 0;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

void *warehouse_function(const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} table[] = {
		{"cuMemAllocAsync", async}, {"cuMemAllocAsync_ptsz", async}, {"cuMemAllocFromPoolAsync", from_pool}, {"cuMemFreeAsync", free_async},
		{"cuMemFreeAsync_ptsz", free_async}, {"cuDeviceGetMemPool", current_pool}, {"cuDeviceGetDefaultMemPool", current_pool},
		{"cuMemPoolCreate", create}, {"cuMemPoolDestroy", destroy}, {"cuMemPoolTrimTo", trim}, {"cuMemPoolGetAttribute", pool_attribute},
		{"cuStreamSynchronize", synchronize}, {"cuGraphGetNodes", nodes_of}, {"cuGraphNodeGetType", type_of},
		{"cuGraphMemAllocNodeGetParams", allocates}, {"cuGraphMemFreeNodeGetParams", frees}, {"cuGraphInstantiateWithFlags", instantiate},
		{"cuGraphExecUpdate_v2", update}, {"cuGraphLaunch", launch}, {"cuGraphUpload", launch}, {"cuGraphExecDestroy", destroy_graph},
		{"cuDeviceGetGraphMemAttribute", graph_attribute}, {"cuDeviceGraphMemTrim", trim_graphs},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (strcmp(table[i].name, name) == 0)
			return table[i].function;
	return NULL;
}
