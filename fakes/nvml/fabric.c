/* NVLink, the fabric beyond it, and how far GPUs are apart. */
#include <stdio.h>
#include <string.h>

#include "target.h"

nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	OUT(info);
	TARGET(ff_whole_gpu);
	if (t.core.fabric_state == NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	memcpy(info->clusterUuid, t.core.fabric_cluster, sizeof info->clusterUuid);
	info->status = (nvmlReturn_t)t.core.fabric_status;
	info->cliqueId = t.core.fabric_clique;
	info->state = (nvmlGpuFabricState_t)t.core.fabric_state;
	return NVML_SUCCESS;
}

/* Version 2 ends before healthSummary, version 3 has it; both are told apart by the caller's version field. */
nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
	nvmlGpuFabricInfo_t basic;
	OUT(info);
	if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	TARGET(ff_whole_gpu);
	r = impl_nvmlDeviceGetGpuFabricInfo(device, &basic);
	if (r != NVML_SUCCESS)
		return r;
	memcpy(info->clusterUuid, basic.clusterUuid, sizeof info->clusterUuid);
	info->status = basic.status;
	info->cliqueId = basic.cliqueId;
	info->state = basic.state;
	info->healthMask = t.core.fabric_health;
	if (info->version == nvmlGpuFabricInfo_v3)
		info->healthSummary = (unsigned char)t.core.fabric_summary;
	return NVML_SUCCESS;
}

/* One clique for each type, as nvidia-smi -q of a Vera Rubin tray with driver 615.23 lists them (NVIDIA's k8s-test-infra). */
nvmlReturn_t impl_nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
	nvmlGpuFabricInfo_t basic;
	OUT(info);
	TARGET(ff_whole_gpu);
	r = impl_nvmlDeviceGetGpuFabricInfo(device, &basic);
	if (r != NVML_SUCCESS)
		return r;
	memset(info, 0, sizeof *info);
	memcpy(info->clusterUuid, basic.clusterUuid, sizeof info->clusterUuid);
	info->status = basic.status;
	info->state = basic.state;
	for (unsigned char type = NVML_GPU_FABRIC_CLIQUE_TYPE_UNICAST_POINTER; type <= NVML_GPU_FABRIC_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT;
		 type++) {
		info->cliques[info->numCliques].type = type;
		info->cliques[info->numCliques++].id = basic.cliqueId;
	}
	info->healthMask = t.core.fabric_health;
	info->healthSummary = (unsigned char)t.core.fabric_summary;
	return NVML_SUCCESS;
}

