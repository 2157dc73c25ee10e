/* What a GPU is doing: temperature, power, clocks, utilisation, and the settings that change at run time. */
#include <string.h>
#include <sys/time.h>

#include "process.h"
#include "settings.h"
#include "target.h"

static uint64_t now_us(void)
{
	struct timeval t;
	gettimeofday(&t, NULL);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* A kernel of the CUDA stand-in makes its GPU fully busy until it ends. */
static bool busy(unsigned int gpu)
{
	struct ff_process list[FF_MAX_PROCESSES];
	uint64_t now = now_us();
	if (!ff_state_copy(ff_gpu_offset(gpu) + offsetof(struct ff_gpu, processes), list, sizeof list))
		return false;
	for (int i = 0; i < FF_MAX_PROCESSES; i++)
		if (list[i].pid && list[i].busy_until > now && ff_process_alive(&list[i]))
			return true;
	return false;
}

nvmlReturn_t impl_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	OUT(out);
	TARGET(ff_device);
	if (t.mig)
		return NVML_ERROR_NOT_SUPPORTED;
	out->gpu = busy(t.gpu) ? 100 : t.core.utilization_gpu;
	out->memory = t.core.utilization_mem;
	return NVML_SUCCESS;
}

#define ENGINE(name)                                                                                                     \
	nvmlReturn_t impl_nvmlDeviceGet##name##Utilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period) \
	{                                                                                                                \
		OUT(percent && period);                                                                                  \
		TARGET(ff_whole_gpu);                                                                                    \
		*percent = 0;                                                                                            \
		*period = 100000;                                                                                        \
		return NVML_SUCCESS;                                                                                     \
	}
ENGINE(Encoder)
ENGINE(Decoder)
ENGINE(Jpg)
ENGINE(Ofa)

nvmlReturn_t impl_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
	OUT(out && sensor == NVML_TEMPERATURE_GPU);
	TARGET(ff_whole_gpu);
	*out = t.core.temperature;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
	unsigned int v;
	VERSION(out, nvmlTemperature_v1);
	nvmlReturn_t r = impl_nvmlDeviceGetTemperature(device, out->sensorType, &v);
	if (r == NVML_SUCCESS)
		out->temperature = (int)v;
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t kind, unsigned int *out)
{
	struct ff_model m;
	OUT(out && kind < NVML_TEMPERATURE_THRESHOLD_COUNT);
	TARGET(ff_whole_gpu);
	if ((r = ff_model(&m)) != NVML_SUCCESS)
		return r;
	switch (kind) {
	case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
		*out = m.temp_shutdown;
		break;
	case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
		*out = m.temp_slowdown;
		break;
	case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
		*out = m.temp_max;
		break;
	case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
		*out = m.temp_memory;
		break;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
	return *out ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

CORE_NUMBER(nvmlDeviceGetPowerUsage, unsigned int, t.core.power)
CORE_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, t.core.power_limit)
CORE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, t.core.power_limit)
CORE_NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
MODEL_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_default)
CORE_NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, t.core.energy)
CORE_NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, t.core.performance_state)
CORE_NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, t.core.performance_state)
CORE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, t.core.clock_reasons)
CORE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, t.core.clock_reasons)
CORE_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff) /* as an H200 of driver 580 */
CORE_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
CORE_NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, t.core.pcie_replays)
CORE_NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, t.core.persistence)
CORE_NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, t.core.compute_mode)
CORE_NUMBER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
CORE_NUMBER(nvmlDeviceGetIrqNum, unsigned int, 64 + t.gpu)

