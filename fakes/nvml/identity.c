/* What a GPU is: names, numbers, PCI, places. */
#include <stdio.h>
#include <string.h>

#include "mig_rules.h"
#include "target.h"

CORE_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, t.core.minor)
CORE_NUMBER(nvmlDeviceGetModuleId, unsigned int, t.core.module)
CORE_NUMBER(nvmlDeviceGetBoardId, unsigned int, t.core.domain << 16 | t.core.bus << 8 | t.core.device << 3)
CORE_NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
CORE_NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
CORE_NUMBER(nvmlDeviceGetInforomConfigurationChecksum, unsigned int, 0)
CORE_NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
MODEL_NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
MODEL_NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
MODEL_NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, cores)
MODEL_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, memory_bus_bits)
MODEL_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_link)
MODEL_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, pcie_generation)
MODEL_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_link)
MODEL_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width)
MODEL_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)

nvmlReturn_t impl_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	OUT(index);
	TARGET(ff_device);
	if (t.mig)
		return ff_mig_index(&t, index);
	*index = ff_visible_before(t.gpu);
	return NVML_SUCCESS;
}

/* The instances of a MIG device, or NOT_FOUND when it has been destroyed. */
static nvmlReturn_t mig_parts(const struct ff_target *t, struct ff_gpu_instance *gi, struct ff_compute_instance *ci)
{
	struct ff_gpu_instance all[FF_MAX_GPU_INSTANCES];
	if (!ff_state_copy(ff_gpu_offset(t->gpu) + offsetof(struct ff_gpu, instances), all, sizeof all))
		return NVML_ERROR_UNKNOWN;
	for (int i = 0; i < FF_MAX_GPU_INSTANCES; i++)
		for (int j = 0; all[i].used && all[i].id == t->gi && j < FF_MAX_COMPUTE_INSTANCES; j++)
			if (all[i].computes[j].used && all[i].computes[j].id == t->ci) {
				*gi = all[i];
				*ci = all[i].computes[j];
				return NVML_SUCCESS;
			}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[48];
	TARGET(ff_device);
	if (t.mig) {
		struct ff_gpu_instance gi;
		struct ff_compute_instance ci;
		r = mig_parts(&t, &gi, &ci);
		if (r != NVML_SUCCESS)
			return r;
		ff_uuid_text(text, "MIG-", ci.uuid);
	} else {
		ff_uuid_text(text, "GPU-", t.core.uuid);
	}
	return FF_TEXT(uuid, length, text);
}

nvmlReturn_t impl_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	char text[sizeof ((struct ff_model *)0)->name + 64];
	TARGET(ff_device);
	if (!FF_MODEL(name, text))
		return NVML_ERROR_UNKNOWN;
	text[sizeof ((struct ff_model *)0)->name - 1] = 0;
	if (t.mig) {
		struct ff_gpu_instance gi;
		struct ff_compute_instance ci;
		struct ff_mig_profile p;
		r = mig_parts(&t, &gi, &ci);
		if (r != NVML_SUCCESS)
			return r;
		if (gi.profile >= FF_MAX_MIG_PROFILES || ci.profile >= FF_MAX_CI_PROFILES ||
		    !ff_state_copy(offsetof(struct ff_node, model.mig_profiles) + gi.profile * sizeof p, &p, sizeof p))
			return NVML_ERROR_UNKNOWN;
		size_t n = strlen(text);
		if (p.ci_profiles[ci.profile].slices < p.slices)
			snprintf(text + n, sizeof text - n, " MIG %uc.%.31s", p.ci_profiles[ci.profile].slices, p.name);
		else
			snprintf(text + n, sizeof text - n, " MIG %.31s", p.name);
	}
	return FF_TEXT(name, length, text);
}

nvmlReturn_t impl_nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	TARGET(ff_whole_gpu);
	return FF_TEXT(serial, length, t.core.serial);
}

#define MODEL_TEXT(function, member)                                                              \
	nvmlReturn_t impl_##function(nvmlDevice_t device, char *out, unsigned int length)           \
	{                                                                                           \
		char text[sizeof ((struct ff_model *)0)->member];                                   \
		TARGET(ff_whole_gpu);                                                               \
		if (!FF_MODEL(member, text))                                                        \
			return NVML_ERROR_UNKNOWN;                                                  \
		return text[0] ? FF_TEXT(out, length, text) : NVML_ERROR_NOT_SUPPORTED;             \
	}

MODEL_TEXT(nvmlDeviceGetBoardPartNumber, board_part)
MODEL_TEXT(nvmlDeviceGetVbiosVersion, vbios)
MODEL_TEXT(nvmlDeviceGetInforomImageVersion, info_rom)

