#define _GNU_SOURCE
#include "device.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "cgroup.h"
#include "memory_limits.h"
#include "process.h"

#define MOST (FF_MAX_GPUS * FF_MAX_GPU_INSTANCES)

static struct device devices[MOST];
static int count;

int devices_count(void)
{
	return count;
}

const struct device *device_at(CUdevice number)
{
	return number >= 0 && number < count ? &devices[number] : NULL;
}

static void text_of(char out[48], const char *prefix, const unsigned char *u)
{
	int n = sprintf(out, "%s", prefix);
	for (int i = 0; i < 16; i++)
		n += sprintf(out + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

/* Whether one word of CUDA_VISIBLE_DEVICES means this device: its number among all, or the beginning of its UUID. */
static bool meant(const char *word, size_t length, int number, const struct device *d)
{
	char uuid[48], *end;
	if (isdigit((unsigned char)word[0])) {
		long n = strtol(word, &end, 10);
		return end == word + length && n == number;
	}
	text_of(uuid, d->gi == FF_NONE ? "GPU-" : "MIG-", d->uuid);
	return length >= 4 && strncmp(word, uuid, length) == 0;
}

static void keep_visible(const char *visible)
{
	struct device all[MOST];
	int total = count;
	memcpy(all, devices, sizeof(struct device) * (size_t)total);
	count = 0;
	while (*visible) {
		size_t length = strcspn(visible, ",");
		bool found = false;
		for (int i = 0; i < total && !found; i++)
			if ((found = meant(visible, length, i, &all[i])))
				devices[count++] = all[i];
		if (!found || count == MOST)
			return; /* as CUDA does: what follows an unknown word is not looked at */
		visible += length;
		visible += *visible == ',';
	}
}

static void add_mig(const struct ff_model *m, const struct ff_gpu *g, unsigned int gpu)
{
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++) {
		const struct ff_gpu_instance *gi = &g->instances[i];
		if (!gi->used || gi->profile >= FF_MAX_MIG_PROFILES)
			continue;
		const struct ff_mig_profile *p = &m->mig_profiles[gi->profile];
		for (int j = 0; j < FF_MAX_COMPUTE_INSTANCES && count < MOST; j++) {
			const struct ff_compute_instance *ci = &gi->computes[j];
			if (!ci->used || ci->profile >= FF_MAX_CI_PROFILES)
				continue;
			struct device *d = &devices[count++];
			*d = (struct device){.gpu = gpu, .gi = gi->id, .ci = ci->id, .memory = p->memory_mib << 20,
					     .multiprocessors = p->ci_profiles[ci->profile].multiprocessors, .core = g->core};
			memcpy(d->uuid, ci->uuid, 16);
		}
	}
}

CUresult devices_find(void)
{
	static struct ff_model m;
	static struct ff_gpu g;
	unsigned int gpus;
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	count = 0;
	if (!ff_state_gpus(&gpus) || !ff_state_copy(offsetof(struct ff_node, model), &m, sizeof m))
		return CUDA_ERROR_NO_DEVICE;
	for (unsigned int i = 0; i < gpus && count < MOST; i++) {
		if (!ff_state_copy(ff_gpu_offset(i), &g, sizeof g) || g.core.lost)
			continue;
		if (g.core.mig_current) {
			add_mig(&m, &g, i);
			continue;
		}
		struct device *d = &devices[count++];
		*d = (struct device){.gpu = i, .gi = FF_NONE, .ci = FF_NONE, .memory = m.memory_total - m.memory_reserved,
				     .multiprocessors = m.multiprocessors, .core = g.core};
		memcpy(d->uuid, g.core.uuid, 16);
	}
	if (visible)
		keep_visible(visible);
	return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* A change of this process's entry. */
struct use {
	const struct device *device;
	long long delta;
	unsigned long long run, end;
	CUresult result;
};

static unsigned long long now(void)
{
	struct timeval t;
	gettimeofday(&t, NULL);
	return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_usec;
}

static bool mine(const struct ff_process *p, const struct device *d)
{
	return p->pid == (uint32_t)getpid() && p->namespace == ff_pid_namespace() && p->gpu_instance == d->gi && p->compute_instance == d->ci;
}

/* What others and this process use of the device. */
static uint64_t used(const struct ff_gpu *g, const struct device *d)
{
	uint64_t total = d->gi == FF_NONE ? g->core.memory_used : 0;
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		const struct ff_process *p = &g->processes[i];
		if (p->pid && (d->gi == FF_NONE || (p->gpu_instance == d->gi && p->compute_instance == d->ci)))
			total += p->memory;
	}
	return total;
}

/* When the device has done what it was given by all processes. */
static unsigned long long idle_at(const struct ff_gpu *g, const struct device *d)
{
	unsigned long long at = now();
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		const struct ff_process *p = &g->processes[i];
		if (p->pid && p->gpu_instance == d->gi && p->compute_instance == d->ci && p->busy_until > at)
			at = p->busy_until;
	}
	return at;
}

