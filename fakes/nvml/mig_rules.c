#include "mig_rules.h"

#include <string.h>

struct ff_gpu_instance *ff_mig_gi(struct ff_gpu *gpu, unsigned int id)
{
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
		if (gpu->instances[i].used && gpu->instances[i].id == id)
			return &gpu->instances[i];
	return NULL;
}

struct ff_compute_instance *ff_mig_ci(struct ff_gpu_instance *gi, unsigned int id)
{
	for (int i = 0; gi && i < FF_MAX_COMPUTE_INSTANCES; i++)
		if (gi->computes[i].used && gi->computes[i].id == id)
			return &gi->computes[i];
	return NULL;
}

int ff_mig_profile_index(const struct ff_model *model, unsigned int profile_id)
{
	for (unsigned int i = 0; i < model->mig_profile_count && i < FF_MAX_MIG_PROFILES; i++)
		if (model->mig_profiles[i].id == profile_id)
			return (int)i;
	return -1;
}

int ff_mig_ci_profile_index(const struct ff_mig_profile *profile, unsigned int profile_id)
{
	for (unsigned int i = 0; i < profile->ci_count && i < FF_MAX_CI_PROFILES; i++)
		if (profile->ci_profiles[i].id == profile_id)
			return (int)i;
	return -1;
}

/* The memory slices that are taken, one bit each. */
static uint32_t taken(const struct ff_model *model, const struct ff_gpu *gpu)
{
	uint32_t bits = 0;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++) {
		const struct ff_gpu_instance *g = &gpu->instances[i];
		if (g->used && g->profile < FF_MAX_MIG_PROFILES && g->start < 32)
			bits |= ((1u << (model->mig_profiles[g->profile].size & 31)) - 1) << g->start;
	}
	return bits;
}

static uint32_t span(const struct ff_mig_profile *p, unsigned int placement)
{
	return ((1u << (p->size & 31)) - 1) << (p->starts[placement] & 31);
}

static unsigned int placements(const struct ff_mig_profile *p)
{
	return p->placement_count < FF_MAX_PLACEMENTS ? p->placement_count : FF_MAX_PLACEMENTS;
}

static unsigned int existing(const struct ff_gpu *gpu, unsigned int profile)
{
	unsigned int n = 0;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
		n += gpu->instances[i].used && gpu->instances[i].profile == profile;
	return n;
}

static unsigned int compute_slices(const struct ff_model *model, const struct ff_gpu *gpu)
{
	unsigned int n = 0;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
		if (gpu->instances[i].used && gpu->instances[i].profile < FF_MAX_MIG_PROFILES)
			n += model->mig_profiles[gpu->instances[i].profile].slices;
	return n;
}

unsigned int ff_mig_capacity(const struct ff_model *model, const struct ff_gpu *gpu, unsigned int profile)
{
	const struct ff_mig_profile *p = &model->mig_profiles[profile];
	uint32_t bits = taken(model, gpu);
	unsigned int fits = 0, have = existing(gpu, profile), used = compute_slices(model, gpu);
	for (unsigned int i = 0; i < placements(p); i++)
		if (!(bits & span(p, i))) {
			bits |= span(p, i);
			fits++;
		}
	unsigned int by_count = p->max > have ? p->max - have : 0;
	unsigned int by_slices = p->slices && model->mig_slices > used ? (model->mig_slices - used) / p->slices : 0;
	unsigned int least = fits < by_count ? fits : by_count;
	return least < by_slices ? least : by_slices;
}

/* How many placements, of all profiles, are free with these slices taken. */
static unsigned int open_placements(const struct ff_model *model, uint32_t bits)
{
	unsigned int n = 0;
	for (unsigned int i = 0; i < model->mig_profile_count && i < FF_MAX_MIG_PROFILES; i++)
		for (unsigned int j = 0; j < placements(&model->mig_profiles[i]); j++)
			n += !(bits & span(&model->mig_profiles[i], j));
	return n;
}

/* The free placement that leaves most other placements free, the lowest of several; -1 when there is none. */
static int best_placement(const struct ff_model *model, const struct ff_gpu *gpu, unsigned int profile)
{
	const struct ff_mig_profile *p = &model->mig_profiles[profile];
	uint32_t bits = taken(model, gpu);
	int best = -1;
	unsigned int most = 0;
	for (unsigned int i = 0; i < placements(p); i++) {
		if (bits & span(p, i))
			continue;
		unsigned int left = open_placements(model, bits | span(p, i));
		if (best < 0 || left > most) {
			best = (int)i;
			most = left;
		}
	}
	return best;
}

