/*
 * HAMi-core's shared region, layout 1.2, as far as monitors read it: a copy of the account (ledger.h), on which no decision depends.
 * gpufabric.io/drivers/gpu/limiter/region and HAMi's own monitor read it at these offsets.
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
	_Atomic uint64_t context, module, data; /* the parts of the total */
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

/* Reports whether a region was made for these limits. */
static inline bool region_is(const struct region *r, const struct limits *l)
{
	bool same = r->magic == REGION_MAGIC && r->major == 1 && r->minor == 2 && r->devices == (uint64_t)l->count;
	for (int i = 0; same && i < l->count; i++)
		same = strncmp(r->uuids[i], l->devices[i].uuid, sizeof r->uuids[i]) == 0 && r->memory[i] == l->devices[i].memory;
	return same;
}

static inline void region_make(struct region *r, const struct limits *l)
{
	memset((void *)r, 0, offsetof(struct region, processes));
	atomic_store(&r->process_count, 0); /* a slot is cleared when it is taken */
	r->utilization_switch = r->recent_kernel = 0;
	r->last_kernel = 0;
	r->major = 1;
	r->minor = 2;
	r->initialised = 1;
	r->devices = (uint64_t)l->count;
	for (int i = 0; i < l->count; i++) {
		memcpy(r->uuids[i], l->devices[i].uuid, UUID_BYTES);
		r->memory[i] = l->devices[i].memory;
		r->cores[i] = l->devices[i].cores;
	}
	r->priority = 1; /* the lower priority, which every container has */
	r->magic = REGION_MAGIC;
}

static inline void region_take(struct region *r, int slot, int pid)
{
	memset((void *)&r->processes[slot], 0, sizeof r->processes[slot]);
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

/* The GPU memory of a process, and the part of its contexts and modules. */
static inline void region_show(struct region *r, int slot, int device, uint64_t total, uint64_t contexts, uint64_t modules)
{
	struct region_memory *m = &r->processes[slot].used[device];
	atomic_store(&m->total, total);
	atomic_store_explicit(&m->context, contexts, memory_order_relaxed);
	atomic_store_explicit(&m->module, modules, memory_order_relaxed);
	atomic_store_explicit(&m->data, total > contexts + modules ? total - contexts - modules : 0, memory_order_relaxed);
}
