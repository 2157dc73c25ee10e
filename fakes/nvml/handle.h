/* NVML's opaque handles. A handle is an address inside a table that is never touched: the place in the table says which GPU, MIG device,
 * GPU instance or compute instance is meant, and any other address is no handle. Handles therefore stay good when the node is rendered
 * again. */
#pragma once
#include "impl.h"
#include "state.h"

/* GPU and compute instance IDs are below these. */
#define FF_GI_IDS 16
#define FF_CI_IDS 8

/* What a device handle means, with the part of its GPU that most calls need. */
struct ff_target {
	unsigned int gpu;
	bool mig;
	unsigned int gi, ci; /* IDs, when mig */
	struct ff_core core;
};

nvmlDevice_t ff_gpu_handle(unsigned int gpu);
nvmlDevice_t ff_mig_handle(unsigned int gpu, unsigned int gi, unsigned int ci);
nvmlGpuInstance_t ff_gi_handle(unsigned int gpu, unsigned int gi);
nvmlComputeInstance_t ff_ci_handle(unsigned int gpu, unsigned int gi, unsigned int ci);

/* Each gives NVML_ERROR_INVALID_ARGUMENT for what is no handle, NVML_ERROR_GPU_IS_LOST for a GPU that fell off the bus, and
 * NVML_ERROR_UNKNOWN when the node's state is gone. */
nvmlReturn_t ff_device(nvmlDevice_t device, struct ff_target *target);
nvmlReturn_t ff_whole_gpu(nvmlDevice_t device, struct ff_target *target); /* a MIG device is an invalid argument too */
bool ff_gi_place(nvmlGpuInstance_t handle, unsigned int *gpu, unsigned int *gi);
bool ff_ci_place(nvmlComputeInstance_t handle, unsigned int *gpu, unsigned int *gi, unsigned int *ci);

/* How many GPUs the node has. */
unsigned int ff_gpu_count(void);

/* ff_visible gives the GPU that has an index among those that this process can open; ff_visible_before counts them below a GPU. */
bool ff_visible(unsigned int index, unsigned int *gpu);
unsigned int ff_visible_before(unsigned int gpu);

/* Copies the node's model, or fails as above. */
nvmlReturn_t ff_model(struct ff_model *model);

/* ff_text hands a string out as NVML does: INSUFFICIENT_SIZE when it does not fit, size being the field it lies in. */
nvmlReturn_t ff_text(char *out, unsigned int length, const char *field, size_t size);
void ff_uuid_text(char *out, const char *prefix, const unsigned char uuid[16]);

#define FF_TEXT(out, length, field) ff_text(out, length, field, sizeof(field))
#define FF_MODEL(member, out) ff_state_copy(offsetof(struct ff_node, model.member), out, sizeof(((struct ff_model *)0)->member))
