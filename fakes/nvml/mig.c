/* NVML's MIG functions: look-ups here, rules in mig_rules.c, files of the capabilities in mig_files.c. */
#include "mig_files.h"
#include "mig_rules.h"
#include "process.h"
#include "settings.h"
#include "target.h"

#include <stdio.h>
#include <string.h>

/* A change of the layout: what is asked for, and what came of it. */
struct request {
	enum { SET_MODE, CREATE_GI, DESTROY_GI, CREATE_CI, DESTROY_CI, RESET } action;
	unsigned int gpu, gi, ci, profile_id, start, mode;
	nvmlReturn_t result, activation;
	unsigned int id, minor;
	/* What a reset takes away. */
	struct ff_gpu_instance instances[FF_MAX_GPU_INSTANCES];
};

static nvmlReturn_t apply(const struct ff_model *m, struct ff_gpu *g, struct request *q)
{
	if (g->core.lost)
		return NVML_ERROR_GPU_IS_LOST;
	switch (q->action) {
	case SET_MODE:
		return ff_mig_set_mode(m, g, q->mode, &q->activation);
	case CREATE_GI: {
		int p = ff_mig_profile_index(m, q->profile_id);
		return p < 0 ? NVML_ERROR_INVALID_ARGUMENT : ff_mig_create_gi(m, g, (unsigned int)p, q->start, &q->id);
	}
	case DESTROY_GI:
		return ff_mig_destroy_gi(g, q->gi);
	case CREATE_CI: {
		struct ff_gpu_instance *gi = ff_mig_gi(g, q->gi);
		if (!gi || gi->profile >= FF_MAX_MIG_PROFILES)
			return NVML_ERROR_INVALID_ARGUMENT;
		int p = ff_mig_ci_profile_index(&m->mig_profiles[gi->profile], q->profile_id);
		return p < 0 ? NVML_ERROR_NOT_SUPPORTED : ff_mig_create_ci(m, g, q->gi, (unsigned int)p, q->start, &q->id);
	}
	case DESTROY_CI:
		return ff_mig_destroy_ci(g, q->gi, q->ci);
	case RESET:
		memcpy(q->instances, g->instances, sizeof q->instances);
		return ff_mig_reset(g);
	}
	return NVML_ERROR_UNKNOWN;
}

static bool change(struct ff_node *node, struct ff_gpu *gpus, unsigned int count, void *argument)
{
	struct request *q = argument;
	q->result = NVML_ERROR_INVALID_ARGUMENT;
	if (q->gpu < count && node->model.mig_profile_count <= FF_MAX_MIG_PROFILES) {
		q->minor = gpus[q->gpu].core.minor;
		ff_sweep(&gpus[q->gpu]);
		q->result = apply(&node->model, &gpus[q->gpu], q);
	}
	if (q->result != NVML_SUCCESS)
		return false;
	/* Written before the change can be seen: a process that is killed in between leaves a file too many, not one too few. */
	if (q->action == CREATE_GI)
		ff_mig_files_add(q->minor, q->id, FF_NONE);
	else if (q->action == CREATE_CI)
		ff_mig_files_add(q->minor, q->gi, q->id);
	return true;
}

static void remove_files(const struct request *q)
{
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++) {
		const struct ff_gpu_instance *gi = &q->instances[i];
		if (!gi->used)
			continue;
		for (size_t c = 0; c < sizeof gi->computes / sizeof gi->computes[0]; c++)
			if (gi->computes[c].used)
				ff_mig_files_remove(q->minor, gi->id, gi->computes[c].id);
		ff_mig_files_remove(q->minor, gi->id, FF_NONE);
	}
}

