/* nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1. The rules are those that nvml.h has beside them, and those of NVIDIA's
 * documentation of MPS (memory partitioning): cgroup v2, no MIG. What is not documented is refused rather than done. */
#include "cgroup.h"
#include "process.h"
#include "target.h"

struct change {
	unsigned int gpu;
	struct ff_memory_limit to;
	nvmlReturn_t result;
};

static bool set(struct ff_node *node, struct ff_gpu *gpus, unsigned int count, void *argument)
{
	(void)node;
	struct change *c = argument;
	struct ff_memory_limit *place = NULL;
	c->result = NVML_ERROR_UNKNOWN;
	if (c->gpu >= count)
		return false;
	struct ff_gpu *g = &gpus[c->gpu];
	for (int i = 0; i < FF_MAX_MEMORY_LIMITS; i++)
		if (g->limits[i].cgroup == c->to.cgroup)
			place = &g->limits[i];
	/* The limit of a removed cgroup holds nobody. What it reserved stays reserved by the cgroups above it. */
	for (int i = 0; i < FF_MAX_MEMORY_LIMITS && !place; i++)
		if (!g->limits[i].cgroup || !g->limits[i].soft)
			place = &g->limits[i];
	c->result = NVML_ERROR_INSUFFICIENT_RESOURCES;
	if (!place)
		return false;
	*place = c->to;
	if (!c->to.soft && c->to.hard == NVML_DEVICE_MEMORY_LIMIT_MAX)
		*place = (struct ff_memory_limit){0};
	g->core.memory_limits = 0;
	for (int i = 0; i < FF_MAX_MEMORY_LIMITS; i++)
		g->core.memory_limits += g->limits[i].cgroup != 0;
	c->result = NVML_SUCCESS;
	return true;
}

/* Whether a GPU takes limits: not in MIG mode, and not where it has no memory of its own. */
static nvmlReturn_t limitable(const struct ff_target *t)
{
	uint32_t integrated;
	if (!FF_MODEL(integrated, &integrated))
		return NVML_ERROR_UNKNOWN;
	return integrated || t->core.mig_current ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static bool within(unsigned long long limit, uint64_t total)
{
	return limit <= total || limit == NVML_DEVICE_MEMORY_LIMIT_MAX;
}

nvmlReturn_t impl_nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	uint64_t total;
	OUT(limits && limits->nameSpace);
	TARGET(ff_whole_gpu);
	if (!ff_state_administered())
		return NVML_ERROR_NO_PERMISSION;
	if ((r = limitable(&t)) != NVML_SUCCESS)
		return r;
	if (!FF_MODEL(memory_total, &total))
		return NVML_ERROR_UNKNOWN;
	OUT(limits->softLimit <= limits->hardLimit && limits->softLimit <= total && within(limits->hardLimit, total));
	struct change c = {.gpu = t.gpu, .to = {.soft = limits->softLimit, .hard = limits->hardLimit}};
	if (!ff_cgroup_named(limits->nameSpace, &c.to.cgroup))
		return NVML_ERROR_OPERATING_SYSTEM;
	switch (ff_state_update(set, &c)) {
	case FF_UPDATED:
	case FF_UPDATE_REFUSED:
		return c.result;
	case FF_UPDATE_NO_PERMISSION:
		return NVML_ERROR_NO_PERMISSION;
	default:
		return NVML_ERROR_UNKNOWN;
	}
}

nvmlReturn_t impl_nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	static __thread struct ff_gpu g;
	uint64_t cgroup;
	OUT(limits && limits->nameSpace);
	TARGET(ff_whole_gpu);
	if ((r = limitable(&t)) != NVML_SUCCESS)
		return r;
	if (!ff_cgroup_named(limits->nameSpace, &cgroup))
		return NVML_ERROR_OPERATING_SYSTEM;
	if (!ff_state_copy(ff_gpu_offset(t.gpu), &g, sizeof g))
		return NVML_ERROR_UNKNOWN;
	ff_sweep(&g);
	for (int i = 0; i < FF_MAX_MEMORY_LIMITS; i++) {
		if (g.limits[i].cgroup != cgroup)
			continue;
		limits->softLimit = g.limits[i].soft;
		limits->hardLimit = g.limits[i].hard;
		limits->currentUsed = 0;
		for (int p = 0; p < FF_MAX_PROCESSES; p++)
			if (ff_cgroup_of(&g.processes[p], cgroup))
				limits->currentUsed += g.processes[p].memory;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}