static struct ff_process *entry(struct ff_gpu *g, const struct device *d, CUresult *why)
{
	struct ff_process *empty = NULL;
	bool others = false;
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		struct ff_process *p = &g->processes[i];
		if (mine(p, d))
			return p;
		others |= p->pid != 0;
		if (!p->pid && !empty)
			empty = p;
	}
	/* Compute modes: 2 allows no context, 3 those of one process only. */
	*why = CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (g->core.compute_mode == 2 || (g->core.compute_mode == 3 && others) || !empty)
		return NULL;
	*empty = (struct ff_process){.pid = (uint32_t)getpid(), .namespace = ff_pid_namespace(), .gpu_instance = d->gi, .compute_instance = d->ci};
	snprintf(empty->name, sizeof empty->name, "%s", program_invocation_name);
	ff_cgroups_mine(empty->cgroups);
	ff_process_hold();
	return empty;
}

static bool change(struct ff_node *node, struct ff_gpu *gpus, unsigned int gpu_count, void *argument)
{
	struct use *u = argument;
	(void)node;
	u->result = CUDA_ERROR_INVALID_DEVICE;
	if (u->device->gpu >= gpu_count)
		return false;
	struct ff_gpu *g = &gpus[u->device->gpu];
	ff_sweep(g);
	u->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (g->core.lost)
		return false;
	struct ff_process *p = entry(g, u->device, &u->result);
	if (!p)
		return false;
	u->result = CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t all = used(g, u->device);
	if (u->delta > 0 && all + (uint64_t)u->delta > u->device->memory)
		return false;
	if (u->delta > 0 && u->device->gi == FF_NONE && ff_memory_denied(g, p, (uint64_t)u->delta, u->device->memory - all))
		return false;
	p->memory = (uint64_t)((long long)p->memory + u->delta);
	if (u->run) {
		p->busy_until = idle_at(g, u->device) + u->run;
	}
	u->end = p->busy_until;
	u->result = CUDA_SUCCESS;
	return true;
}

static CUresult apply(struct use *u)
{
	switch (ff_state_update(change, u)) {
	case FF_UPDATED:
	case FF_UPDATE_REFUSED:
		return u->result;
	case FF_UPDATE_NO_PERMISSION:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_UNKNOWN;
	}
}

CUresult device_use(const struct device *d, long long delta)
{
	struct use u = {.device = d, .delta = delta};
	return apply(&u);
}

CUresult device_run(const struct device *d, unsigned long long microseconds, unsigned long long *end)
{
	struct use u = {.device = d, .run = microseconds};
	CUresult r = apply(&u);
	*end = u.end;
	return r;
}

CUresult device_memory(const struct device *d, size_t *available, size_t *total)
{
	static struct ff_gpu g;
	uint64_t most, mine;
	if (!ff_state_copy(ff_gpu_offset(d->gpu), &g, sizeof g))
		return CUDA_ERROR_UNKNOWN;
	ff_sweep(&g);
	uint64_t u = used(&g, d);
	*available = u < d->memory ? d->memory - u : 0;
	*total = d->memory;
	if (g.core.memory_limits && d->gi == FF_NONE && ff_memory_slice(d->gpu, &most, &mine)) {
		uint64_t left = mine < most ? most - mine : 0;
		*total = most;
		*available = left < *available ? left : *available;
	}
	return CUDA_SUCCESS;
}

static bool leave(struct ff_node *node, struct ff_gpu *gpus, unsigned int gpu_count, void *argument)
{
	(void)node;
	(void)argument;
	for (unsigned int i = 0; i < gpu_count; i++)
		for (int j = 0; j < FF_MAX_PROCESSES; j++) {
			struct ff_process *p = &gpus[i].processes[j];
			if (p->pid == (uint32_t)getpid() && p->namespace == ff_pid_namespace())
				memset(p, 0, sizeof *p);
		}
	return true;
}

void devices_leave(void)
{
	ff_state_update(leave, NULL);
}