static nvmlReturn_t perform(struct request *q)
{
	if (!ff_state_administered())
		return NVML_ERROR_NO_PERMISSION;
	switch (ff_state_update(change, q)) {
	case FF_UPDATE_NO_PERMISSION:
		return NVML_ERROR_NO_PERMISSION;
	case FF_UPDATE_GONE:
		return NVML_ERROR_UNKNOWN;
	default:
		break;
	}
	if (q->result != NVML_SUCCESS)
		return q->result;
	if (q->action == DESTROY_GI)
		ff_mig_files_remove(q->minor, q->gi, FF_NONE);
	else if (q->action == DESTROY_CI)
		ff_mig_files_remove(q->minor, q->gi, q->ci);
	else if (q->action == RESET)
		remove_files(q);
	return NVML_SUCCESS;
}

nvmlReturn_t ff_reset(nvmlDevice_t device)
{
	TARGET(ff_whole_gpu);
	struct request q = {.action = RESET, .gpu = t.gpu};
	return perform(&q);
}

nvmlReturn_t impl_nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
	OUT(activation && mode <= NVML_DEVICE_MIG_ENABLE);
	TARGET(ff_whole_gpu);
	struct request q = {.action = SET_MODE, .gpu = t.gpu, .mode = mode};
	r = perform(&q);
	*activation = q.activation;
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
	uint32_t profiles;
	OUT(now && pending);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(mig_profile_count, &profiles))
		return NVML_ERROR_UNKNOWN;
	if (!profiles)
		return NVML_ERROR_NOT_SUPPORTED;
	*now = t.core.mig_current;
	*pending = t.core.mig_pending;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	uint32_t most;
	OUT(count);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(mig_max_instances, &most))
		return NVML_ERROR_UNKNOWN;
	*count = t.core.mig_current ? most : 0;
	return NVML_SUCCESS;
}

/* Finds a GPU instance profile by NVML's enum (kind) or by its ID. */
static nvmlReturn_t profile_of(nvmlDevice_t device, unsigned int kind, unsigned int id, struct ff_mig_profile *p)
{
	uint32_t count;
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(mig_profile_count, &count) || count > FF_MAX_MIG_PROFILES)
		return NVML_ERROR_UNKNOWN;
	/* One profile at a time: all of them are most of the model, whose copy took half of the call. */
	for (unsigned int i = 0; i < count; i++) {
		size_t place = offsetof(struct ff_node, model.mig_profiles) + i * sizeof *p;
		uint32_t is[2]; /* kind and id */
		if (!ff_state_copy(place + offsetof(struct ff_mig_profile, kind), is, sizeof is))
			return NVML_ERROR_UNKNOWN;
		if (is[0] != kind && is[1] != id)
			continue;
		if (!ff_state_copy(place, p, sizeof *p))
			return NVML_ERROR_UNKNOWN;
		p->name[sizeof p->name - 1] = 0;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

_Static_assert(
	offsetof(struct ff_mig_profile, id) == offsetof(struct ff_mig_profile, kind) + sizeof(uint32_t), "profile_of reads both at once");

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
	struct ff_mig_profile p;
	OUT(info && profile < NVML_GPU_INSTANCE_PROFILE_COUNT);
	nvmlReturn_t r = profile_of(device, profile, FF_NONE, &p);
	if (r == NVML_SUCCESS)
		*info = (nvmlGpuInstanceProfileInfo_t){
			p.id, p.slices == 7, p.slices, p.max, p.multiprocessors, p.copy_engines, p.decoders, p.encoders, p.jpeg, p.ofa, p.memory_mib};
	return r;
}

