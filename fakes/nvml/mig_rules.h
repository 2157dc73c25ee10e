/* The rules of MIG, over a writable body: what may be created where, and what is in use. Package mig has the same rules in Go; a test
 * drives both side by side. Each function returns what NVML returns and leaves the body unchanged unless that is NVML_SUCCESS. */
#pragma once
#include "handle.h"

struct ff_gpu_instance *ff_mig_gi(struct ff_gpu *gpu, unsigned int id);
struct ff_compute_instance *ff_mig_ci(struct ff_gpu_instance *gi, unsigned int id);

/* The index of the profile with that NVML profile ID, or -1. */
int ff_mig_profile_index(const struct ff_model *model, unsigned int profile_id);
int ff_mig_ci_profile_index(const struct ff_mig_profile *profile, unsigned int profile_id);

/* How many more instances of a profile fit. */
unsigned int ff_mig_capacity(const struct ff_model *model, const struct ff_gpu *gpu, unsigned int profile);
unsigned int ff_mig_ci_capacity(const struct ff_mig_profile *profile, const struct ff_gpu_instance *gi, unsigned int ci_profile);

/* start is FF_NONE for "wherever it fits best". */
nvmlReturn_t ff_mig_create_gi(const struct ff_model *model, struct ff_gpu *gpu, unsigned int profile, unsigned int start, unsigned int *id);
nvmlReturn_t ff_mig_destroy_gi(struct ff_gpu *gpu, unsigned int id);
nvmlReturn_t ff_mig_create_ci(
	const struct ff_model *model, struct ff_gpu *gpu, unsigned int gi, unsigned int ci_profile, unsigned int start, unsigned int *id);
nvmlReturn_t ff_mig_destroy_ci(struct ff_gpu *gpu, unsigned int gi, unsigned int id);

/* The outcome of activation is in *activation, as nvmlDeviceSetMigMode tells it. */
nvmlReturn_t ff_mig_set_mode(const struct ff_model *model, struct ff_gpu *gpu, unsigned int mode, nvmlReturn_t *activation);

/* Resets a GPU to its state after power-on. A GPU that is in use, or that another client has open, is not reset. */
nvmlReturn_t ff_mig_reset(struct ff_gpu *gpu);

/* Copies a GPU and the model; NOT_SUPPORTED on a model without MIG, GPU_IS_LOST for a GPU that is. */
nvmlReturn_t ff_mig_read(unsigned int gpu, struct ff_gpu *g, struct ff_model *m);

/* Which of its GPU's MIG devices this is, as nvmlDeviceGetMigDeviceHandleByIndex counts them. */
struct ff_target;
nvmlReturn_t ff_mig_index(const struct ff_target *target, unsigned int *index);
