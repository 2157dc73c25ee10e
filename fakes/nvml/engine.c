/* Engines and clocks that a compute GPU has but the fake leaves at rest, and the lists that programs choose from. */
#include <string.h>
#include <sys/time.h>

#include "target.h"

CORE_NUMBER(nvmlDeviceGetNumFans, unsigned int, 0) /* boards of servers have none */
CORE_NUMBER(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
CORE_NUMBER(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)
CORE_NUMBER(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned int, NVML_ADAPTIVE_CLOCKING_INFO_STATUS_ENABLED)
CORE_NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned int, 4000)
CORE_NUMBER(nvmlDeviceGetGpcClkVfOffset, int, 0)
CORE_NUMBER(nvmlDeviceGetMemClkVfOffset, int, 0)

/* Clocks of data-center GPUs cannot be moved against their voltage. */
#define NO_OFFSETS(function)                                                          \
	nvmlReturn_t impl_##function(nvmlDevice_t device, int *least, int *most)      \
	{                                                                             \
		OUT(least && most);                                                   \
		TARGET(ff_whole_gpu);                                                 \
		*least = *most = 0;                                                   \
		return NVML_SUCCESS;                                                  \
	}
NO_OFFSETS(nvmlDeviceGetGpcClkMinMaxVfOffset)
NO_OFFSETS(nvmlDeviceGetMemClkMinMaxVfOffset)

/* No black box was written to the infoROM since the driver was loaded. */
nvmlReturn_t impl_nvmlDeviceGetLastBBXFlushTime(nvmlDevice_t device, unsigned long long *timestamp, unsigned long *duration)
{
	OUT(timestamp && duration);
	TARGET(ff_whole_gpu);
	return NVML_ERROR_NOT_READY;
}

/* MB/s of one lane of each generation of PCIe, from 1 (nvmlDeviceGetPcieSpeed: "PCIe link speed in MBPS"). */
static unsigned int lane(uint32_t generation)
{
	const unsigned int speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000, 128000};
	return generation < sizeof speeds / sizeof speeds[0] ? speeds[generation] : 0;
}

nvmlReturn_t impl_nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed)
{
	uint32_t generation;
	OUT(speed);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(pcie_link, &generation))
		return NVML_ERROR_UNKNOWN;
	*speed = lane(generation);
	return NVML_SUCCESS;
}

/* NVML's number of the speed, NVML_PCIE_LINK_MAX_SPEED_*, is the generation. */
MODEL_NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, pcie_link)

nvmlReturn_t impl_nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency)
{
	OUT(sessions && fps && latency);
	TARGET(ff_whole_gpu);
	*sessions = *fps = *latency = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count, nvmlEncoderSessionInfo_t *sessions)
{
	(void)sessions;
	OUT(count);
	TARGET(ff_whole_gpu);
	*count = 0;
	return NVML_SUCCESS;
}

/* In percent of what the encoders can do. */
nvmlReturn_t impl_nvmlDeviceGetEncoderCapacity(nvmlDevice_t device, nvmlEncoderType_t type, unsigned int *percent)
{
	OUT(percent && type <= NVML_ENCODER_QUERY_UNKNOWN);
	TARGET(ff_whole_gpu);
	*percent = 100;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
	OUT(stats);
	TARGET(ff_whole_gpu);
	memset(stats, 0, sizeof *stats);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count, nvmlFBCSessionInfo_t *sessions)
{
	(void)sessions;
	OUT(count);
	TARGET(ff_whole_gpu);
	*count = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t application(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz, size_t graphics)
{
	struct ff_model m;
	OUT(mhz && type < NVML_CLOCK_COUNT);
	TARGET(ff_whole_gpu);
	if ((r = ff_model(&m)) != NVML_SUCCESS)
		return r;
	switch (type) {
	case NVML_CLOCK_GRAPHICS:
	case NVML_CLOCK_SM:
		*mhz = *(const uint32_t *)((const char *)&m + graphics);
		return NVML_SUCCESS;
	case NVML_CLOCK_MEM:
		*mhz = m.clock_memory;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

nvmlReturn_t impl_nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return application(device, type, mhz, offsetof(struct ff_model, clock_app));
}

nvmlReturn_t impl_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return application(device, type, mhz, offsetof(struct ff_model, clock_app));
}

nvmlReturn_t impl_nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return application(device, type, mhz, offsetof(struct ff_model, clock_graphics));
}