/* IDs follow the placement: the whole is 0, halves 1 and 2, quarters 3 to 6, eighths 7 to 14. */
static unsigned int instance_id(const struct ff_model *model, unsigned int start, unsigned int size)
{
	unsigned int parts = model->mig_memory_slices / (size ? size : 1);
	return (parts ? parts : 1) - 1 + start / (size ? size : 1);
}

nvmlReturn_t ff_mig_create_gi(const struct ff_model *model, struct ff_gpu *gpu, unsigned int profile, unsigned int start, unsigned int *id)
{
	const struct ff_mig_profile *p = &model->mig_profiles[profile];
	struct ff_gpu_instance *slot = NULL;
	if (!gpu->core.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	if (gpu->core.mig_busy)
		return NVML_ERROR_IN_USE;
	if (start != FF_NONE) {
		unsigned int i = 0;
		while (i < placements(p) && p->starts[i] != start)
			i++;
		if (i == placements(p))
			return NVML_ERROR_INVALID_ARGUMENT;
		if (taken(model, gpu) & span(p, i))
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
	} else {
		int i = best_placement(model, gpu, profile);
		if (i < 0)
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
		start = p->starts[i];
	}
	if (!ff_mig_capacity(model, gpu, profile))
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES && !slot; i++)
		if (!gpu->instances[i].used)
			slot = &gpu->instances[i];
	*id = instance_id(model, start, p->size);
	if (!slot || *id >= FF_GI_IDS)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	memset(slot, 0, sizeof *slot);
	slot->used = 1;
	slot->id = *id;
	slot->profile = profile;
	slot->start = start;
	return NVML_SUCCESS;
}

static bool has_process(const struct ff_gpu *gpu, unsigned int gi, unsigned int ci)
{
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		const struct ff_process *p = &gpu->processes[i];
		if (p->pid && (gi == FF_NONE || (p->gpu_instance == gi && (ci == FF_NONE || p->compute_instance == ci))))
			return true;
	}
	return false;
}

nvmlReturn_t ff_mig_destroy_gi(struct ff_gpu *gpu, unsigned int id)
{
	struct ff_gpu_instance *g = ff_mig_gi(gpu, id);
	if (!g)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->core.mig_busy || has_process(gpu, id, FF_NONE))
		return NVML_ERROR_IN_USE;
	for (int i = 0; i < FF_MAX_COMPUTE_INSTANCES; i++)
		if (g->computes[i].used)
			return NVML_ERROR_IN_USE;
	memset(g, 0, sizeof *g);
	return NVML_SUCCESS;
}

/* The compute slices of a GPU instance that are taken, one bit each. */
static uint32_t ci_taken(const struct ff_mig_profile *p, const struct ff_gpu_instance *gi)
{
	uint32_t bits = 0;
	for (int i = 0; i < FF_MAX_COMPUTE_INSTANCES; i++) {
		const struct ff_compute_instance *c = &gi->computes[i];
		if (c->used && c->profile < FF_MAX_CI_PROFILES && c->start < 32)
			bits |= ((1u << (p->ci_profiles[c->profile].slices & 31)) - 1) << c->start;
	}
	return bits;
}

static int ci_placement(const struct ff_mig_profile *p, uint32_t bits, unsigned int slices)
{
	/* A damaged profile may have more slices than the mask has bits. */
	for (unsigned int start = 0; slices && slices < 32 && start + slices <= p->slices && start < 8; start++)
		if (!(bits & ((1u << (slices & 31)) - 1) << start))
			return (int)start;
	return -1;
}

unsigned int ff_mig_ci_capacity(const struct ff_mig_profile *p, const struct ff_gpu_instance *gi, unsigned int ci_profile)
{
	uint32_t bits = ci_taken(p, gi);
	unsigned int slices = p->ci_profiles[ci_profile].slices, n = 0;
	for (int start; (start = ci_placement(p, bits, slices)) >= 0; n++)
		bits |= ((1u << (slices & 31)) - 1) << start;
	return n;
}

