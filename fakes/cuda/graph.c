/*
 * Graphs: captured, or built of nodes that allocate and free memory. The rules are those of CUDA's driver API reference, "Graph
 * Management", and of its programming guide, "Graph Memory Nodes".
 */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

enum { NODE_KERNEL = 0, NODE_ALLOCATES = 10, NODE_FREES = 11 };
enum { ALL_FLAGS = 15 };

pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
struct graph *graphs;

static struct graph *new_graph(void)
{
	struct graph *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	pthread_mutex_lock(&graphs_lock);
	g->next = graphs;
	graphs = g;
	pthread_mutex_unlock(&graphs_lock);
	return g;
}

static CUresult append(struct graph *g, const struct node *what, struct node **out)
{
	struct node *n = malloc(sizeof *n), **at = &g->nodes;
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*n = *what;
	while (*at)
		at = &(*at)->next;
	*at = n;
	g->count++;
	if (out)
		*out = n;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	NEED_INIT();
	NEED(out && flags == 0, CUDA_ERROR_INVALID_VALUE);
	*out = new_graph();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph g)
{
	NEED_INIT();
	NEED(g, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&graphs_lock);
	struct graph **at = &graphs;
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	if (g->instantiated)
		g->instantiated->of = NULL;
	pthread_mutex_unlock(&graphs_lock);
	for (struct node *n = g->nodes, *next; n; n = next) {
		next = n->next;
		free(n);
	}
	free(g);
	return CUDA_SUCCESS;
}

static CUresult add_allocation(struct graph *g, CUdevice device, size_t bytes, struct node **out, CUdeviceptr *address)
{
	struct node n = {.type = NODE_ALLOCATES, .device = device, .bytes = bytes, .address = context_address(bytes), .owner = g};
	pthread_mutex_lock(&graphs_lock);
	CUresult r = append(g, &n, out);
	pthread_mutex_unlock(&graphs_lock);
	*address = n.address;
	return r;
}

/* An address that no node allocated, or that is freed already, is refused. What its own graph frees, no other can. */
static CUresult add_free(struct graph *g, CUdeviceptr address, struct node **out)
{
	struct node n = {.type = NODE_FREES, .address = address}, *found = NULL;
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graphs_lock);
	for (struct graph *other = graphs; other && !found; other = other->next)
		for (struct node *a = other->nodes; a && !found; a = a->next)
			if (a->type == NODE_ALLOCATES && a->address == address)
				found = a;
	if (found && (!found->freed_in || (found->freed_in != g && found->freed_in != found->owner && g != found->owner))) {
		found->freed_in = g;
		r = append(g, &n, out);
	}
	pthread_mutex_unlock(&graphs_lock);
	return r;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUmemory_node *what)
{
	NEED_INIT();
	NEED(out && g && (after || !count) && what, CUDA_ERROR_INVALID_VALUE);
	/* Pinned memory of a device, which no other process shares. */
	NEED(what->pool.type == 1 && what->pool.handle_types == 0 && what->pool.location.type == 1 && what->bytes, CUDA_ERROR_INVALID_VALUE);
	NEED(device_at(what->pool.location.id), CUDA_ERROR_INVALID_VALUE);
	return add_allocation(g, what->pool.location.id, what->bytes, out, &what->address);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUdeviceptr address)
{
	NEED_INIT();
	NEED(out && g && (after || !count), CUDA_ERROR_INVALID_VALUE);
	return add_free(g, address, out);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUany_node *what)
{
	NEED_INIT();
	NEED(what, CUDA_ERROR_INVALID_VALUE);
	switch (what->type) {
	case NODE_ALLOCATES:
		return cuGraphAddMemAllocNode(out, g, after, count, &what->as.allocates);
	case NODE_FREES:
		return cuGraphAddMemFreeNode(out, g, after, count, what->as.frees);
	default:
		return CUDA_ERROR_NOT_SUPPORTED; /* the stand-in has no others */
	}
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *after, const void *edges, size_t count, CUany_node *what)
{
	(void)edges;
	return cuGraphAddNode(out, g, after, count, what);
}