/* One memory clock, the highest. */
nvmlReturn_t impl_nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
	uint32_t memory;
	OUT(count && (clocks || !*count));
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(clock_memory, &memory))
		return NVML_ERROR_UNKNOWN;
	unsigned int room = *count;
	*count = 1;
	if (room < 1)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	clocks[0] = memory;
	return NVML_SUCCESS;
}

/* See Model.GraphicsClocks of package state. */
nvmlReturn_t impl_nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count, unsigned int *clocks)
{
	struct ff_model m;
	OUT(count && (clocks || !*count));
	TARGET(ff_whole_gpu);
	if ((r = ff_model(&m)) != NVML_SUCCESS)
		return r;
	if (memory != m.clock_memory)
		return NVML_ERROR_NOT_FOUND;
	/* In halves of a MHz. */
	unsigned int lowest = 2 * 210, step = 30, highest = (2 * m.clock_graphics + 14) / 15 * 15;
	if (m.architecture == NVML_DEVICE_ARCH_TURING)
		lowest = 2 * 300;
	else if (m.architecture == NVML_DEVICE_ARCH_HOPPER)
		lowest = 2 * 345;
	else if (m.architecture >= NVML_DEVICE_ARCH_BLACKWELL)
		lowest = 2 * 120, step = 15;
	unsigned int room = *count, n = highest < lowest ? 0 : (highest - lowest) / step + 1;
	*count = n;
	if (room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		clocks[i] = (highest - i * step) / 2;
	return NVML_SUCCESS;
}

/* The driver samples about 120 values; the fake has the present one alone. */
nvmlReturn_t impl_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last, nvmlValueType_t *kind,
	unsigned int *count, nvmlSample_t *samples)
{
	struct timeval now;
	nvmlUtilization_t use;
	unsigned int value = 0;
	OUT(kind && count && type < NVML_SAMPLINGTYPE_COUNT);
	TARGET(ff_whole_gpu);
	switch (type) {
	case NVML_TOTAL_POWER_SAMPLES:
		value = t.core.power;
		break;
	case NVML_MODULE_POWER_SAMPLES:
		if (!t.core.module_power)
			return NVML_ERROR_NOT_SUPPORTED;
		value = t.core.module_power;
		break;
	case NVML_GPU_UTILIZATION_SAMPLES:
	case NVML_MEMORY_UTILIZATION_SAMPLES:
		if ((r = impl_nvmlDeviceGetUtilizationRates(device, &use)) != NVML_SUCCESS)
			return r;
		value = type == NVML_GPU_UTILIZATION_SAMPLES ? use.gpu : use.memory;
		break;
	case NVML_PROCESSOR_CLK_SAMPLES:
		value = t.core.clock_sm;
		break;
	case NVML_MEMORY_CLK_SAMPLES:
		value = t.core.clock_memory;
		break;
	default: /* encoder, decoder, JPEG and OFA are at rest */
		break;
	}
	gettimeofday(&now, NULL);
	unsigned long long at = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_usec;
	*kind = NVML_VALUE_TYPE_UNSIGNED_INT;
	if (!samples) {
		*count = 1;
		return NVML_SUCCESS;
	}
	OUT(*count);
	if (last >= at)
		return NVML_ERROR_NOT_FOUND;
	*count = 1;
	samples[0].timeStamp = at;
	samples[0].sampleValue.uiVal = value;
	return NVML_SUCCESS;
}