static nvmlReturn_t link_of(nvmlDevice_t device, unsigned int number, struct ff_link *link)
{
	uint32_t count;
	TARGET(ff_whole_gpu);
	if (!FF_MODEL(link_count, &count))
		return NVML_ERROR_UNKNOWN;
	if (number >= NVML_NVLINK_MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* A link that this GPU lacks is not supported, no bad argument: NVIDIA's nvidia-smi asks every GPU for all links that a header knows,
	 * and ends topo -m at any other answer. */
	if (number >= count || number >= FF_MAX_LINKS)
		return NVML_ERROR_NOT_SUPPORTED;
	return ff_state_copy(ff_gpu_offset(t.gpu) + offsetof(struct ff_gpu, links) + number * sizeof *link, link, sizeof *link)
		       ? NVML_SUCCESS
		       : NVML_ERROR_UNKNOWN;
}

#define LINK(number)                                           \
	struct ff_link link;                                   \
	nvmlReturn_t r = link_of(device, number, &link);       \
	if (r != NVML_SUCCESS)                                 \
		return r

nvmlReturn_t impl_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number, nvmlEnableState_t *active)
{
	OUT(active);
	LINK(number);
	*active = link.active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number, unsigned int *version)
{
	uint32_t v;
	OUT(version);
	LINK(number);
	if (!FF_MODEL(link_version, &v))
		return NVML_ERROR_UNKNOWN;
	*version = v;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkCapability(
	nvmlDevice_t device, unsigned int number, nvmlNvLinkCapability_t capability, unsigned int *result)
{
	OUT(result && capability < NVML_NVLINK_CAP_COUNT);
	LINK(number);
	*result = link.active && capability != NVML_NVLINK_CAP_SLI_BRIDGE;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
	OUT(pci);
	LINK(number);
	if (!link.active)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(pci, 0, sizeof *pci);
	pci->domain = link.domain;
	pci->bus = link.bus;
	pci->device = link.device;
	pci->pciDeviceId = link.pci_device;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, link.domain & 0xffff, link.bus & 0xff,
		link.device & 0xff);
	snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, link.domain, link.bus & 0xff, link.device & 0xff);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	OUT(pci);
	nvmlReturn_t r = impl_nvmlDeviceGetNvLinkRemotePciInfo_v2(device, number, &whole);
	if (r == NVML_SUCCESS)
		memcpy(pci, &whole, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number, nvmlIntNvLinkDeviceType_t *type)
{
	OUT(type);
	LINK(number);
	if (!link.active)
		return NVML_ERROR_NOT_SUPPORTED;
	*type = (nvmlIntNvLinkDeviceType_t)link.remote_type;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNvLinkErrorCounter(
	nvmlDevice_t device, unsigned int number, nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
	OUT(value);
	LINK(number);
	switch (counter) {
	case NVML_NVLINK_ERROR_DL_REPLAY:
		*value = link.replays;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_RECOVERY:
		*value = link.recoveries;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_CRC_FLIT:
	case NVML_NVLINK_ERROR_DL_CRC_DATA:
		*value = link.crc_errors;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_ECC_DATA:
		*value = 0;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t impl_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
	struct ff_target o;
	OUT(level);
	TARGET(ff_whole_gpu);
	r = ff_whole_gpu(other, &o);
	if (r != NVML_SUCCESS)
		return r;
	*level = (nvmlGpuTopologyLevel_t)t.core.topology[o.gpu];
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetTopologyNearestGpus(
	nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count, nvmlDevice_t *devices)
{
	unsigned int found = 0, all = ff_gpu_count();
	OUT(count);
	TARGET(ff_whole_gpu);
	for (unsigned int i = 0; i < all; i++) {
		if (i == t.gpu || t.core.topology[i] > (unsigned int)level)
			continue;
		if (devices && found < *count)
			devices[found] = ff_gpu_handle(i);
		found++;
	}
	bool fits = !devices || found <= *count;
	*count = found;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t impl_nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
	unsigned int found = 0, all = ff_gpu_count();
	OUT(count && cpu < FF_CPU_WORDS * 64);
	for (unsigned int i = 0; i < all; i++) {
		struct ff_target t;
		if (ff_device(ff_gpu_handle(i), &t) != NVML_SUCCESS || !(t.core.cpus[cpu / 64] >> cpu % 64 & 1))
			continue;
		if (devices && found < *count)
			devices[found] = ff_gpu_handle(i);
		found++;
	}
	bool fits = !devices || found <= *count;
	*count = found;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t impl_nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
	struct ff_target o;
	OUT(status && index < NVML_P2P_CAPS_INDEX_UNKNOWN);
	TARGET(ff_whole_gpu);
	r = ff_whole_gpu(other, &o);
	if (r != NVML_SUCCESS)
		return r;
	OUT(o.gpu != t.gpu);
	bool nvlink = t.core.p2p[o.gpu];
	switch (index) {
	case NVML_P2P_CAPS_INDEX_NVLINK:
	case NVML_P2P_CAPS_INDEX_ATOMICS:
		*status = nvlink ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
		return NVML_SUCCESS;
	case NVML_P2P_CAPS_INDEX_PCI:
		*status = t.core.topology[o.gpu] <= NVML_TOPOLOGY_HOSTBRIDGE ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		return NVML_SUCCESS;
	default:
		*status = nvlink || t.core.topology[o.gpu] <= NVML_TOPOLOGY_HOSTBRIDGE ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		return NVML_SUCCESS;
	}
}
