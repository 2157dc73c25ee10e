/* MIG device handles: overloaded references to compute instances. */
#include "mig_rules.h"
#include "target.h"

nvmlReturn_t impl_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
	OUT(is);
	TARGET(ff_device);
	*is = t.mig;
	return NVML_SUCCESS;
}

/* The answer about the instance of a whole GPU: its handle is a wrong argument where GPUs have instances. */
static nvmlReturn_t no_instance(void)
{
	uint32_t most;
	return FF_MODEL(mig_max_instances, &most) && most ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	OUT(id);
	TARGET(ff_device);
	if (!t.mig)
		return no_instance();
	*id = t.gi;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	OUT(id);
	TARGET(ff_device);
	if (!t.mig)
		return no_instance();
	*id = t.ci;
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
	OUT(parent);
	TARGET(ff_device);
	if (!t.mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*parent = ff_gpu_handle(t.gpu);
	return NVML_SUCCESS;
}

nvmlReturn_t ff_mig_index(const struct ff_target *t, unsigned int *index)
{
	struct ff_model m;
	struct ff_gpu g;
	unsigned int before = 0;
	nvmlReturn_t r = ff_mig_read(t->gpu, &g, &m);
	if (r != NVML_SUCCESS)
		return r;
	for (unsigned int gi = 0; gi < FF_GI_IDS; gi++)
		for (unsigned int ci = 0; ci < FF_CI_IDS; ci++) {
			if (!ff_mig_ci(ff_mig_gi(&g, gi), ci))
				continue;
			if (gi == t->gi && ci == t->ci) {
				*index = before;
				return NVML_SUCCESS;
			}
			before++;
		}
	return NVML_ERROR_NOT_FOUND;
}

/* MIG devices are counted in the order of their GPU instances' and then their compute instances' IDs. */
nvmlReturn_t impl_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	struct ff_model m;
	struct ff_gpu g;
	OUT(mig);
	TARGET(ff_whole_gpu);
	if ((r = ff_mig_read(t.gpu, &g, &m)) != NVML_SUCCESS)
		return r;
	if (!g.core.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	OUT(index < m.mig_max_instances);
	for (unsigned int gi = 0; gi < FF_GI_IDS; gi++)
		for (unsigned int ci = 0; ci < FF_CI_IDS; ci++)
			if (ff_mig_ci(ff_mig_gi(&g, gi), ci) && index-- == 0) {
				*mig = ff_mig_handle(t.gpu, gi, ci);
				return NVML_SUCCESS;
			}
	return NVML_ERROR_NOT_FOUND;
}
