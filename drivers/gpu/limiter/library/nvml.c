/* NVML functions that show a container its share, for nvidia-smi in it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>

#include "account.h"
#include "hooks.h"

/* nvmlMemory_t and nvmlMemory_v2_t from nvml.h. */
struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

/* Finds the limit of a GPU by its handle, and the container's use of it. Returns false when it has no limit. */
static bool slice(void *device, uint64_t *limit, uint64_t *used)
{
	int (*uuid)(void *, char *, unsigned int) = REAL(nvml, nvmlDeviceGetUUID);
	char text[96];
	if (!limits_get() || !uuid || uuid(device, text, sizeof text) != 0)
		return false;
	int at = limits_find(text);
	if (at < 0 || limits_get()->devices[at].memory == 0)
		return false;
	*limit = limits_get()->devices[at].memory;
	*used = account_used(at);
	return true;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, void *out)
{
	int (*real)(void *, void *) = REAL(nvml, nvmlDeviceGetMemoryInfo);
	struct memory *m = out;
	uint64_t limit, used;
	if (!real)
		return 13; /* NVML_ERROR_FUNCTION_NOT_FOUND */
	int r = real(device, out);
	if (r == 0 && slice(device, &limit, &used) && limit < m->total)
		*m = (struct memory){.total = limit, .used = used, .free = used < limit ? limit - used : 0};
	return r;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, void *out)
{
	int (*real)(void *, void *) = REAL(nvml, nvmlDeviceGetMemoryInfo_v2);
	struct memory_v2 *m = out;
	uint64_t limit, used;
	if (!real)
		return 13;
	int r = real(device, out);
	if (r == 0 && slice(device, &limit, &used) && limit < m->total) {
		m->total = limit;
		m->reserved = 0;
		m->used = used;
		m->free = used < limit ? limit - used : 0;
	}
	return r;
}
