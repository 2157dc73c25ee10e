/*
 * Memory nodes of graphs. CUDA's programming guide, "Graph Memory Nodes", gives the rules that are followed here:
 *
 * - No physical memory is allocated or mapped during instantiation. It is at launch, or at cuGraphUpload before it.
 * - Graphs that cannot run at the same time share physical memory: those that are launched into one stream, and free what they allocate.
 *   Memory that a graph allocates and does not free is not shared.
 * - A graph that is destroyed keeps the memory reserved. cuDeviceGraphMemTrim gives back what no graph uses.
 * - CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT is what the driver has reserved for graphs in this process.
 *
 * The last one is what is charged. Before a launch, what the graph's nodes need beyond what its stream has already is reserved.
 */
#define _GNU_SOURCE
#include "graphs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "devices.h"
#include "memory.h"

/* The maximum depth of nested graphs. */
#define DEEPEST 64

#define BUCKETS 256

/* A graph that was instantiated and has memory nodes. */
struct executable {
	CUgraphExec key;
	CUdevice device[MOST_DEVICES]; /* by limit */
	uint64_t bytes[MOST_DEVICES];
	bool keeps; /* does not free all its allocations */
	struct executable *next;
};

/* The memory of a device that graphs of a stream share. */
struct lane {
	CUstream stream;
	int limit;
	uint64_t bytes;
	CUgraphExec last; /* launched there */
	struct lane *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int known; /* executables, so that launches of other programs cost one check */
static struct executable *executables[BUCKETS];
static struct lane *lanes;
static unsigned int trims[MOST_DEVICES]; /* of the device's stock when the lanes were last correct */

/* The addresses that a graph allocates and frees. */
struct nodes {
	CUdeviceptr *allocated, *freed;
	size_t allocations, frees;
};

static bool append(CUdeviceptr **list, size_t *count, CUdeviceptr address)
{
	if ((*count & (*count - 1)) == 0) { /* a power of two: full */
		CUdeviceptr *more = realloc(*list, (*count ? *count * 2 : 1) * sizeof **list);
		if (!more)
			return false;
		*list = more;
	}
	(*list)[(*count)++] = address;
	return true;
}

static bool add_allocation(struct executable *e, struct nodes *n, CUgraphNode node)
{
	CUresult (*parameters)(CUgraphNode, CUmemory_node *) = REAL(cuda, cuGraphMemAllocNodeGetParams);
	CUmemory_node m;
	if (!parameters || parameters(node, &m) != CUDA_SUCCESS || m.pool.location.type != LOCATION_DEVICE)
		return true;
	int limit = memory_limit(limit_of(m.pool.location.id));
	if (limit < 0)
		return !memory_refused();
	e->device[limit] = m.pool.location.id;
	e->bytes[limit] += (m.bytes + MEMORY_STEP - 1) & ~(MEMORY_STEP - 1);
	return append(&n->allocated, &n->allocations, m.address);
}

/*
 * Adds the memory of a graph's nodes, and of the graphs in it. Returns false when the graph may not have any, or on lack of memory for the
 * list of nodes.
 */
static bool add_nodes(struct executable *e, struct nodes *n, CUgraph graph, int depth)
{
	CUresult (*list)(CUgraph, CUgraphNode *, size_t *) = REAL(cuda, cuGraphGetNodes);
	CUresult (*type_of)(CUgraphNode, int *) = REAL(cuda, cuGraphNodeGetType);
	CUresult (*freed)(CUgraphNode, CUdeviceptr *) = REAL(cuda, cuGraphMemFreeNodeGetParams);
	CUresult (*inner)(CUgraphNode, CUgraph *) = REAL(cuda, cuGraphChildGraphNodeGetGraph);
	size_t count = 0;
	bool good = true;
	if (depth == DEEPEST || !list || !type_of || list(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return true;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	if (!nodes)
		return false;
	if (list(graph, nodes, &count) != CUDA_SUCCESS)
		count = 0;
	for (size_t i = 0; good && i < count; i++) {
		CUgraph child;
		CUdeviceptr address;
		int type;
		if (type_of(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == NODE_ALLOCATES)
			good = add_allocation(e, n, nodes[i]);
		else if (type == NODE_FREES && freed && freed(nodes[i], &address) == CUDA_SUCCESS)
			good = append(&n->freed, &n->frees, address);
		else if (type == NODE_GRAPH && inner && inner(nodes[i], &child) == CUDA_SUCCESS)
			good = add_nodes(e, n, child, depth + 1);
	}
	free(nodes);
	return good;
}

static int by_address(const void *a, const void *b)
{
	CUdeviceptr x = *(const CUdeviceptr *)a, y = *(const CUdeviceptr *)b;
	return x < y ? -1 : x > y;
}

/* Reports whether a graph leaves an allocation unfreed. */
static bool keeps(struct nodes *n)
{
	if (n->frees)
		qsort(n->freed, n->frees, sizeof *n->freed, by_address);
	for (size_t i = 0; i < n->allocations; i++)
		if (!n->frees || !bsearch(&n->allocated[i], n->freed, n->frees, sizeof *n->freed, by_address))
			return true;
	return false;
}

static struct executable **bucket_of(CUgraphExec key)
{
	return &executables[(uintptr_t)key * 0x9e3779b97f4a7c15u >> 56];
}

static struct executable **place(CUgraphExec key)
{
	struct executable **at = bucket_of(key);
	while (*at && (*at)->key != key)
		at = &(*at)->next;
	return at;
}

/* Forgets an executable, and its memory in each stream. The caller holds the lock and frees it. */
static struct executable *take_out(CUgraphExec key)
{
	struct executable **at = place(key), *gone = *at;
	if (gone) {
		*at = gone->next;
		atomic_fetch_sub(&known, 1);
	}
	for (struct lane *l = lanes; l; l = l->next)
		if (l->last == key)
			l->last = NULL;
	return gone;
}

/*
 * Stores an instantiated graph with memory nodes in place of its former record. Returns false when it is not allowed, or on lack of memory.
 */
static bool remember(CUgraphExec key, CUgraph graph)
{
	struct executable *had = NULL;
	struct nodes n = {0};
	struct executable *e = calloc(1, sizeof *e);
	bool good = e && add_nodes(e, &n, graph, 0), some = good && n.allocations;
	if (good && atomic_load(&known)) {
		pthread_mutex_lock(&lock);
		had = take_out(key);
		pthread_mutex_unlock(&lock);
	}
	if (some) {
		e->key = key;
		e->keeps = keeps(&n);
		pthread_mutex_lock(&lock);
		e->next = *bucket_of(key);
		*bucket_of(key) = e;
		atomic_fetch_add(&known, 1);
		pthread_mutex_unlock(&lock);
	} else {
		free(e);
	}
	free(had);
	free(n.allocated);
	free(n.freed);
	return good;
}

/* Reports whether nodes of graphs matter: reading them takes time. */
static bool any_memory(void)
{
	const struct limits *l = limits_get();
	if (memory_refused())
		return true;
	for (int i = 0; l && i < l->count; i++)
		if (memory_limit(i) >= 0)
			return true;
	return false;
}

static CUresult instantiated(CUresult r, CUgraphExec *out, CUgraph graph)
{
	CUresult (*destroy)(CUgraphExec) = REAL(cuda, cuGraphExecDestroy);
	if (r != CUDA_SUCCESS || !any_memory() || remember(*out, graph))
		return r;
	if (destroy)
		destroy(*out);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(name, parameters, arguments)                                    \
	EXPORT CUresult name parameters                                             \
	{                                                                           \
		CUresult(*real) parameters = REAL(cuda, name);                      \
		NEED(real);                                                         \
		return instantiated(real arguments, out, graph);                    \
	}

INSTANTIATE(
	cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *error, char *text, size_t size), (out, graph, error, text, size))
INSTANTIATE(
	cuGraphInstantiate_v2, (CUgraphExec * out, CUgraph graph, CUgraphNode *error, char *text, size_t size), (out, graph, error, text, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags), (out, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * out, CUgraph graph, void *with), (out, graph, with))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * out, CUgraph graph, void *with), (out, graph, with))

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	CUresult (*real)(CUgraphExec) = REAL(cuda, cuGraphExecDestroy);
	struct executable *gone = NULL;
	NEED(real);
	if (atomic_load(&known)) { /* first, because the driver may give the handle to another thread's graph at once */
		pthread_mutex_lock(&lock);
		gone = take_out(graph);
		pthread_mutex_unlock(&lock);
	}
	free(gone);
	CUresult r = real(graph);
	stocks_settle_all();
	return r;
}

/* An update cannot be undone. On lack of memory for the new record the old one stays. */
#define UPDATE(name, parameters, arguments)                                         \
	EXPORT CUresult name parameters                                             \
	{                                                                           \
		CUresult(*real) parameters = REAL(cuda, name);                      \
		NEED(real);                                                         \
		CUresult r = real arguments;                                        \
		if (r == CUDA_SUCCESS && any_memory())                              \
			remember(executable, graph);                                \
		return r;                                                           \
	}

UPDATE(cuGraphExecUpdate, (CUgraphExec executable, CUgraph graph, CUgraphNode *error, int *result), (executable, graph, error, result))
UPDATE(cuGraphExecUpdate_v2, (CUgraphExec executable, CUgraph graph, void *result), (executable, graph, result))

/* The lane of a stream; NULL: out of memory. The caller holds the lock. */
static struct lane *lane_of(CUstream stream, int limit)
{
	for (struct lane *l = lanes; l; l = l->next)
		if (l->stream == stream && l->limit == limit)
			return l;
	struct lane *l = calloc(1, sizeof *l);
	if (l) {
		*l = (struct lane){.stream = stream, .limit = limit, .next = lanes};
		lanes = l;
	}
	return l;
}

/* After a trim the lanes together have at most what the driver has reserved. The caller holds the lock. */
static void look_for_trims(const struct stock *s, int limit)
{
	uint64_t together = 0;
	unsigned int now = atomic_load(&s->trims);
	if (trims[limit] == now)
		return;
	trims[limit] = now;
	for (struct lane *l = lanes; l; l = l->next)
		if (l->limit == limit)
			together += l->bytes;
	if (together <= atomic_load(&s->charged))
		return;
	for (struct lane *l = lanes; l; l = l->next)
		if (l->limit == limit) {
			l->bytes = 0;
			l->last = NULL;
		}
}

/* The maximum growth of the device's graph memory at a launch into a stream. */
static uint64_t growth_of(const struct executable *e, int limit, CUstream stream, const struct stock *s)
{
	pthread_mutex_lock(&lock);
	look_for_trims(s, limit);
	struct lane *l = lane_of(stream, limit);
	uint64_t needs = e->bytes[limit], has = !l ? 0 : e->keeps ? (l->last == e->key ? needs : 0) : l->bytes;
	pthread_mutex_unlock(&lock);
	return needs > has ? needs - has : 0;
}

static bool begin_device(struct graph_draw *d, const struct executable *e, int limit)
{
	struct stock *s = stocks_of(STOCK_GRAPHS, (uint64_t)e->device[limit], limit);
	struct draw *draw = &d->draws[d->count];
	if (!s || (!stocks_begin_growth(draw, s, growth_of(e, limit, d->stream, s)) &&
		   (!stocks_reclaim(limit) || !stocks_begin_growth(draw, s, growth_of(e, limit, d->stream, s)))))
		return false;
	d->count++;
	return true;
}

bool graphs_begin(struct graph_draw *d, CUgraphExec graph, CUstream stream, bool per_thread)
{
	struct executable e;
	d->count = 0;
	if (!atomic_load_explicit(&known, memory_order_relaxed))
		return true;
	pthread_mutex_lock(&lock);
	struct executable *found = *place(graph);
	if (found)
		e = *found;
	pthread_mutex_unlock(&lock);
	if (!found)
		return true;
	if ((!stream && per_thread) || stream == (CUstream)STREAM_PER_THREAD)
		stream = (CUstream)(uintptr_t)pthread_self(); /* a name for the thread's own stream */
	else if (!stream)
		stream = (CUstream)STREAM_LEGACY;
	d->graph = graph;
	d->stream = stream;
	for (int i = 0; i < MOST_DEVICES; i++)
		if (e.bytes[i] && !begin_device(d, &e, i)) {
			while (d->count > 0)
				stocks_end(&d->draws[--d->count], false);
			return false;
		}
	return true;
}

/* Stores a stream's memory after a launch. */
static void launched(CUgraphExec graph, CUstream stream, int limit)
{
	pthread_mutex_lock(&lock);
	struct executable *e = *place(graph);
	struct lane *l = e ? lane_of(stream, limit) : NULL;
	if (l && !e->keeps)
		l->bytes = l->bytes > e->bytes[limit] ? l->bytes : e->bytes[limit];
	else if (l && l->last != graph) /* it may have the memory that was shared before */
		l->bytes = 0;
	if (l)
		l->last = graph;
	pthread_mutex_unlock(&lock);
}

CUresult graphs_end(struct graph_draw *d, CUresult r)
{
	for (int i = 0; i < d->count; i++) {
		if (r == CUDA_SUCCESS)
			launched(d->graph, d->stream, d->draws[i].from->limit);
		stocks_end(&d->draws[i], r == CUDA_SUCCESS); /* a launch cannot be undone: charge what exceeds the limit */
	}
	return r;
}

#define UPLOAD(name, per_thread)                                                                  \
	EXPORT CUresult name(CUgraphExec graph, CUstream stream)                                  \
	{                                                                                         \
		CUresult (*real)(CUgraphExec, CUstream) = REAL(cuda, name);                       \
		struct graph_draw d;                                                              \
		NEED(real);                                                                       \
		if (!graphs_begin(&d, graph, stream, per_thread))                                 \
			return CUDA_ERROR_OUT_OF_MEMORY;                                          \
		return graphs_end(&d, real(graph, stream));                                       \
	}

UPLOAD(cuGraphUpload, false)
UPLOAD(cuGraphUpload_ptsz, true)

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult (*real)(CUdevice) = REAL(cuda, cuDeviceGraphMemTrim);
	struct stock *s = stocks_find(STOCK_GRAPHS, (uint64_t)device);
	NEED(real);
	CUresult r = real(device);
	if (s)
		stocks_trimmed(s);
	return r;
}

void graphs_forget_stream(CUstream stream)
{
	if (!atomic_load_explicit(&known, memory_order_relaxed))
		return;
	pthread_mutex_lock(&lock);
	for (struct lane **at = &lanes; *at;) {
		struct lane *l = *at;
		if (l->stream != stream) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		free(l);
	}
	pthread_mutex_unlock(&lock);
}

void graphs_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(executables, 0, sizeof executables); /* the child leaks these, once for each fork */
	lanes = NULL;
	atomic_store(&known, 0);
}
