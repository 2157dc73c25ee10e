/*
 * Memory that launched graphs allocate, by CUDA's programming guide, "Graph Memory Nodes". A GPU does one after the other here, so graphs
 * of a context never run at the same time, and share what they free.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "graph.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };
enum { USED_MEM_CURRENT, USED_MEM_HIGH, RESERVED_MEM_CURRENT, RESERVED_MEM_HIGH };

/* Memory that a graph allocated and did not free. */
struct left {
	CUdeviceptr address;
	CUdevice device;
	size_t bytes;
	const struct executable *by;
	struct left *next;
};

#define MOST_DEVICES (FF_MAX_GPUS * FF_MAX_GPU_INSTANCES)

/* What graphs of a context share of its device's memory. */
struct shared {
	const struct context *context;
	CUdevice device;
	size_t bytes;
	struct shared *next;
};

static struct left *lefts;
static struct shared *shareds;
static unsigned long long reserved[MOST_DEVICES], reserved_high[MOST_DEVICES], used_high[MOST_DEVICES];

/* The memory that graphs of a context share. The caller has the lock. */
static struct shared *shared_of(const struct context *c, CUdevice device)
{
	struct shared *s = shareds;
	while (s && (s->context != c || s->device != device))
		s = s->next;
	if (!s && (s = calloc(1, sizeof *s))) {
		*s = (struct shared){.context = c, .device = device, .next = shareds};
		shareds = s;
	}
	return s;
}

/* What graphs use of a device: what those of a context share, and what was left. */
static unsigned long long used(CUdevice device)
{
	unsigned long long bytes = 0;
	for (const struct shared *s = shareds; s; s = s->next)
		bytes += s->device == device ? s->bytes : 0;
	for (const struct left *l = lefts; l; l = l->next)
		bytes += l->device == device ? GRANULES(l->bytes) : 0;
	return bytes;
}

static bool forget_left(CUdeviceptr address)
{
	for (struct left **at = &lefts; *at; at = &(*at)->next)
		if ((*at)->address == address) {
			struct left *gone = *at;
			*at = gone->next;
			free(gone);
			return true;
		}
	return false;
}

bool graphs_free(CUdeviceptr address)
{
	pthread_mutex_lock(&graphs_lock);
	bool found = forget_left(address);
	pthread_mutex_unlock(&graphs_lock);
	return found;
}

/* Whether allocations of an earlier launch are left. */
static bool has_left(const struct executable *e)
{
	for (const struct left *l = lefts; l; l = l->next)
		for (size_t i = 0; i < e->count; i++)
			if (e->items[i].bytes && l->address == e->items[i].address)
				return true;
	return false;
}

/* Reserves what is not there. What was reserved and is used by nothing serves first. */
static CUresult grow(CUdevice device, size_t bytes)
{
	unsigned long long idle = reserved[device] - used(device), more = bytes > idle ? bytes - idle : 0;
	CUresult r = more ? device_use(device_at(device), (long long)more) : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS)
		reserved[device] += more;
	reserved_high[device] = reserved[device] > reserved_high[device] ? reserved[device] : reserved_high[device];
	return r;
}

/* Maps memory for a launch's allocations on one device. */
static CUresult map_device(const struct executable *e, const struct context *c, CUdevice device)
{
	struct shared *s = shared_of(c, device);
	size_t together = 0, apart = 0;
	NEED(s, CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 0; i < e->count; i++)
		if (e->items[i].bytes && e->items[i].device == device) {
			if (e->items[i].freed)
				together += GRANULES(e->items[i].bytes);
			else
				apart += GRANULES(e->items[i].bytes);
		}
	size_t more = together > s->bytes ? together - s->bytes : 0;
	CUresult r = grow(device, more + apart);
	if (r != CUDA_SUCCESS)
		return r;
	s->bytes += more;
	unsigned long long now = used(device) + apart;
	used_high[device] = now > used_high[device] ? now : used_high[device];
	return r;
}

