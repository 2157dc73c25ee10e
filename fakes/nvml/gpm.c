/* GPU performance monitoring (GPM), which Hopper and later have: two samples of a GPU, and what happened between them. DCGM makes its
 * DCGM_FI_PROF_* fields of these. */
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "process.h"
#include "target.h"

struct nvmlGpmSample_st {
	uint64_t at;         /* microseconds since the epoch; 0: not taken yet */
	double utilization;  /* percent, of the GPU */
	double memory;       /* percent, of the memory's bandwidth */
	uint32_t links;
	bool taken;
};

nvmlReturn_t impl_nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	OUT(sample);
	sample->handle = calloc(1, sizeof *sample->handle);
	return sample->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t impl_nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	OUT(sample.handle);
	free(sample.handle);
	return NVML_SUCCESS;
}

static nvmlReturn_t supported(void)
{
	uint32_t architecture;
	if (!FF_MODEL(architecture, &architecture))
		return NVML_ERROR_UNKNOWN;
	return architecture >= NVML_DEVICE_ARCH_HOPPER ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out)
{
	VERSION(out, NVML_GPM_SUPPORT_VERSION);
	TARGET(ff_whole_gpu);
	out->isSupportedDevice = supported() == NVML_SUCCESS;
	return NVML_SUCCESS;
}

/* The sample of one GPU instance is that of the processes in it; FF_NONE takes all. */
static nvmlReturn_t sample(nvmlDevice_t device, uint32_t instance, struct nvmlGpmSample_st *out)
{
	struct ff_process list[FF_MAX_PROCESSES];
	struct timeval now;
	OUT(out);
	TARGET(ff_whole_gpu);
	if ((r = supported()) != NVML_SUCCESS)
		return r;
	if (!FF_MODEL(link_count, &out->links) ||
	    !ff_state_copy(ff_gpu_offset(t.gpu) + offsetof(struct ff_gpu, processes), list, sizeof list))
		return NVML_ERROR_UNKNOWN;
	gettimeofday(&now, NULL);
	out->at = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_usec;
	out->utilization = instance == FF_NONE ? t.core.utilization_gpu : 0;
	out->memory = instance == FF_NONE ? t.core.utilization_mem : 0;
	for (int i = 0; i < FF_MAX_PROCESSES; i++)
		if (list[i].pid && list[i].busy_until > out->at && (instance == FF_NONE || list[i].gpu_instance == instance) &&
		    ff_process_alive(&list[i]))
			out->utilization = 100;
	out->taken = true;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t out)
{
	return sample(device, FF_NONE, out.handle);
}

nvmlReturn_t impl_nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t out)
{
	OUT(instance != FF_NONE);
	return sample(device, instance, out.handle);
}

/* The value of a metric at this use: the SMs' activity as the use, half of it on tensor cores and in single precision, occupancy half, the
 * memory's bandwidth as scripted or a third of the use. PCIe and NVLink carry nothing. The shares are made up: the stand-in for CUDA
 * computes nothing. */
static nvmlReturn_t metric(unsigned int id, double use, double memory, uint32_t links, double *value)
{
	switch (id) {
	case NVML_GPM_METRIC_GRAPHICS_UTIL:
	case NVML_GPM_METRIC_SM_UTIL:
		*value = use;
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_SM_OCCUPANCY:
	case NVML_GPM_METRIC_ANY_TENSOR_UTIL:
	case NVML_GPM_METRIC_HMMA_TENSOR_UTIL:
	case NVML_GPM_METRIC_FP32_UTIL:
		*value = use / 2;
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_INTEGER_UTIL:
	case NVML_GPM_METRIC_FP16_UTIL:
		*value = use / 10;
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_DRAM_BW_UTIL:
		*value = memory > 0 ? memory : use / 3;
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_DFMA_TENSOR_UTIL:
	case NVML_GPM_METRIC_DMMA_TENSOR_UTIL:
	case NVML_GPM_METRIC_IMMA_TENSOR_UTIL:
	case NVML_GPM_METRIC_FP64_UTIL:
	case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
	case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
		*value = 0;
		return NVML_SUCCESS;
	}
	*value = 0;
	if (id >= NVML_GPM_METRIC_NVDEC_0_UTIL && id <= NVML_GPM_METRIC_NVOFA_1_UTIL)
		return NVML_SUCCESS;
	if (id >= NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC && id <= NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC) {
		bool total = id <= NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC;
		return links > (total ? 0 : (id - NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC) / 2) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	VERSION(get, NVML_GPM_METRICS_GET_VERSION);
	OUT(get->numMetrics <= NVML_GPM_METRIC_MAX && get->sample1.handle && get->sample2.handle);
	const struct nvmlGpmSample_st *a = get->sample1.handle, *b = get->sample2.handle;
	OUT(a->taken && b->taken);
	for (unsigned int i = 0; i < get->numMetrics; i++) {
		nvmlGpmMetric_t *m = &get->metrics[i];
		m->nvmlReturn = metric(m->metricId, (a->utilization + b->utilization) / 2, (a->memory + b->memory) / 2, b->links, &m->value);
		memset(&m->metricInfo, 0, sizeof m->metricInfo);
	}
	return NVML_SUCCESS;
}