/* A MIG device's UUID depends on its GPU and its place, so that the same layout has the same UUIDs again. */
static void mig_uuid(const struct ff_gpu *gpu, unsigned int gi, unsigned int ci, unsigned char out[16])
{
	uint64_t x = 0xcbf29ce484222325u;
	for (int i = 0; i < 16; i++)
		x = (x ^ gpu->core.uuid[i]) * 0x100000001b3u;
	x = (x ^ gi) * 0x100000001b3u;
	x = (x ^ ci) * 0x100000001b3u;
	for (int i = 0; i < 16; i++) {
		x = (x ^ (uint64_t)i) * 0x100000001b3u;
		out[i] = (unsigned char)(x >> 32);
	}
	out[6] = (out[6] & 0x0f) | 0x50;
	out[8] = (out[8] & 0x3f) | 0x80;
}

nvmlReturn_t ff_mig_create_ci(
	const struct ff_model *model, struct ff_gpu *gpu, unsigned int gi, unsigned int ci_profile, unsigned int start, unsigned int *id)
{
	struct ff_gpu_instance *g = ff_mig_gi(gpu, gi);
	if (!g || g->profile >= FF_MAX_MIG_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->core.mig_busy)
		return NVML_ERROR_IN_USE;
	const struct ff_mig_profile *p = &model->mig_profiles[g->profile];
	unsigned int slices = p->ci_profiles[ci_profile].slices;
	uint32_t bits = ci_taken(p, g);
	if (start == FF_NONE) {
		int place = ci_placement(p, bits, slices);
		if (place < 0)
			return NVML_ERROR_INSUFFICIENT_RESOURCES;
		start = (unsigned int)place;
	} else if (start + slices > p->slices || start >= 8) {
		return NVML_ERROR_INVALID_ARGUMENT;
	} else if (bits & ((1u << (slices & 31)) - 1) << start) {
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	}
	*id = 0;
	while (ff_mig_ci(g, *id))
		(*id)++;
	for (int i = 0; i < FF_MAX_COMPUTE_INSTANCES; i++) {
		struct ff_compute_instance *c = &g->computes[i];
		if (c->used)
			continue;
		*c = (struct ff_compute_instance){.used = 1, .id = *id, .profile = ci_profile, .start = start};
		mig_uuid(gpu, gi, *id, c->uuid);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t ff_mig_destroy_ci(struct ff_gpu *gpu, unsigned int gi, unsigned int id)
{
	struct ff_compute_instance *c = ff_mig_ci(ff_mig_gi(gpu, gi), id);
	if (!c)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->core.mig_busy || has_process(gpu, gi, id))
		return NVML_ERROR_IN_USE;
	memset(c, 0, sizeof *c);
	return NVML_SUCCESS;
}

/* NVML_DEVICE_ARCH_AMPERE: a change of mode waits for a reset. Package mig names the source. */
#define AMPERE 7

nvmlReturn_t ff_mig_set_mode(const struct ff_model *model, struct ff_gpu *gpu, unsigned int mode, nvmlReturn_t *activation)
{
	bool instances = false;
	if (!model->mig_profile_count)
		return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
		instances |= gpu->instances[i].used;
	gpu->core.mig_pending = mode;
	*activation = NVML_SUCCESS;
	if (gpu->core.mig_current == mode)
		return NVML_SUCCESS;
	if (gpu->core.mig_busy || instances || has_process(gpu, FF_NONE, FF_NONE))
		*activation = NVML_ERROR_IN_USE;
	else if (model->architecture == AMPERE)
		*activation = ff_state_other_clients() ? NVML_ERROR_IN_USE : NVML_ERROR_RESET_REQUIRED;
	else
		gpu->core.mig_current = mode;
	return NVML_SUCCESS;
}

nvmlReturn_t ff_mig_reset(struct ff_gpu *gpu)
{
	if (gpu->core.mig_busy || has_process(gpu, FF_NONE, FF_NONE) || ff_state_other_clients())
		return NVML_ERROR_IN_USE;
	gpu->core.mig_current = gpu->core.mig_pending;
	gpu->core.compute_mode = 0;
	gpu->core.time_slice = 0;
	memset(gpu->instances, 0, sizeof gpu->instances);
	return NVML_SUCCESS;
}

nvmlReturn_t ff_mig_read(unsigned int gpu, struct ff_gpu *g, struct ff_model *m)
{
	nvmlReturn_t r = ff_model(m);
	if (r != NVML_SUCCESS)
		return r;
	if (!ff_state_copy(ff_gpu_offset(gpu), g, sizeof *g))
		return NVML_ERROR_UNKNOWN;
	if (g->core.lost)
		return NVML_ERROR_GPU_IS_LOST;
	return m->mig_profile_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