nvmlReturn_t impl_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least, unsigned int *most)
{
	OUT(least && most);
	TARGET(ff_whole_gpu);
	return FF_MODEL(power_min, least) && FF_MODEL(power_max, most) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t impl_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	OUT(mhz && type < NVML_CLOCK_COUNT);
	TARGET(ff_whole_gpu);
	const unsigned int clocks[] = {t.core.clock_graphics, t.core.clock_sm, t.core.clock_memory, t.core.clock_video};
	*mhz = clocks[type];
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	struct ff_model m;
	OUT(mhz && type < NVML_CLOCK_COUNT);
	TARGET(ff_whole_gpu);
	if ((r = ff_model(&m)) != NVML_SUCCESS)
		return r;
	const unsigned int clocks[] = {m.clock_graphics, m.clock_sm, m.clock_memory, m.clock_video};
	*mhz = clocks[type];
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
	switch (id) {
	case NVML_CLOCK_ID_CURRENT:
		return impl_nvmlDeviceGetClockInfo(device, type, mhz);
	case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
		return impl_nvmlDeviceGetMaxClockInfo(device, type, mhz);
	default:
		return id < NVML_CLOCK_ID_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t impl_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kilobytes)
{
	OUT(kilobytes && counter < NVML_PCIE_UTIL_COUNT);
	TARGET(ff_whole_gpu);
	*kilobytes = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *standard)
{
	OUT(enabled && standard);
	TARGET(ff_whole_gpu);
	*enabled = *standard = 1;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
	OUT(version);
	TARGET(ff_whole_gpu);
	return impl_nvmlSystemGetDriverVersion(version, 80); /* the firmware comes with the driver */
}

/* The settings. */
struct setting {
	enum { PERSISTENCE, COMPUTE_MODE, POWER_LIMIT, ECC_MODE, CLEAR_ECC, TIME_SLICE } what;
	unsigned int gpu;
	uint32_t value;
};

static bool set(struct ff_node *node, struct ff_gpu *gpus, unsigned int count, void *argument)
{
	const struct setting *s = argument;
	(void)node;
	if (s->gpu >= count)
		return false;
	struct ff_core *c = &gpus[s->gpu].core;
	switch (s->what) {
	case PERSISTENCE:
		c->persistence = s->value;
		break;
	case COMPUTE_MODE:
		c->compute_mode = s->value;
		break;
	case POWER_LIMIT:
		c->power_limit = s->value;
		break;
	case ECC_MODE:
		c->ecc_pending = s->value;
		break;
	case TIME_SLICE:
		c->time_slice = s->value;
		break;
	case CLEAR_ECC:
		if (s->value == NVML_VOLATILE_ECC) {
			c->ecc.volatile_corrected = c->ecc.volatile_uncorrected = 0;
			c->ecc.volatile_sram = (struct ff_sram){0};
		} else {
			c->ecc.aggregate_corrected = c->ecc.aggregate_uncorrected = 0;
			c->ecc.aggregate_sram = (struct ff_sram){0};
		}
		break;
	}
	return true;
}

static nvmlReturn_t apply(struct setting s)
{
	if (!ff_state_administered())
		return NVML_ERROR_NO_PERMISSION;
	switch (ff_state_update(set, &s)) {
	case FF_UPDATED:
		return NVML_SUCCESS;
	case FF_UPDATE_NO_PERMISSION:
		return NVML_ERROR_NO_PERMISSION;
	default:
		return NVML_ERROR_UNKNOWN;
	}
}

nvmlReturn_t impl_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	OUT(mode <= NVML_FEATURE_ENABLED);
	TARGET(ff_whole_gpu);
	return apply((struct setting){PERSISTENCE, t.gpu, mode});
}

nvmlReturn_t ff_set_time_slice(nvmlDevice_t device, uint32_t slice)
{
	OUT(slice <= 3); /* default, short, medium, long */
	TARGET(ff_whole_gpu);
	return apply((struct setting){TIME_SLICE, t.gpu, slice});
}

nvmlReturn_t impl_nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	OUT(mode < NVML_COMPUTEMODE_COUNT);
	TARGET(ff_whole_gpu);
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
		return NVML_ERROR_NOT_SUPPORTED;
	return apply((struct setting){COMPUTE_MODE, t.gpu, mode});
}

nvmlReturn_t impl_nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
	uint32_t least, most;
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(power_min, &least) || !FF_MODEL(power_max, &most))
		return NVML_ERROR_UNKNOWN;
	OUT(limit >= least && limit <= most);
	return apply((struct setting){POWER_LIMIT, t.gpu, limit});
}

nvmlReturn_t impl_nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
	VERSION(value, nvmlPowerValue_v2);
	OUT(value->powerScope == NVML_POWER_SCOPE_GPU);
	return impl_nvmlDeviceSetPowerManagementLimit(device, value->powerValueMw);
}

nvmlReturn_t impl_nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	uint32_t ecc;
	OUT(mode <= NVML_FEATURE_ENABLED);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(ecc, &ecc) || !ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	return apply((struct setting){ECC_MODE, t.gpu, mode});
}

nvmlReturn_t impl_nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter)
{
	uint32_t ecc;
	OUT(counter < NVML_ECC_COUNTER_TYPE_COUNT);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(ecc, &ecc) || !ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	return apply((struct setting){CLEAR_ECC, t.gpu, counter});
}
