/* Memory, processes and errors in memory. */
#include <string.h>
#include <time.h>
#include <sys/time.h>

#include "memory_limits.h"
#include "mig_rules.h"
#include "process.h"
#include "target.h"

/* What is used on a GPU, by all processes and by no process that is in the table. */
static nvmlReturn_t processes(const struct ff_target *t, struct ff_process list[FF_MAX_PROCESSES], uint64_t *used)
{
	if (!ff_state_copy(ff_gpu_offset(t->gpu) + offsetof(struct ff_gpu, processes), list, FF_MAX_PROCESSES * sizeof *list))
		return NVML_ERROR_UNKNOWN;
	*used = t->mig ? 0 : t->core.memory_used;
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		struct ff_process *p = &list[i];
		if (p->pid && !ff_process_alive(p))
			p->pid = 0;
		if (p->pid && t->mig && (p->gpu_instance != t->gi || p->compute_instance != t->ci))
			p->pid = 0;
		if (p->pid)
			*used += p->memory;
	}
	return NVML_SUCCESS;
}

/* The total is the GPU's, or the GPU instance's. */
static nvmlReturn_t total(const struct ff_target *t, uint64_t *bytes, uint64_t *reserved)
{
	if (!FF_MODEL(memory_total, bytes) || !FF_MODEL(memory_reserved, reserved))
		return NVML_ERROR_UNKNOWN;
	if (!t->mig)
		return NVML_SUCCESS;
	nvmlDeviceAttributes_t a;
	nvmlReturn_t r = impl_nvmlDeviceGetAttributes_v2(ff_mig_handle(t->gpu, t->gi, t->ci), &a);
	*bytes = a.memorySizeMB << 20;
	*reserved = 0;
	return r;
}

static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	struct ff_process list[FF_MAX_PROCESSES];
	uint64_t all, reserved, used;
	TARGET(ff_device);
	uint32_t integrated;
	if (!FF_MODEL(integrated, &integrated))
		return NVML_ERROR_UNKNOWN;
	if (integrated) /* it has the machine's memory: see package profile */
		return NVML_ERROR_NOT_SUPPORTED;
	if ((r = total(&t, &all, &reserved)) != NVML_SUCCESS || (r = processes(&t, list, &used)) != NVML_SUCCESS)
		return r;
	/* nvml.h on the limits: this call, "while in that cgroup", shows what may be allocated. */
	if (!t.mig && t.core.memory_limits && ff_memory_slice(t.gpu, &all, &used))
		reserved = 0;
	if (used > all - reserved)
		used = all - reserved;
	m->total = all;
	m->reserved = reserved;
	m->used = used;
	m->free = all - reserved - used;
	return NVML_SUCCESS;
}

/* Version 1 counts what is reserved as used. */
nvmlReturn_t impl_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	nvmlMemory_v2_t m;
	OUT(out);
	nvmlReturn_t r = memory(device, &m);
	if (r == NVML_SUCCESS)
		*out = (nvmlMemory_t){.total = m.total, .free = m.free, .used = m.used + m.reserved};
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	VERSION(out, nvmlMemory_v2);
	return memory(device, out);
}

/* A GPU instance has as much of BAR1 as it has of the memory slices, less what the driver keeps: the MIG user guide's nvidia-smi shows
 * 32767 of 65536 MiB for a 3g.20gb, which has 4 of 8. */
static nvmlReturn_t instance_bar1(const struct ff_target *t, uint64_t *bytes)
{
	struct ff_model m;
	struct ff_gpu g;
	uint32_t slices = 1;
	nvmlReturn_t r = ff_mig_read(t->gpu, &g, &m);
	if (r != NVML_SUCCESS)
		return r;
	const struct ff_gpu_instance *gi = ff_mig_gi(&g, t->gi);
	if (!gi || gi->profile >= m.mig_profile_count || gi->profile >= FF_MAX_MIG_PROFILES)
		return NVML_ERROR_NOT_FOUND;
	for (unsigned int i = 0; i < m.mig_profile_count && i < FF_MAX_MIG_PROFILES; i++)
		if (m.mig_profiles[i].size > slices)
			slices = m.mig_profiles[i].size;
	*bytes = *bytes / slices * m.mig_profiles[gi->profile].size - (1 << 20);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
	uint64_t bytes;
	OUT(out);
	TARGET(ff_device);
	if (!FF_MODEL(bar1_total, &bytes))
		return NVML_ERROR_UNKNOWN;
	if (!bytes)
		return NVML_ERROR_NOT_SUPPORTED;
	if (t.mig && (r = instance_bar1(&t, &bytes)) != NVML_SUCCESS)
		return r;
	*out = (nvmlBAR1Memory_t){.bar1Total = bytes, .bar1Free = bytes - (1 << 20), .bar1Used = 1 << 20};
	return NVML_SUCCESS;
}

