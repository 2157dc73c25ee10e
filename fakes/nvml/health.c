/* Where a GPU is in its chassis, and what is wrong with its memory: what monitors such as DCGM read beside telemetry. */
#include <string.h>
#include <sys/time.h>

#include "target.h"

/* nvml.h: version 2 has the chassis' serial number, where version 1 has the rack's GUID. Both have the same size. */
nvmlReturn_t impl_nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
	uint32_t known, host, peer;
	OUT(info);
	if (info->version != nvmlPlatformInfo_v2 && info->version != NVML_STRUCT_VERSION(PlatformInfo, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(platform_known, &known) || !FF_MODEL(platform_host, &host) || !FF_MODEL(platform_peer, &peer))
		return NVML_ERROR_UNKNOWN;
	if (!known)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info->ibGuid, 0, sizeof info->ibGuid);
	for (int i = 0; i < 8; i++)
		info->ibGuid[15 - i] = (unsigned char)(t.core.fabric_guid >> 8 * i);
	memcpy(info->chassisSerialNumber, t.core.chassis, sizeof info->chassisSerialNumber);
	info->slotNumber = (unsigned char)t.core.slot;
	info->trayIndex = (unsigned char)t.core.tray;
	info->hostId = (unsigned char)host;
	info->peerType = (unsigned char)peer;
	info->moduleId = (unsigned char)t.core.module;
	return NVML_SUCCESS;
}

/* From Hopper on boards with NVLink report whether there is a link to the CPU. */
nvmlReturn_t impl_nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info)
{
	uint32_t coherent, architecture, links;
	OUT(info);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(coherent, &coherent) || !FF_MODEL(architecture, &architecture) || !FF_MODEL(link_count, &links))
		return NVML_ERROR_UNKNOWN;
	if (!coherent && (architecture < NVML_DEVICE_ARCH_HOPPER || !links))
		return NVML_ERROR_NOT_SUPPORTED;
	info->isC2cEnabled = coherent;
	return NVML_SUCCESS;
}

/* From Ampere on; errors that parity or SEC-DED found are counted for the SMs, where most of the SRAM is. */
nvmlReturn_t impl_nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
	uint32_t ecc, architecture;
	VERSION(out, nvmlEccSramErrorStatus_v1);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(ecc, &ecc) || !FF_MODEL(architecture, &architecture))
		return NVML_ERROR_UNKNOWN;
	if (!ecc || architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct ff_sram *now = &t.core.ecc.volatile_sram, *ever = &t.core.ecc.aggregate_sram;
	*out = (nvmlEccSramErrorStatus_t){
		.version = out->version,
		.aggregateUncParity = ever->parity,
		.aggregateUncSecDed = ever->secded,
		.aggregateCor = ever->corrected,
		.volatileUncParity = now->parity,
		.volatileUncSecDed = now->secded,
		.volatileCor = now->corrected,
		.aggregateUncBucketSm = ever->parity + ever->secded,
	};
	return NVML_SUCCESS;
}

/* Every bank begins with all of its rows to spare (max); a bank with a remapped row is counted as high. */
nvmlReturn_t impl_nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
	uint32_t banks;
	OUT(values);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(remapper_banks, &banks))
		return NVML_ERROR_UNKNOWN;
	if (!banks)
		return NVML_ERROR_NOT_SUPPORTED;
	uint32_t remapped = t.core.ecc.remapped_correctable + t.core.ecc.remapped_uncorrectable;
	remapped = remapped < banks ? remapped : banks;
	*values = (nvmlRowRemapperHistogramValues_t){.max = banks - remapped, .high = remapped};
	return NVML_SUCCESS;
}

/* Pages are retired before Ampere, which remaps rows. */
static nvmlReturn_t retires(void)
{
	uint32_t ecc, architecture;
	if (!FF_MODEL(ecc, &ecc) || !FF_MODEL(architecture, &architecture))
		return NVML_ERROR_UNKNOWN;
	return ecc && architecture < NVML_DEVICE_ARCH_AMPERE ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The addresses are made up: one page of 64 KiB after the other, from the top for double-bit errors. Without a place for the times none are
 * written. */
nvmlReturn_t impl_nvmlDeviceGetRetiredPages_v2(
	nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *pages, unsigned long long *times)
{
	OUT(count && cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT && (pages || !*count));
	TARGET(ff_whole_gpu);
	if ((r = retires()) != NVML_SUCCESS)
		return r;
	const struct ff_ecc *e = &t.core.ecc;
	unsigned int n = cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? e->retired_double_bit : e->retired_single_bit;
	unsigned int room = *count;
	*count = n;
	if (room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++) {
		pages[i] = ((cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? 0x8000ull : 0) + i) << 16;
		if (times)
			times[i] = 0;
	}
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPages(
	nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *pages)
{
	return impl_nvmlDeviceGetRetiredPages_v2(device, cause, count, pages, NULL);
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
	OUT(pending);
	TARGET(ff_whole_gpu);
	if ((r = retires()) != NVML_SUCCESS)
		return r;
	*pending = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

/* How far the GPU is below the temperature at which it slows down (T.Limit), from Ada on. */
nvmlReturn_t impl_nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
	uint32_t most, architecture;
	VERSION(out, nvmlMarginTemperature_v1);
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(temp_max, &most) || !FF_MODEL(architecture, &architecture))
		return NVML_ERROR_UNKNOWN;
	if (!most || architecture < NVML_DEVICE_ARCH_ADA)
		return NVML_ERROR_NOT_SUPPORTED;
	out->marginTemperature = (int)most - (int)t.core.temperature;
	return NVML_SUCCESS;
}

/* The fake never slows a GPU down, so that no time was lost to any policy. The times are microseconds since the epoch, and nanoseconds. */
nvmlReturn_t impl_nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out)
{
	struct timeval now;
	OUT(out && policy < NVML_PERF_POLICY_COUNT);
	TARGET(ff_whole_gpu);
	gettimeofday(&now, NULL);
	out->referenceTime = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_usec;
	out->violationTime = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *version, unsigned int length)
{
	struct ff_model m;
	OUT(version && object < NVML_INFOROM_COUNT);
	TARGET(ff_whole_gpu);
	if ((r = ff_model(&m)) != NVML_SUCCESS)
		return r;
	const char *text = object == NVML_INFOROM_OEM ? m.info_rom_oem : object == NVML_INFOROM_ECC ? m.info_rom_ecc : "";
	if (!text[0])
		return NVML_ERROR_NOT_SUPPORTED;
	size_t n = strnlen(text, sizeof m.info_rom_oem);
	if (n >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(version, text, n);
	version[n] = 0;
	return NVML_SUCCESS;
}