/* Versions 2 and 3 begin differently: 3 dropped isP2pSupported and ends in capabilities. */
static nvmlReturn_t profile_info(const struct ff_mig_profile *p, void *out)
{
	unsigned int version = *(unsigned int *)out;
	char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "MIG ";
	memcpy(name + 4, p->name, strnlen(p->name, sizeof p->name)); /* snprintf takes longer than the rest */
	if (version == nvmlGpuInstanceProfileInfo_v2) {
		nvmlGpuInstanceProfileInfo_v2_t v = {version, p->id, p->slices == 7, p->slices, p->max, p->multiprocessors, p->copy_engines,
			p->decoders, p->encoders, p->jpeg, p->ofa, p->memory_mib, ""};
		memcpy(v.name, name, sizeof name);
		memcpy(out, &v, sizeof v);
		return NVML_SUCCESS;
	}
	if (version == nvmlGpuInstanceProfileInfo_v3) {
		nvmlGpuInstanceProfileInfo_v3_t v = {version, p->id, p->slices, p->max, p->multiprocessors, p->copy_engines, p->decoders,
			p->encoders, p->jpeg, p->ofa, p->memory_mib, "", p->slices == 7 ? NVML_GPU_INSTANCE_PROFILE_CAPS_P2P : 0};
		memcpy(v.name, name, sizeof name);
		memcpy(out, &v, sizeof v);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct ff_mig_profile p;
	OUT(info && profile < NVML_GPU_INSTANCE_PROFILE_COUNT);
	nvmlReturn_t r = profile_of(device, profile, FF_NONE, &p);
	return r == NVML_SUCCESS ? profile_info(&p, info) : r;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct ff_mig_profile p;
	OUT(info);
	nvmlReturn_t r = profile_of(device, FF_NONE, id, &p);
	return r == NVML_SUCCESS ? profile_info(&p, info) : r;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(
	nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	struct ff_mig_profile p;
	OUT(count);
	nvmlReturn_t r = profile_of(device, FF_NONE, id, &p);
	if (r != NVML_SUCCESS)
		return r;
	unsigned int n = p.placement_count < FF_MAX_PLACEMENTS ? p.placement_count : FF_MAX_PLACEMENTS;
	for (unsigned int i = 0; placements && i < n; i++)
		placements[i] = (nvmlGpuInstancePlacement_t){p.starts[i], p.size};
	*count = n;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements(
	nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	return impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
	struct ff_model m;
	struct ff_gpu g;
	OUT(count);
	TARGET(ff_whole_gpu);
	if ((r = ff_mig_read(t.gpu, &g, &m)) != NVML_SUCCESS)
		return r;
	int p = ff_mig_profile_index(&m, id);
	if (p < 0 || !g.core.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = ff_mig_capacity(&m, &g, (unsigned int)p);
	return NVML_SUCCESS;
}

static nvmlReturn_t create_gi(nvmlDevice_t device, unsigned int id, unsigned int start, nvmlGpuInstance_t *out)
{
	OUT(out);
	TARGET(ff_whole_gpu);
	struct request q = {.action = CREATE_GI, .gpu = t.gpu, .profile_id = id, .start = start};
	if ((r = perform(&q)) == NVML_SUCCESS)
		*out = ff_gi_handle(t.gpu, q.id);
	return r;
}

nvmlReturn_t impl_nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
	return create_gi(device, id, FF_NONE, out);
}

nvmlReturn_t impl_nvmlDeviceCreateGpuInstanceWithPlacement(
	nvmlDevice_t device, unsigned int id, const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *out)
{
	struct ff_mig_profile p;
	OUT(placement);
	nvmlReturn_t r = profile_of(device, FF_NONE, id, &p);
	if (r != NVML_SUCCESS)
		return r == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_INVALID_ARGUMENT : r;
	OUT(placement->size == p.size);
	return create_gi(device, id, placement->start, out);
}

nvmlReturn_t impl_nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	struct request q = {.action = DESTROY_GI};
	OUT(ff_gi_place(instance, &q.gpu, &q.gi));
	return perform(&q);
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out, unsigned int *count)
{
	struct ff_model m;
	struct ff_gpu g;
	unsigned int n = 0;
	OUT(out && count);
	TARGET(ff_whole_gpu);
	if ((r = ff_mig_read(t.gpu, &g, &m)) != NVML_SUCCESS)
		return r;
	int p = ff_mig_profile_index(&m, id);
	if (p < 0 || !g.core.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int gi = 0; gi < FF_GI_IDS; gi++) {
		struct ff_gpu_instance *x = ff_mig_gi(&g, gi);
		if (x && x->profile == (unsigned int)p)
			out[n++] = ff_gi_handle(t.gpu, gi);
	}
	*count = n;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
	struct ff_model m;
	struct ff_gpu g;
	OUT(out);
	TARGET(ff_whole_gpu);
	if ((r = ff_mig_read(t.gpu, &g, &m)) != NVML_SUCCESS)
		return r;
	if (!g.core.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	if (id >= FF_GI_IDS || !ff_mig_gi(&g, id))
		return NVML_ERROR_NOT_FOUND;
	*out = ff_gi_handle(t.gpu, id);
	return NVML_SUCCESS;
}

/* Everything about one GPU instance; INVALID_ARGUMENT when it has been destroyed. */
struct whole {
	struct ff_model model;
	struct ff_gpu gpu;
	unsigned int number, id;
	struct ff_gpu_instance *gi;
	const struct ff_mig_profile *profile;
};

static nvmlReturn_t whole(nvmlGpuInstance_t handle, struct whole *w)
{
	OUT(ff_gi_place(handle, &w->number, &w->id));
	nvmlReturn_t r = ff_mig_read(w->number, &w->gpu, &w->model);
	if (r != NVML_SUCCESS)
		return r;
	w->gi = ff_mig_gi(&w->gpu, w->id);
	OUT(w->gi && w->gi->profile < w->model.mig_profile_count);
	w->profile = &w->model.mig_profiles[w->gi->profile];
	return NVML_SUCCESS;
}

#define WHOLE()                              \
	struct whole w;                      \
	nvmlReturn_t r = whole(handle, &w);  \
	if (r != NVML_SUCCESS)               \
		return r

nvmlReturn_t impl_nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
	OUT(info);
	WHOLE();
	*info = (nvmlGpuInstanceInfo_t){
		.device = ff_gpu_handle(w.number), .id = w.id, .profileId = w.profile->id, .placement = {w.gi->start, w.profile->size}};
	return NVML_SUCCESS;
}

static nvmlReturn_t ci_profile(const struct whole *w, unsigned int kind, unsigned int engine, const struct ff_ci_profile **out)
{
	OUT(kind < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
	for (unsigned int i = 0; i < w->profile->ci_count && i < FF_MAX_CI_PROFILES; i++)
		if (w->profile->ci_profiles[i].kind == kind) {
			*out = &w->profile->ci_profiles[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfo(
	nvmlGpuInstance_t handle, unsigned int kind, unsigned int engine, nvmlComputeInstanceProfileInfo_t *info)
{
	const struct ff_ci_profile *c;
	OUT(info);
	WHOLE();
	if ((r = ci_profile(&w, kind, engine, &c)) != NVML_SUCCESS)
		return r;
	const struct ff_mig_profile *p = w.profile;
	*info = (nvmlComputeInstanceProfileInfo_t){
		c->id, c->slices, c->max, c->multiprocessors, p->copy_engines, p->decoders, p->encoders, p->jpeg, p->ofa};
	return NVML_SUCCESS;
}

/* Version 3 is version 2 with capabilities at its end. */
nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfoV(
	nvmlGpuInstance_t handle, unsigned int kind, unsigned int engine, nvmlComputeInstanceProfileInfo_v2_t *info)
{
	const struct ff_ci_profile *c;
	OUT(info);
	if (info->version != nvmlComputeInstanceProfileInfo_v2 && info->version != nvmlComputeInstanceProfileInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	WHOLE();
	if ((r = ci_profile(&w, kind, engine, &c)) != NVML_SUCCESS)
		return r;
	const struct ff_mig_profile *p = w.profile;
	nvmlComputeInstanceProfileInfo_v3_t v = {
		info->version, c->id, c->slices, c->max, c->multiprocessors, p->copy_engines, p->decoders, p->encoders, p->jpeg, p->ofa, "", 0};
	if (c->slices < p->slices)
		snprintf(v.name, sizeof v.name, "MIG %uc.%.31s", c->slices, p->name);
	else
		snprintf(v.name, sizeof v.name, "MIG %.31s", p->name);
	memcpy(info, &v, info->version == nvmlComputeInstanceProfileInfo_v3 ? sizeof v : sizeof *info);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned int id, unsigned int *count)
{
	OUT(count);
	WHOLE();
	int c = ff_mig_ci_profile_index(w.profile, id);
	if (c < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = ff_mig_ci_capacity(w.profile, w.gi, (unsigned int)c);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstancePossiblePlacements(
	nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstancePlacement_t *placements, unsigned int *count)
{
	unsigned int n = 0;
	OUT(count);
	WHOLE();
	int c = ff_mig_ci_profile_index(w.profile, id);
	if (c < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int slices = w.profile->ci_profiles[c].slices;
	for (unsigned int start = 0; slices && start + slices <= w.profile->slices && n < FF_MAX_PLACEMENTS; start++, n++)
		if (placements)
			placements[n] = (nvmlComputeInstancePlacement_t){start, slices};
	*count = n;
	return NVML_SUCCESS;
}

static nvmlReturn_t create_ci(nvmlGpuInstance_t handle, unsigned int id, unsigned int start, nvmlComputeInstance_t *out)
{
	struct request q = {.action = CREATE_CI, .profile_id = id, .start = start};
	OUT(out && ff_gi_place(handle, &q.gpu, &q.gi));
	nvmlReturn_t r = perform(&q);
	if (r == NVML_SUCCESS)
		*out = ff_ci_handle(q.gpu, q.gi, q.id);
	return r;
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstance_t *out)
{
	return create_ci(handle, id, FF_NONE, out);
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstanceWithPlacement(
	nvmlGpuInstance_t handle, unsigned int id, const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *out)
{
	OUT(placement && placement->start != FF_NONE);
	return create_ci(handle, id, placement->start, out);
}

nvmlReturn_t impl_nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
	struct request q = {.action = DESTROY_CI};
	OUT(ff_ci_place(handle, &q.gpu, &q.gi, &q.ci));
	return perform(&q);
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstances(
	nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstance_t *out, unsigned int *count)
{
	unsigned int n = 0;
	OUT(out && count);
	WHOLE();
	int c = ff_mig_ci_profile_index(w.profile, id);
	if (c < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int ci = 0; ci < FF_CI_IDS; ci++) {
		struct ff_compute_instance *x = ff_mig_ci(w.gi, ci);
		if (x && x->profile == (unsigned int)c)
			out[n++] = ff_ci_handle(w.number, w.id, ci);
	}
	*count = n;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstance_t *out)
{
	OUT(out);
	WHOLE();
	if (id >= FF_CI_IDS || !ff_mig_ci(w.gi, id))
		return NVML_ERROR_NOT_FOUND;
	*out = ff_ci_handle(w.number, w.id, id);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
	unsigned int gpu, gi, ci;
	OUT(info && ff_ci_place(compute, &gpu, &gi, &ci));
	nvmlGpuInstance_t handle = ff_gi_handle(gpu, gi);
	WHOLE();
	struct ff_compute_instance *c = ff_mig_ci(w.gi, ci);
	OUT(c && c->profile < FF_MAX_CI_PROFILES);
	const struct ff_ci_profile *p = &w.profile->ci_profiles[c->profile];
	*info = (nvmlComputeInstanceInfo_t){
		.device = ff_gpu_handle(gpu), .gpuInstance = handle, .id = ci, .profileId = p->id, .placement = {c->start, p->slices}};
	return NVML_SUCCESS;
}

/* Version 1 ends before the placement. */
nvmlReturn_t impl_nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
	nvmlComputeInstanceInfo_t all;
	OUT(info);
	nvmlReturn_t r = impl_nvmlComputeInstanceGetInfo_v2(compute, &all);
	if (r == NVML_SUCCESS)
		memcpy(info, &all, offsetof(nvmlComputeInstanceInfo_t, placement));
	return r;
}