/* Hands out the processes of one type. Size is that of the caller's struct: version 1 has no instance IDs. */
static nvmlReturn_t running(nvmlDevice_t device, unsigned int type, unsigned int *count, void *infos, size_t size)
{
	struct ff_process list[FF_MAX_PROCESSES];
	uint64_t used;
	unsigned int found = 0;
	OUT(count);
	TARGET(ff_device);
	if ((r = processes(&t, list, &used)) != NVML_SUCCESS)
		return r;
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		if (!list[i].pid || list[i].type != type)
			continue;
		nvmlProcessInfo_t p = {.pid = list[i].pid,
				       .usedGpuMemory = list[i].memory,
				       .gpuInstanceId = list[i].gpu_instance,
				       .computeInstanceId = list[i].compute_instance};
		if (infos && found < *count)
			memcpy((char *)infos + found * size, &p, size);
		found++;
	}
	bool fits = found == 0 || (infos && found <= *count);
	*count = found;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define RUNNING(kind, type) \
	nvmlReturn_t impl_nvmlDeviceGet##kind##RunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
	{ \
		return running(device, type, count, infos, sizeof *infos); \
	} \
	nvmlReturn_t impl_nvmlDeviceGet##kind##RunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) \
	{ \
		return running(device, type, count, infos, sizeof *infos); \
	} \
	nvmlReturn_t impl_nvmlDeviceGet##kind##RunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) \
	{ \
		return running(device, type, count, infos, sizeof *infos); \
	}

RUNNING(Compute, 0)
RUNNING(Graphics, 1)
RUNNING(MPSCompute, 2)

nvmlReturn_t impl_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
						  unsigned long long last_seen)
{
	struct ff_process list[FF_MAX_PROCESSES];
	struct timeval now;
	uint64_t used;
	unsigned int found = 0;
	OUT(count);
	TARGET(ff_device);
	if ((r = processes(&t, list, &used)) != NVML_SUCCESS)
		return r;
	gettimeofday(&now, NULL);
	uint64_t us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_usec;
	for (int i = 0; i < FF_MAX_PROCESSES; i++) {
		if (!list[i].pid || us <= last_seen)
			continue;
		if (samples && found < *count)
			samples[found] = (nvmlProcessUtilizationSample_t){
				.pid = list[i].pid, .timeStamp = us, .smUtil = list[i].busy_until > us ? 100 : list[i].sm};
		found++;
	}
	bool fits = samples && found <= *count;
	*count = found;
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define ECC_ONLY()                          \
	uint32_t ecc;                       \
	if (!FF_MODEL(ecc, &ecc))           \
		return NVML_ERROR_UNKNOWN;  \
	if (!ecc)                           \
		return NVML_ERROR_NOT_SUPPORTED

nvmlReturn_t impl_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *pending)
{
	OUT(now && pending);
	TARGET(ff_whole_gpu);
	ECC_ONLY();
	*now = NVML_FEATURE_ENABLED;
	*pending = t.core.ecc_pending ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	OUT(mode);
	TARGET(ff_whole_gpu);
	ECC_ONLY();
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetTotalEccErrors(
	nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count)
{
	OUT(count && type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT);
	TARGET(ff_whole_gpu);
	ECC_ONLY();
	const struct ff_ecc *e = &t.core.ecc;
	bool corrected = type == NVML_MEMORY_ERROR_TYPE_CORRECTED;
	const struct ff_sram *s = counter == NVML_VOLATILE_ECC ? &e->volatile_sram : &e->aggregate_sram;
	if (counter == NVML_VOLATILE_ECC)
		*count = corrected ? e->volatile_corrected : e->volatile_uncorrected;
	else
		*count = corrected ? e->aggregate_corrected : e->aggregate_uncorrected;
	*count += corrected ? s->corrected : s->parity + s->secded;
	return NVML_SUCCESS;
}

/* Errors are those of the device's memory, or of all SRAM together. */
nvmlReturn_t impl_nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
						  nvmlMemoryLocation_t location, unsigned long long *count)
{
	OUT(location < NVML_MEMORY_LOCATION_COUNT && count);
	struct ff_target t;
	nvmlReturn_t r = ff_device(device, &t);
	if (r != NVML_SUCCESS)
		return r;
	if (t.mig) { /* nvml.h: for an instance only uncorrected errors since the start, and not of DRAM */
		if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter != NVML_VOLATILE_ECC || location == NVML_MEMORY_LOCATION_DRAM)
			return NVML_ERROR_NOT_SUPPORTED;
		*count = 0;
		return NVML_SUCCESS;
	}
	r = impl_nvmlDeviceGetTotalEccErrors(device, type, counter, count);
	if (r != NVML_SUCCESS)
		return r;
	const struct ff_sram *s = counter == NVML_VOLATILE_ECC ? &t.core.ecc.volatile_sram : &t.core.ecc.aggregate_sram;
	unsigned long long sram = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? s->corrected : s->parity + s->secded;
	if (location == NVML_MEMORY_LOCATION_DEVICE_MEMORY)
		*count = *count > sram ? *count - sram : 0;
	else
		*count = location == NVML_MEMORY_LOCATION_SRAM ? sram : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
					    unsigned int *failed)
{
	uint32_t architecture;
	OUT(corrected && uncorrected && pending && failed);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(architecture, &architecture))
		return NVML_ERROR_UNKNOWN;
	if (architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = t.core.ecc.remapped_correctable;
	*uncorrected = t.core.ecc.remapped_uncorrectable;
	*pending = t.core.ecc.remap_pending;
	*failed = t.core.ecc.remap_failed;
	return NVML_SUCCESS;
}