/*
 * Maps what a launch needs. "If any allocations created by hGraphExec remain unfreed (from a previous launch) and hGraphExec was not
 * instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, the launch will fail with CUDA_ERROR_INVALID_VALUE."
 */
static CUresult map(const struct executable *e, const struct context *c, bool launch)
{
	if (has_left(e) && !(e->flags & AUTO_FREE_ON_LAUNCH))
		return launch ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (size_t i = 0; launch && i < e->count; i++)
		forget_left(e->items[i].address); /* its own, and those of others that it frees */
	for (CUdevice d = 0; e->count && d < devices_count(); d++) {
		CUresult r = map_device(e, c, d);
		if (r != CUDA_SUCCESS)
			return r;
	}
	for (size_t i = 0; launch && i < e->count; i++)
		if (e->items[i].bytes && !e->items[i].freed) {
			struct left *l = malloc(sizeof *l);
			NEED(l, CUDA_ERROR_OUT_OF_MEMORY);
			*l = (struct left){e->items[i].address, e->items[i].device, e->items[i].bytes, e, lefts};
			lefts = l;
		}
	return CUDA_SUCCESS;
}

static CUresult mapped(const struct executable *e, const struct context *c, bool launch)
{
	pthread_mutex_lock(&graphs_lock);
	CUresult r = map(e, c, launch);
	pthread_mutex_unlock(&graphs_lock);
	return r;
}

/* "Uploads hGraphExec to the device in hStream without executing it": its memory is mapped. */
EXPORT CUresult cuGraphUpload(CUgraphExec e, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	return mapped(e, current, false);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	if (g)
		return e->count ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : graphs_capture(g, e->microseconds);
	CUresult r = mapped(e, current, true);
	return r == CUDA_SUCCESS ? launch_run(current, e->microseconds) : r;
}

/* What it has reserved stays (the guide, "Physical Memory Footprint"). */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&graphs_lock);
	if (e->of)
		e->of->instantiated = NULL;
	pthread_mutex_unlock(&graphs_lock);
	free(e->items);
	free(e);
	return CUDA_SUCCESS;
}

/* "Allocations that have not been freed and graphs that are scheduled or running are considered to be actively using the physical memory."
 */
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice number)
{
	NEED_DEVICE(number);
	NEED_SAFE();
	unsigned long long now = launch_now();
	pthread_mutex_lock(&graphs_lock);
	for (struct shared *s = shareds; s; s = s->next)
		if (s->device == number && (s->context->destroyed || s->context->busy_until <= now))
			s->bytes = 0;
	unsigned long long idle = reserved[number] - used(number);
	if (idle && device_use(device, -(long long)idle) == CUDA_SUCCESS)
		reserved[number] -= idle;
	pthread_mutex_unlock(&graphs_lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice number, int attribute, void *value)
{
	NEED_DEVICE(number);
	NEED_SAFE();
	(void)device;
	NEED(value && attribute >= USED_MEM_CURRENT && attribute <= RESERVED_MEM_HIGH, CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&graphs_lock);
	*(unsigned long long *)value = (unsigned long long[]){used(number), used_high[number], reserved[number], reserved_high[number]}[attribute];
	pthread_mutex_unlock(&graphs_lock);
	return CUDA_SUCCESS;
}

/* Only the high ones can be set, and to 0 alone. */
EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice number, int attribute, void *value)
{
	NEED_DEVICE(number);
	NEED_SAFE();
	(void)device;
	NEED(value && *(unsigned long long *)value == 0 && (attribute == USED_MEM_HIGH || attribute == RESERVED_MEM_HIGH),
		CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&graphs_lock);
	if (attribute == USED_MEM_HIGH)
		used_high[number] = used(number);
	else
		reserved_high[number] = reserved[number];
	pthread_mutex_unlock(&graphs_lock);
	return CUDA_SUCCESS;
}