EXPORT CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *out, size_t *count)
{
	NEED_INIT();
	NEED(g && count, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&graphs_lock);
	size_t i = 0;
	for (struct node *n = g->nodes; out && n && i < *count; n = n->next)
		out[i++] = n;
	for (; out && i < *count; i++)
		out[i] = NULL; /* "the remaining entries in nodes will be set to NULL, and the number of nodes actually obtained returned" */
	*count = g->count < *count || !out ? g->count : *count;
	pthread_mutex_unlock(&graphs_lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode n, int *out)
{
	NEED_INIT();
	NEED(n && out, CUDA_ERROR_INVALID_VALUE);
	*out = n->type;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUmemory_node *out)
{
	NEED_INIT();
	NEED(n && out && n->type == NODE_ALLOCATES, CUDA_ERROR_INVALID_VALUE);
	*out = (CUmemory_node){.pool = {.type = 1, .location = {1, n->device}}, .bytes = n->bytes, .address = n->address};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode n, CUdeviceptr *out)
{
	NEED_INIT();
	NEED(n && out && n->type == NODE_FREES, CUDA_ERROR_INVALID_VALUE);
	*out = n->address;
	return CUDA_SUCCESS;
}

CUresult graphs_capture(struct graph *g, unsigned long long microseconds)
{
	pthread_mutex_lock(&graphs_lock);
	CUresult r = append(g, &(struct node){.type = NODE_KERNEL, .microseconds = microseconds}, NULL);
	pthread_mutex_unlock(&graphs_lock);
	return r;
}

CUresult graphs_capture_allocation(struct graph *g, CUdevice device, size_t size, CUdeviceptr *out)
{
	return add_allocation(g, device, size, NULL, out);
}

CUresult graphs_capture_free(struct graph *g, CUdeviceptr address)
{
	return add_free(g, address, NULL);
}

void graphs_invalidate(struct graph *g)
{
	g->invalid = true;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(!current->captured && capture_mode(mode), CUDA_ERROR_INVALID_VALUE);
	struct graph *g = new_graph();
	NEED(g, CUDA_ERROR_OUT_OF_MEMORY);
	pthread_mutex_lock(&graphs_lock);
	g->mode = mode;
	g->thread = pthread_self();
	g->capturing = true;
	pthread_mutex_unlock(&graphs_lock);
	current->captured = g;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(status, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	*status = !g ? 0 : g->invalid ? 2 : 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(out && current->captured, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = atomic_exchange(&current->captured, NULL);
	pthread_mutex_lock(&graphs_lock);
	g->capturing = false;
	pthread_mutex_unlock(&graphs_lock);
	*out = g->invalid ? NULL : g;
	if (*out)
		return CUDA_SUCCESS;
	cuGraphDestroy(g);
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* Copies the memory nodes of a graph. The caller has the lock. */
static CUresult copy_items(struct executable *e, const struct graph *g)
{
	e->items = calloc(g->count + 1, sizeof *e->items);
	NEED(e->items, CUDA_ERROR_OUT_OF_MEMORY);
	for (const struct node *n = g->nodes; n; n = n->next) {
		e->microseconds += n->microseconds;
		if (n->type == NODE_ALLOCATES)
			e->items[e->count++] = (struct item){n->address, n->device, n->bytes, n->freed_in == g};
		else if (n->type == NODE_FREES)
			e->items[e->count++] = (struct item){.address = n->address};
	}
	return CUDA_SUCCESS;
}

/* Nothing is allocated yet. Of a graph with memory nodes "only one instantiation may exist at any point in time". */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	NEED_INIT();
	NEED(out && g && flags <= ALL_FLAGS, CUDA_ERROR_INVALID_VALUE);
	struct executable *e = calloc(1, sizeof *e);
	NEED(e, CUDA_ERROR_OUT_OF_MEMORY);
	e->flags = flags;
	pthread_mutex_lock(&graphs_lock);
	CUresult r = copy_items(e, g);
	if (r == CUDA_SUCCESS && e->count && g->instantiated)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && e->count) {
		e->of = g;
		g->instantiated = e;
	}
	pthread_mutex_unlock(&graphs_lock);
	if (r == CUDA_SUCCESS) {
		*out = e;
		return r;
	}
	free(e->items);
	free(e);
	return r;
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *text, size_t size)
{
	if (error)
		*error = NULL;
	if (text && size)
		*text = '\0';
	return cuGraphInstantiateWithFlags(out, g, 0);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *text, size_t size)
{
	return cuGraphInstantiate_v2(out, g, error, text, size);
}
