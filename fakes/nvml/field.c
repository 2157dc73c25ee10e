/* Field values: the ones that monitoring asks for. Each answers for itself, so an unknown field fails alone. */
#include <string.h>
#include <sys/time.h>

#include "target.h"

static void number(nvmlFieldValue_t *f, uint64_t v)
{
	f->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	f->value.ullVal = v;
}

static void small(nvmlFieldValue_t *f, uint32_t v)
{
	f->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	f->value.uiVal = v;
}

struct source {
	const struct ff_core *core;
	const struct ff_model *model;
	struct ff_link links[FF_MAX_LINKS];
};

static uint32_t to_switches(const struct source *s)
{
	uint32_t count = 0;
	for (unsigned int i = 0; i < s->model->link_count && i < FF_MAX_LINKS; i++)
		count += s->links[i].active && s->links[i].remote_type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
	return count;
}

/* Adds one counter up over all links. */
static uint64_t sum(const struct source *s, size_t member)
{
	uint64_t total = 0;
	for (unsigned int i = 0; i < s->model->link_count; i++)
		total += *(const uint64_t *)((const char *)&s->links[i] + member);
	return total;
}

static nvmlReturn_t link_field(const struct source *s, nvmlFieldValue_t *f)
{
	if (!s->model->link_count)
		return NVML_ERROR_NOT_SUPPORTED;
	if (f->fieldId == NVML_FI_DEV_NVLINK_GET_STATE || f->fieldId == NVML_FI_DEV_NVLINK_GET_SPEED ||
		f->fieldId == NVML_FI_DEV_NVLINK_GET_VERSION || f->fieldId == NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID ||
		f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY || f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY ||
		f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_CRC) {
		if (f->scopeId >= s->model->link_count)
			return NVML_ERROR_INVALID_ARGUMENT;
		const struct ff_link *l = &s->links[f->scopeId];
		if (f->fieldId == NVML_FI_DEV_NVLINK_GET_STATE)
			small(f, l->active);
		else if (f->fieldId == NVML_FI_DEV_NVLINK_GET_SPEED)
			small(f, l->active ? s->model->link_speed : 0);
		else if (f->fieldId == NVML_FI_DEV_NVLINK_GET_VERSION)
			small(f, s->model->link_version);
		else if (f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY)
			number(f, l->replays);
		else if (f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY)
			number(f, l->recoveries);
		else if (f->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_CRC)
			number(f, l->crc_errors);
		else
			small(f, l->remote_link);
		return NVML_SUCCESS;
	}
	switch (f->fieldId) {
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
		small(f, s->model->link_count);
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT: /* what NVIDIA's topo -m writes NV# for, behind switches */
		small(f, to_switches(s));
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
		small(f, s->model->link_speed);
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL:
	case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL:
		number(f, sum(s, offsetof(struct ff_link, crc_errors)));
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
		number(f, sum(s, offsetof(struct ff_link, replays)));
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
		number(f, sum(s, offsetof(struct ff_link, recoveries)));
		return NVML_SUCCESS;
	case NVML_FI_DEV_NVLINK_BANDWIDTH_C0_TOTAL:
	case NVML_FI_DEV_NVLINK_BANDWIDTH_C1_TOTAL:
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		number(f, 0);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t ecc_field(const struct source *s, nvmlFieldValue_t *f)
{
	const struct ff_ecc *e = &s->core->ecc;
	if (!s->model->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	switch (f->fieldId) {
	case NVML_FI_DEV_ECC_CURRENT:
		small(f, 1);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_PENDING:
		small(f, s->core->ecc_pending);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
		number(f, e->volatile_corrected + e->volatile_sram.corrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_SBE_VOL_DEV:
		number(f, e->volatile_corrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
		number(f, e->volatile_uncorrected + e->volatile_sram.parity + e->volatile_sram.secded);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_DBE_VOL_DEV:
		number(f, e->volatile_uncorrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
		number(f, e->aggregate_corrected + e->aggregate_sram.corrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_SBE_AGG_DEV:
		number(f, e->aggregate_corrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
		number(f, e->aggregate_uncorrected + e->aggregate_sram.parity + e->aggregate_sram.secded);
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_DBE_AGG_DEV:
		number(f, e->aggregate_uncorrected);
		return NVML_SUCCESS;
	case NVML_FI_DEV_REMAPPED_COR:
		small(f, e->remapped_correctable);
		return NVML_SUCCESS;
	case NVML_FI_DEV_REMAPPED_UNC:
		small(f, e->remapped_uncorrectable);
		return NVML_SUCCESS;
	case NVML_FI_DEV_REMAPPED_PENDING:
		small(f, e->remap_pending);
		return NVML_SUCCESS;
	case NVML_FI_DEV_REMAPPED_FAILURE:
		small(f, e->remap_failed);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t other_field(const struct source *s, nvmlFieldValue_t *f)
{
	switch (f->fieldId) {
	case NVML_FI_DEV_MEMORY_TEMP:
		if (!s->model->temp_memory)
			return NVML_ERROR_NOT_SUPPORTED;
		small(f, s->core->temperature_mem);
		return NVML_SUCCESS;
	case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
		number(f, s->core->energy);
		return NVML_SUCCESS;
	case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
		small(f, s->core->pcie_replays);
		return NVML_SUCCESS;
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
		small(f, s->core->lost ? NVML_GPU_RECOVERY_ACTION_GPU_RESET : NVML_GPU_RECOVERY_ACTION_NONE);
		return NVML_SUCCESS;
	case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
		if (!s->model->mig_profile_count)
			return NVML_ERROR_NOT_SUPPORTED;
		small(f, s->model->architecture >= NVML_DEVICE_ARCH_HOPPER);
		return NVML_SUCCESS;
	case NVML_FI_DEV_PCIE_OUTBOUND_ATOMICS_MASK: /* bits 0 to 5: FETCHADD, SWAP and CAS of 32 and 64 bits */
	case NVML_FI_DEV_PCIE_INBOUND_ATOMICS_MASK:
		if (!(s->model->pcie_atomics & (f->fieldId == NVML_FI_DEV_PCIE_INBOUND_ATOMICS_MASK ? 1 : 2)))
			return NVML_ERROR_NOT_SUPPORTED;
		small(f, 0x3f);
		return NVML_SUCCESS;
	case NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS:
		small(f, 0);
		return NVML_SUCCESS;
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: /* nanoseconds; the fake never slows a GPU down */
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
	case NVML_FI_DEV_PERF_POLICY_POWER:
	case NVML_FI_DEV_PERF_POLICY_THERMAL:
	case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
	case NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT:
	case NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION:
	case NVML_FI_DEV_PERF_POLICY_RELIABILITY:
	case NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS:
	case NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS:
		number(f, 0);
		return NVML_SUCCESS;
	case NVML_FI_DEV_RETIRED_SBE:
	case NVML_FI_DEV_RETIRED_DBE:
	case NVML_FI_DEV_RETIRED_PENDING:
		if (!s->model->ecc || s->model->architecture >= NVML_DEVICE_ARCH_AMPERE)
			return NVML_ERROR_NOT_SUPPORTED;
		number(f, f->fieldId == NVML_FI_DEV_RETIRED_SBE   ? s->core->ecc.retired_single_bit
			  : f->fieldId == NVML_FI_DEV_RETIRED_DBE ? s->core->ecc.retired_double_bit
								  : 0);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

/* Power is of one of the scopes of nvmlPowerScopeType_t: the GPU, its module with the CPU, or the memory. */
static nvmlReturn_t power_field(const struct source *s, nvmlFieldValue_t *f)
{
	const struct ff_model *m = s->model;
	bool module = f->scopeId == NVML_POWER_SCOPE_MODULE;
	if (f->fieldId < NVML_FI_DEV_POWER_AVERAGE || f->fieldId > NVML_FI_DEV_POWER_REQUESTED_LIMIT)
		return NVML_ERROR_NOT_SUPPORTED;
	if (module && !m->module_max)
		return NVML_ERROR_NOT_SUPPORTED;
	if (f->scopeId == NVML_POWER_SCOPE_MEMORY) {
		if (f->fieldId != NVML_FI_DEV_POWER_AVERAGE || !s->core->memory_power)
			return NVML_ERROR_NOT_SUPPORTED;
		small(f, s->core->memory_power);
		return NVML_SUCCESS;
	}
	switch (f->fieldId) {
	case NVML_FI_DEV_POWER_AVERAGE:
	case NVML_FI_DEV_POWER_INSTANT:
		small(f, module ? s->core->module_power : s->core->power);
		return NVML_SUCCESS;
	case NVML_FI_DEV_POWER_MIN_LIMIT:
		small(f, module ? m->module_min : m->power_min);
		return NVML_SUCCESS;
	case NVML_FI_DEV_POWER_MAX_LIMIT:
		small(f, module ? m->module_max : m->power_max);
		return NVML_SUCCESS;
	case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
		small(f, module ? m->module_default : m->power_default);
		return NVML_SUCCESS;
	default:
		small(f, module ? m->module_default : s->core->power_limit);
		return NVML_SUCCESS;
	}
}

/* The link between the GPU and a CPU that share one address space. */
static nvmlReturn_t c2c_field(const struct source *s, nvmlFieldValue_t *f)
{
	if (!s->model->coherent)
		return NVML_ERROR_NOT_SUPPORTED;
	switch (f->fieldId) {
	case NVML_FI_DEV_C2C_LINK_COUNT:
		small(f, 1);
		return NVML_SUCCESS;
	case NVML_FI_DEV_C2C_LINK_GET_STATUS:
		small(f, 1);
		return NVML_SUCCESS;
	case NVML_FI_DEV_C2C_LINK_GET_MAX_BW: /* MB/s of each link in one direction; 450 GB/s as NVIDIA's pages on Grace Hopper and Blackwell
											 give them */
		small(f, 450000);
		return NVML_SUCCESS;
	case NVML_FI_DEV_C2C_LINK_ERROR_INTR:
	case NVML_FI_DEV_C2C_LINK_ERROR_REPLAY:
	case NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B:
		number(f, 0);
		return NVML_SUCCESS;
	case NVML_FI_DEV_C2C_LINK_POWER_STATE:
		small(f, NVML_C2C_POWER_STATE_FULL_POWER);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct ff_model model;
	struct timeval now;
	OUT(values && count > 0);
	TARGET(ff_whole_gpu);
	struct source s = {.core = &t.core, .model = &model};
	if ((r = ff_model(&model)) != NVML_SUCCESS)
		return r;
	if (!ff_state_copy(ff_gpu_offset(t.gpu) + offsetof(struct ff_gpu, links), s.links, sizeof s.links))
		return NVML_ERROR_UNKNOWN;
	gettimeofday(&now, NULL);
	for (int i = 0; i < count; i++) {
		nvmlFieldValue_t *f = &values[i];
		f->timestamp = (long long)now.tv_sec * 1000000 + now.tv_usec;
		f->latencyUsec = 0;
		f->nvmlReturn = link_field(&s, f);
		if (f->nvmlReturn == NVML_ERROR_NOT_SUPPORTED)
			f->nvmlReturn = ecc_field(&s, f);
		if (f->nvmlReturn == NVML_ERROR_NOT_SUPPORTED)
			f->nvmlReturn = other_field(&s, f);
		if (f->nvmlReturn == NVML_ERROR_NOT_SUPPORTED)
			f->nvmlReturn = power_field(&s, f);
		if (f->nvmlReturn == NVML_ERROR_NOT_SUPPORTED)
			f->nvmlReturn = c2c_field(&s, f);
	}
	return NVML_SUCCESS;
}
