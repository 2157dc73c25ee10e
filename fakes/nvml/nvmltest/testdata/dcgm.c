/* Calls what NVIDIA's DCGM calls beside the common getters, and prints each result, with a value where there is one. */
#include <nvml.h>
#include <stdio.h>
#include <string.h>

#define SAY(name, r, format, ...) printf("%s %d " format "\n", name, (int)(r), __VA_ARGS__)

static void fields(nvmlDevice_t d)
{
	static const struct {
		const char *name;
		unsigned int id, scope;
	} all[] = {{"module power", NVML_FI_DEV_POWER_INSTANT, NVML_POWER_SCOPE_MODULE},
		   {"module limit", NVML_FI_DEV_POWER_MAX_LIMIT, NVML_POWER_SCOPE_MODULE},
		   {"memory power", NVML_FI_DEV_POWER_AVERAGE, NVML_POWER_SCOPE_MEMORY},
		   {"GPU limit", NVML_FI_DEV_POWER_MAX_LIMIT, NVML_POWER_SCOPE_GPU},
		   {"C2C links", NVML_FI_DEV_C2C_LINK_COUNT, 0},
		   {"C2C status", NVML_FI_DEV_C2C_LINK_GET_STATUS, 0},
		   {"memory temperature", NVML_FI_DEV_MEMORY_TEMP, 0},
		   {"power cap", NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, 0},
		   {"retired", NVML_FI_DEV_RETIRED_DBE, 0},
		   {"inbound atomics", NVML_FI_DEV_PCIE_INBOUND_ATOMICS_MASK, 0}};
	for (unsigned int i = 0; i < sizeof all / sizeof all[0]; i++) {
		nvmlFieldValue_t f = {.fieldId = all[i].id, .scopeId = all[i].scope};
		nvmlDeviceGetFieldValues(d, 1, &f);
		SAY(all[i].name, f.nvmlReturn, "%llu",
		    f.nvmlReturn ? 0ull : f.valueType == NVML_VALUE_TYPE_UNSIGNED_INT ? f.value.uiVal : f.value.ullVal);
	}
}

static void gpm(nvmlDevice_t d)
{
	static nvmlGpmMetricsGet_t get;
	nvmlGpmSupport_t support = {.version = NVML_GPM_SUPPORT_VERSION};
	nvmlReturn_t r = nvmlGpmQueryDeviceSupport(d, &support);
	SAY("GPM", r, "%u", support.isSupportedDevice);
	get.version = NVML_GPM_METRICS_GET_VERSION;
	get.numMetrics = 4;
	get.metrics[0].metricId = NVML_GPM_METRIC_SM_UTIL;
	get.metrics[1].metricId = NVML_GPM_METRIC_DRAM_BW_UTIL;
	get.metrics[2].metricId = NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC;
	get.metrics[3].metricId = NVML_GPM_METRIC_MAX - 1;
	nvmlGpmSampleAlloc(&get.sample1);
	nvmlGpmSampleAlloc(&get.sample2);
	r = nvmlGpmMetricsGet(&get);
	SAY("metrics of no samples", r, "%d", 0);
	r = nvmlGpmSampleGet(d, get.sample1);
	SAY("sample", r, "%d", 0);
	nvmlGpmSampleGet(d, get.sample2);
	r = nvmlGpmMetricsGet(&get);
	SAY("metrics", r, "%d", 0);
	for (int i = 0; r == NVML_SUCCESS && i < 4; i++)
		printf("metric %u %d %.0f\n", get.metrics[i].metricId, (int)get.metrics[i].nvmlReturn, get.metrics[i].value);
	nvmlGpmSampleFree(get.sample1);
	nvmlGpmSampleFree(get.sample2);
}

int main(void)
{
	nvmlDevice_t d;
	unsigned int n, m;
	char text[32];
	unsigned long long pages[8], times[8];
	nvmlEnableState_t pending;
	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &d))
		return 1;
	nvmlPlatformInfo_t platform = {.version = nvmlPlatformInfo_v2};
	nvmlReturn_t r = nvmlDeviceGetPlatformInfo(d, &platform);
	SAY("platform", r, "%u %u %u", r ? 0 : platform.hostId, r ? 0 : platform.peerType, r ? 0 : platform.moduleId);
	nvmlC2cModeInfo_v1_t c2c = {0};
	r = nvmlDeviceGetC2cModeInfoV(d, &c2c);
	SAY("C2C", r, "%u", c2c.isC2cEnabled);
	nvmlEccSramErrorStatus_t sram = {.version = nvmlEccSramErrorStatus_v1};
	r = nvmlDeviceGetSramEccErrorStatus(d, &sram);
	SAY("SRAM", r, "%llu", sram.volatileUncParity);
	sram.version = 7;
	r = nvmlDeviceGetSramEccErrorStatus(d, &sram);
	SAY("SRAM of another version", r, "%d", 0);
	nvmlRowRemapperHistogramValues_t rows = {0};
	r = nvmlDeviceGetRowRemapperHistogram(d, &rows);
	SAY("rows", r, "%u %u", rows.max, rows.high);
	nvmlViolationTime_t violation;
	r = nvmlDeviceGetViolationStatus(d, NVML_PERF_POLICY_THERMAL, &violation);
	SAY("violation", r, "%llu", violation.violationTime);
	nvmlMarginTemperature_t margin = {.version = nvmlMarginTemperature_v1};
	r = nvmlDeviceGetMarginTemperature(d, &margin);
	SAY("margin", r, "%d", margin.marginTemperature);
	n = 8;
	r = nvmlDeviceGetRetiredPages_v2(d, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, &n, pages, times);
	SAY("retired pages", r, "%u", r ? 0 : n);
	r = nvmlDeviceGetRetiredPagesPendingStatus(d, &pending);
	SAY("retired pending", r, "%d", 0);
	r = nvmlDeviceGetInforomVersion(d, NVML_INFOROM_ECC, text, sizeof text);
	SAY("InfoROM ECC", r, "%s", r ? "" : text);
	r = nvmlDeviceGetInforomVersion(d, NVML_INFOROM_ECC, text, 2);
	SAY("InfoROM ECC without room", r, "%d", 0);
	r = nvmlDeviceGetMaxCustomerBoostClock(d, NVML_CLOCK_GRAPHICS, &n);
	SAY("boost", r, "%u", n);
	n = 0;
	r = nvmlDeviceGetSupportedMemoryClocks(d, &n, NULL);
	SAY("memory clocks", r, "%u", n);
	n = 1;
	r = nvmlDeviceGetSupportedMemoryClocks(d, &n, &m);
	SAY("memory clock", r, "%u", m);
	n = 0;
	r = nvmlDeviceGetSupportedGraphicsClocks(d, m, &n, NULL);
	SAY("graphics clocks", r, "%d", n > 0);
	nvmlValueType_t kind;
	nvmlSample_t sample;
	n = 1;
	r = nvmlDeviceGetSamples(d, NVML_TOTAL_POWER_SAMPLES, 0, &kind, &n, &sample);
	SAY("power samples", r, "%u", sample.sampleValue.uiVal);
	r = nvmlDeviceGetPcieSpeed(d, &n);
	SAY("PCIe speed", r, "%u", n);
	r = nvmlDeviceGetNumFans(d, &n);
	SAY("fans", r, "%u", n);
	fields(d);
	gpm(d);
	return nvmlShutdown();
}
