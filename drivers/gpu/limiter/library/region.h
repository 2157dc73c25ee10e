/*
 * HAMi-core's shared region, layout 1.2, as far as monitors read it. The offsets are those that gpufabric.io/drivers/gpu/limiter/region reads by, and
 * HAMi's own monitor does.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "limits.h"

#define REGION_SLOTS 1024
#define REGION_MAGIC 19920718

struct region_memory {
	_Atomic uint64_t context, module, data; /* what the total consists of */
	uint64_t offset;
	_Atomic uint64_t total;
	uint64_t unused[3];
};

struct region_process {
	_Atomic int32_t pid;
	int32_t host_pid;
	struct region_memory used[MOST_DEVICES];
	uint64_t monitor_used[MOST_DEVICES];
	uint64_t utilization[MOST_DEVICES][6];
	int32_t status;
	int32_t unused;
	_Atomic uint64_t sequence;
	uint64_t more[2];
};

struct region {
	int32_t magic, major, minor, initialised;
	uint64_t owner;
	unsigned char semaphore[32];
	uint64_t devices;
	char uuids[MOST_DEVICES][96];
	uint64_t memory[MOST_DEVICES], cores[MOST_DEVICES];
	struct region_process processes[REGION_SLOTS];
	_Atomic int32_t process_count;
	int32_t utilization_switch, recent_kernel, priority;
	int64_t last_kernel;
	uint64_t unused[4];
};

_Static_assert(offsetof(struct region, devices) == 56, "the layout's");
_Static_assert(offsetof(struct region, uuids) == 64, "the layout's");
_Static_assert(offsetof(struct region, memory) == 1600, "the layout's");
_Static_assert(offsetof(struct region, cores) == 1728, "the layout's");
_Static_assert(offsetof(struct region, processes) == 1856, "the layout's");
_Static_assert(sizeof(struct region_process) == 1960, "the layout's");
_Static_assert(offsetof(struct region_process, status) == 1928, "the layout's");
_Static_assert(offsetof(struct region_process, sequence) == 1936, "the layout's");
_Static_assert(offsetof(struct region, process_count) == 2008896, "the layout's");
_Static_assert(offsetof(struct region, last_kernel) == 2008912, "the layout's");
_Static_assert(sizeof(struct region) == 2008952, "the layout's");

/* The file is one byte longer than the region. */
#define REGION_FILE (sizeof(struct region) + 1)

/* Whether a region was made for these limits. */
static inline bool region_is(const struct region *r, const struct limits *l)
{
	bool same = r->magic == REGION_MAGIC && r->major == 1 && r->minor == 2 && r->devices == (uint64_t)l->count;
	for (int i = 0; same && i < l->count; i++)
		same = strncmp(r->uuids[i], l->devices[i].uuid, sizeof r->uuids[i]) == 0 && r->memory[i] == l->devices[i].memory;
	return same;
}

static inline void region_make(struct region *r, const struct limits *l)
{
	memset((void *)r, 0, sizeof *r);
	r->major = 1;
	r->minor = 2;
	r->initialised = 1;
	r->devices = (uint64_t)l->count;
	for (int i = 0; i < l->count; i++) {
		memcpy(r->uuids[i], l->devices[i].uuid, UUID_BYTES);
		r->memory[i] = l->devices[i].memory;
		r->cores[i] = l->devices[i].cores;
	}
	r->priority = 1; /* the lower one, which is every container's */
	r->magic = REGION_MAGIC;
}

static inline uint64_t region_has(struct region *r, int slot, int device)
{
	return atomic_load(&r->processes[slot].used[device].total);
}

/* A new process finds its slot cleared. */
static inline void region_take(struct region *r, int slot, int pid)
{
	r->processes[slot].status = 1;
	atomic_store(&r->processes[slot].pid, pid);
	if (atomic_load(&r->process_count) < slot + 1)
		atomic_store(&r->process_count, slot + 1);
}

static inline void region_clear(struct region *r, int slot)
{
	struct region_process *p = &r->processes[slot];
	atomic_store(&p->pid, 0);
	for (int d = 0; d < MOST_DEVICES; d++) {
		atomic_store(&p->used[d].total, 0);
		atomic_store(&p->used[d].data, 0);
		atomic_store(&p->used[d].context, 0);
		atomic_store(&p->used[d].module, 0);
	}
}

static inline void region_add(struct region *r, int slot, int device, uint64_t bytes)
{
	atomic_fetch_add(&r->processes[slot].used[device].total, bytes);
	atomic_fetch_add_explicit(&r->processes[slot].used[device].data, bytes, memory_order_relaxed);
}

static inline void region_take_away(struct region *r, int slot, int device, uint64_t bytes)
{
	atomic_fetch_sub(&r->processes[slot].used[device].total, bytes);
	atomic_fetch_sub_explicit(&r->processes[slot].used[device].data, bytes, memory_order_relaxed);
}

/* What a process has as its contexts (0) or modules (1). */
static inline _Atomic uint64_t *region_overhead(struct region *r, int slot, int device, int kind)
{
	struct region_memory *m = &r->processes[slot].used[device];
	return kind == 0 ? &m->context : &m->module;
}

/* Says so many bytes of the total to be contexts or modules, and the rest data. */
static inline void region_kind(struct region *r, int slot, int device, int kind, uint64_t bytes)
{
	uint64_t had = atomic_exchange(region_overhead(r, slot, device, kind), bytes);
	atomic_fetch_add(&r->processes[slot].used[device].data, had - bytes);
}
