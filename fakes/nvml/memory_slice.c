/* What limits of memory mean for processes. CUDA's stand-in has this part too. */
#include "memory_limits.h"

#include "cgroup.h"
#include "process.h"

static uint64_t used_by(const struct ff_gpu *g, uint64_t cgroup)
{
	uint64_t sum = 0;
	for (int i = 0; i < FF_MAX_PROCESSES; i++)
		if (ff_cgroup_of(&g->processes[i], cgroup))
			sum += g->processes[i].memory;
	return sum;
}

bool ff_memory_slice(unsigned int gpu, uint64_t *total, uint64_t *used)
{
	static __thread struct ff_gpu g;
	uint64_t mine[FF_MAX_CGROUPS];
	if (!ff_state_copy(ff_gpu_offset(gpu), &g, sizeof g))
		return false;
	ff_cgroups_mine(mine);
	for (int i = 0; mine[0] && i < FF_MAX_MEMORY_LIMITS; i++) {
		if (g.limits[i].cgroup != mine[0] || g.limits[i].hard == UINT64_MAX)
			continue;
		ff_sweep(&g);
		*total = g.limits[i].hard;
		*used = used_by(&g, mine[0]);
		return true;
	}
	return false;
}

bool ff_memory_denied(const struct ff_gpu *g, const struct ff_process *p, uint64_t bytes, uint64_t available)
{
	uint64_t reserved = 0;
	bool guaranteed = false;
	for (int i = 0; i < FF_MAX_MEMORY_LIMITS; i++) {
		const struct ff_memory_limit *l = &g->limits[i];
		uint64_t used = used_by(g, l->cgroup);
		if (ff_cgroup_of(p, l->cgroup)) {
			if (l->hard != UINT64_MAX && used + bytes > l->hard)
				return true;
			guaranteed |= used + bytes <= l->soft;
		} else if (used < l->soft) {
			reserved += l->soft - used;
		}
	}
	return bytes > available || (!guaranteed && reserved > available - bytes);
}
