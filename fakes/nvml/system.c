/* The driver, and finding GPUs. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "call.h"
#include "handle.h"

nvmlReturn_t impl_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	char text[sizeof ((struct ff_node *)0)->driver_version];
	if (!ff_state_copy(offsetof(struct ff_node, driver_version), text, sizeof text))
		return NVML_ERROR_UNKNOWN;
	return FF_TEXT(version, length, text);
}

nvmlReturn_t impl_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[sizeof ((struct ff_node *)0)->nvml_version];
	if (!ff_state_copy(offsetof(struct ff_node, nvml_version), text, sizeof text))
		return NVML_ERROR_UNKNOWN;
	return FF_TEXT(version, length, text);
}

nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	uint32_t v;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!ff_state_copy(offsetof(struct ff_node, cuda_version), &v, sizeof v))
		return NVML_ERROR_UNKNOWN;
	*version = (int)v;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion(int *version)
{
	return impl_nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t impl_nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
	char text[sizeof ((struct ff_node *)0)->driver_version], branch[32];
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != nvmlSystemDriverBranchInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!ff_state_copy(offsetof(struct ff_node, driver_version), text, sizeof text))
		return NVML_ERROR_UNKNOWN;
	snprintf(branch, sizeof branch, "r%d_00", atoi(text));
	return ff_text(info->branch, length < sizeof info->branch ? length : sizeof info->branch, branch, sizeof branch);
}

nvmlReturn_t impl_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[4096];
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlUnitGetCount(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGetExcludedDeviceCount(unsigned int *count)
{
	return impl_nvmlUnitGetCount(count);
}

/* The names of before CUDA 11, which NVIDIA's library still has and nvml.h no longer. */
EXPORT nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *count)
{
	return nvmlGetExcludedDeviceCount(count);
}

EXPORT nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
	return nvmlGetExcludedDeviceInfoByIndex(index, info);
}

nvmlReturn_t impl_nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int all;
	if (!ff_state_gpus(&all))
		return NVML_ERROR_UNKNOWN;
	*count = ff_visible_before(all);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetCount(unsigned int *count)
{
	return impl_nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	unsigned int gpu;
	if (!device || !ff_visible(index, &gpu))
		return NVML_ERROR_INVALID_ARGUMENT;
	struct ff_target t;
	nvmlReturn_t r = ff_device(ff_gpu_handle(gpu), &t);
	if (r == NVML_SUCCESS)
		*device = ff_gpu_handle(gpu);
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return impl_nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Looks at every GPU with match until it says yes. */
static nvmlReturn_t find(bool (*match)(const struct ff_core *core, const void *wanted), const void *wanted, nvmlDevice_t *device)
{
	unsigned int count = ff_gpu_count();
	for (unsigned int i = 0; i < count; i++) {
		struct ff_target t;
		nvmlReturn_t r = ff_device(ff_gpu_handle(i), &t);
		if ((r == NVML_SUCCESS || r == NVML_ERROR_GPU_IS_LOST) && ff_state_opens(t.core.minor) && match(&t.core, wanted)) {
			if (r == NVML_SUCCESS)
				*device = ff_gpu_handle(i);
			return r;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

static bool has_uuid(const struct ff_core *core, const void *wanted)
{
	return memcmp(core->uuid, wanted, 16) == 0;
}

static bool has_serial(const struct ff_core *core, const void *wanted)
{
	return strncmp(core->serial, wanted, sizeof core->serial) == 0;
}

static bool has_address(const struct ff_core *core, const void *wanted)
{
	const unsigned int *a = wanted;
	return core->domain == a[0] && core->bus == a[1] && core->device == a[2] && core->function == a[3];
}

/* Reads 8-4-4-4-12 hex digits. */
static bool parse_uuid(const char *s, unsigned char out[16])
{
	int digits = 0;
	for (; *s; s++) {
		if (*s == '-' && (digits == 8 || digits == 12 || digits == 16 || digits == 20))
			continue;
		if (!isxdigit((unsigned char)*s) || digits == 32)
			return false;
		int v = isdigit((unsigned char)*s) ? *s - '0' : tolower((unsigned char)*s) - 'a' + 10;
		out[digits / 2] = (unsigned char)(digits % 2 ? out[digits / 2] | v : v << 4);
		digits++;
	}
	return digits == 32;
}

static nvmlReturn_t find_mig(const unsigned char uuid[16], nvmlDevice_t *device)
{
	unsigned int count = ff_gpu_count();
	for (unsigned int gpu = 0; gpu < count; gpu++) {
		struct ff_gpu_instance gis[FF_MAX_GPU_INSTANCES];
		if (!ff_state_copy(ff_gpu_offset(gpu) + offsetof(struct ff_gpu, instances), gis, sizeof gis))
			return NVML_ERROR_UNKNOWN;
		for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
			for (int j = 0; gis[i].used && j < FF_MAX_COMPUTE_INSTANCES; j++) {
				const struct ff_compute_instance *c = &gis[i].computes[j];
				if (c->used && memcmp(c->uuid, uuid, 16) == 0 && gis[i].id < FF_GI_IDS && c->id < FF_CI_IDS) {
					*device = ff_mig_handle(gpu, gis[i].id, c->id);
					return NVML_SUCCESS;
				}
			}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	unsigned char bytes[16] = {0};
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	bool mig = strncmp(uuid, "MIG-", 4) == 0;
	if (!mig && strncmp(uuid, "GPU-", 4) != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!parse_uuid(uuid + 4, bytes))
		return NVML_ERROR_NOT_FOUND;
	return mig ? find_mig(bytes, device) : find(has_uuid, bytes, device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	switch (uuid->type) {
	case NVML_UUID_TYPE_ASCII:
		return impl_nvmlDeviceGetHandleByUUID(uuid->value.str, device);
	case NVML_UUID_TYPE_BINARY:
		return find(has_uuid, uuid->value.bytes, device);
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t impl_nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	if (!serial || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	return find(has_serial, serial, device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned int a[4] = {0};
	char end;
	if (!id || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(id, "%x:%x:%x.%x%c", &a[0], &a[1], &a[2], &a[3], &end) != 4 && sscanf(id, "%x:%x:%x%c", &a[0], &a[1], &a[2], &end) != 3) {
		a[0] = a[3] = 0;
		if (sscanf(id, "%x:%x.%x%c", &a[1], &a[2], &a[3], &end) != 3)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	return find(has_address, a, device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return impl_nvmlDeviceGetHandleByPciBusId_v2(id, device);
}