nvmlReturn_t impl_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	uint32_t a, b;
	OUT(major && minor);
	TARGET(ff_device);
	if (!FF_MODEL(compute_major, &a) || !FF_MODEL(compute_minor, &b))
		return NVML_ERROR_UNKNOWN;
	*major = (int)a;
	*minor = (int)b;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	OUT(pci);
	TARGET(ff_whole_gpu);
	memset(pci, 0, sizeof *pci);
	pci->domain = t.core.domain;
	pci->bus = t.core.bus;
	pci->device = t.core.device;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xffff, pci->bus & 0xff,
		pci->device & 0xff);
	snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain, pci->bus & 0xff, pci->device & 0xff);
	if (!FF_MODEL(pci_device, &pci->pciDeviceId) || !FF_MODEL(pci_subsystem, &pci->pciSubSystemId))
		return NVML_ERROR_UNKNOWN;
	return NVML_SUCCESS;
}

/* Version 2 has four reserved numbers, which is half of the place that version 3 has for busId; version 1 ends before pciSubSystemId. */
nvmlReturn_t impl_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	OUT(pci);
	nvmlReturn_t r = impl_nvmlDeviceGetPciInfo_v3(device, &whole);
	if (r == NVML_SUCCESS) {
		memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
		memset((char *)pci + offsetof(nvmlPciInfo_t, busId), 0, 4 * sizeof(unsigned int));
	}
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	OUT(pci);
	nvmlReturn_t r = impl_nvmlDeviceGetPciInfo_v3(device, &whole);
	if (r == NVML_SUCCESS)
		memcpy(pci, &whole, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return r;
}

nvmlReturn_t impl_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	nvmlPciInfo_t whole;
	VERSION(pci, nvmlPciInfoExt_v1);
	nvmlReturn_t r = impl_nvmlDeviceGetPciInfo_v3(device, &whole);
	if (r != NVML_SUCCESS)
		return r;
	pci->domain = whole.domain;
	pci->bus = whole.bus;
	pci->device = whole.device;
	pci->pciDeviceId = whole.pciDeviceId;
	pci->pciSubSystemId = whole.pciSubSystemId;
	pci->baseClass = 0x03;
	pci->subClass = 0x02;
	memcpy(pci->busId, whole.busId, sizeof pci->busId);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	OUT(node);
	TARGET(ff_whole_gpu);
	if (t.core.memory_numa_node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*node = (unsigned int)t.core.memory_numa_node;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetCpuAffinityWithinScope(
	nvmlDevice_t device, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope)
{
	OUT(set && words && scope <= NVML_AFFINITY_SCOPE_SOCKET);
	TARGET(ff_whole_gpu);
	for (unsigned int i = 0; i < words; i++)
		set[i] = i < FF_CPU_WORDS ? t.core.cpus[i] : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	return impl_nvmlDeviceGetCpuAffinityWithinScope(device, words, set, NVML_AFFINITY_SCOPE_NODE);
}

nvmlReturn_t impl_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope)
{
	OUT(set && words && scope <= NVML_AFFINITY_SCOPE_SOCKET);
	TARGET(ff_whole_gpu);
	for (unsigned int i = 0; i < words; i++)
		set[i] = i < FF_MEMORY_WORDS ? t.core.memory_nodes[i] : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	uint32_t v;
	VERSION(mode, nvmlDeviceAddressingMode_v1);
	TARGET(ff_device);
	if (!FF_MODEL(addressing_mode, &v))
		return NVML_ERROR_UNKNOWN;
	mode->value = v;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
	OUT(mode);
	uint32_t v;
	TARGET(ff_device);
	if (!FF_MODEL(virtualization, &v))
		return NVML_ERROR_UNKNOWN;
	*mode = (nvmlGpuVirtualizationMode_t)v;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	struct ff_gpu_instance gi;
	struct ff_compute_instance ci;
	struct ff_mig_profile p;
	OUT(out);
	TARGET(ff_device);
	if (!t.mig)
		return NVML_ERROR_NOT_SUPPORTED;
	r = mig_parts(&t, &gi, &ci);
	if (r != NVML_SUCCESS)
		return r;
	if (gi.profile >= FF_MAX_MIG_PROFILES || ci.profile >= FF_MAX_CI_PROFILES ||
	    !ff_state_copy(offsetof(struct ff_node, model.mig_profiles) + gi.profile * sizeof p, &p, sizeof p))
		return NVML_ERROR_UNKNOWN;
	*out = (nvmlDeviceAttributes_t){
		.multiprocessorCount = p.ci_profiles[ci.profile].multiprocessors,
		.sharedCopyEngineCount = p.copy_engines,
		.sharedDecoderCount = p.decoders,
		.sharedEncoderCount = p.encoders,
		.sharedJpegCount = p.jpeg,
		.sharedOfaCount = p.ofa,
		.gpuInstanceSliceCount = p.slices,
		.computeInstanceSliceCount = p.ci_profiles[ci.profile].slices,
		.memorySizeMB = p.memory_mib,
	};
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	return impl_nvmlDeviceGetAttributes_v2(device, out);
}
