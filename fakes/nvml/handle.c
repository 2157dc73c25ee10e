#include "handle.h"

#include <string.h>

/* Only the addresses are used; the pages behind them are never touched. */
static char gpu_table[FF_MAX_GPUS];
static char mig_table[FF_MAX_GPUS * FF_GI_IDS * FF_CI_IDS];
static char gi_table[FF_MAX_GPUS * FF_GI_IDS];
static char ci_table[FF_MAX_GPUS * FF_GI_IDS * FF_CI_IDS];

static bool place(const void *handle, const char *table, size_t size, size_t *index)
{
	uintptr_t h = (uintptr_t)handle, t = (uintptr_t)table;
	if (h < t || h >= t + size)
		return false;
	*index = h - t;
	return true;
}

nvmlDevice_t ff_gpu_handle(unsigned int gpu)
{
	return (nvmlDevice_t){(void *)&gpu_table[gpu]};
}

nvmlDevice_t ff_mig_handle(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	return (nvmlDevice_t){(void *)&mig_table[(gpu * FF_GI_IDS + gi) * FF_CI_IDS + ci]};
}

nvmlGpuInstance_t ff_gi_handle(unsigned int gpu, unsigned int gi)
{
	return (nvmlGpuInstance_t){(void *)&gi_table[gpu * FF_GI_IDS + gi]};
}

nvmlComputeInstance_t ff_ci_handle(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	return (nvmlComputeInstance_t){(void *)&ci_table[(gpu * FF_GI_IDS + gi) * FF_CI_IDS + ci]};
}

bool ff_gi_place(nvmlGpuInstance_t handle, unsigned int *gpu, unsigned int *gi)
{
	size_t i;
	if (!place(handle.handle, gi_table, sizeof gi_table, &i))
		return false;
	*gpu = (unsigned int)(i / FF_GI_IDS);
	*gi = (unsigned int)(i % FF_GI_IDS);
	return *gpu < ff_gpu_count();
}

static bool split(const void *handle, const char *table, size_t size, unsigned int *gpu, unsigned int *gi, unsigned int *ci)
{
	size_t i;
	if (!place(handle, table, size, &i))
		return false;
	*gpu = (unsigned int)(i / FF_CI_IDS / FF_GI_IDS);
	*gi = (unsigned int)(i / FF_CI_IDS % FF_GI_IDS);
	*ci = (unsigned int)(i % FF_CI_IDS);
	return *gpu < ff_gpu_count();
}

bool ff_ci_place(nvmlComputeInstance_t handle, unsigned int *gpu, unsigned int *gi, unsigned int *ci)
{
	return split(handle.handle, ci_table, sizeof ci_table, gpu, gi, ci);
}

unsigned int ff_gpu_count(void)
{
	unsigned int count = 0;
	return ff_state_gpus(&count) ? count : 0;
}

/* Whether this process can open a GPU. */
static bool visible(unsigned int gpu)
{
	uint32_t minor;
	return ff_state_copy(ff_gpu_offset(gpu) + offsetof(struct ff_gpu, core) + offsetof(struct ff_core, minor), &minor, sizeof minor) &&
		   ff_state_opens(minor);
}

unsigned int ff_visible_before(unsigned int gpu)
{
	unsigned int count = 0;
	for (unsigned int i = 0; i < gpu; i++)
		count += visible(i);
	return count;
}

bool ff_visible(unsigned int index, unsigned int *gpu)
{
	unsigned int all = ff_gpu_count();
	for (*gpu = 0; *gpu < all; ++*gpu)
		if (visible(*gpu) && index-- == 0)
			return true;
	return false;
}

nvmlReturn_t ff_device(nvmlDevice_t device, struct ff_target *t)
{
	size_t i;
	if (place(device.handle, gpu_table, sizeof gpu_table, &i)) {
		t->gpu = (unsigned int)i;
		t->mig = false;
		t->gi = t->ci = FF_NONE;
	} else if (split(device.handle, mig_table, sizeof mig_table, &t->gpu, &t->gi, &t->ci)) {
		t->mig = true;
	} else {
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	if (!ff_state_copy(ff_gpu_offset(t->gpu) + offsetof(struct ff_gpu, core), &t->core, sizeof t->core))
		return t->gpu < ff_gpu_count() ? NVML_ERROR_UNKNOWN : NVML_ERROR_INVALID_ARGUMENT;
	return t->core.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t ff_whole_gpu(nvmlDevice_t device, struct ff_target *t)
{
	nvmlReturn_t r = ff_device(device, t);
	return r == NVML_SUCCESS && t->mig ? NVML_ERROR_INVALID_ARGUMENT : r;
}

nvmlReturn_t ff_model(struct ff_model *model)
{
	if (!ff_state_copy(offsetof(struct ff_node, model), model, sizeof *model))
		return NVML_ERROR_UNKNOWN;
	if (model->mig_profile_count > FF_MAX_MIG_PROFILES || model->link_count > FF_MAX_LINKS)
		return NVML_ERROR_UNKNOWN;
	return NVML_SUCCESS;
}

nvmlReturn_t ff_text(char *out, unsigned int length, const char *field, size_t size)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	size_t n = strnlen(field, size);
	if (n + 1 > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, field, n);
	out[n] = 0;
	return NVML_SUCCESS;
}

void ff_uuid_text(char *out, const char *prefix, const unsigned char u[16])
{
	static const char digits[] = "0123456789abcdef"; /* by hand: printf would be most of GetUUID's time */
	while (*prefix)
		*out++ = *prefix++;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = digits[u[i] >> 4];
		*out++ = digits[u[i] & 15];
	}
	*out = 0;
}
