/* CUDA's functions that create and destroy contexts and load modules. Only NVML reports their memory. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>

#include "cores.h"
#include "devices.h"
#include "memory.h"
#include "overhead.h"

#define CREATE(name, parameters, arguments)                         \
	EXPORT CUresult name parameters                             \
	{                                                           \
		CUresult(*real) parameters = REAL(cuda, name);      \
		NEED(real);                                         \
		overhead_before(device);                            \
		CUresult r = real arguments;                        \
		if (r == CUDA_SUCCESS)                              \
			overhead_context(device);                   \
		return r;                                           \
	}

CREATE(cuCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device), (out, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext * out, void *affinity, int count, unsigned int flags, CUdevice device),
	(out, affinity, count, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext * out, void *with, unsigned int flags, CUdevice device), (out, with, flags, device))

static bool active(CUdevice device)
{
	CUresult (*state)(CUdevice, unsigned int *, int *) = REAL(cuda, cuDevicePrimaryCtxGetState);
	unsigned int flags;
	int is = 0;
	return state && state(device, &flags, &is) == CUDA_SUCCESS && is;
}

/* Programs and libraries retain the primary context often; only the first call creates it. */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	CUresult (*real)(CUcontext *, CUdevice) = REAL(cuda, cuDevicePrimaryCtxRetain);
	NEED(real);
	bool was = !limits_get() || active(device);
	if (!was)
		overhead_before(device);
	CUresult r = real(out, device);
	if (r == CUDA_SUCCESS && !was)
		overhead_context(device);
	return r;
}

static bool in_context(const struct holding *h, uint64_t context)
{
	return h->context && (uintptr_t)h->context == context;
}

/* A destroyed context frees its memory. */
static void context_gone(CUcontext context)
{
	if (context && limits_get())
		holdings_take_all(in_context, (uintptr_t)context, memory_freed);
	stocks_reset();
	for (int i = 0; limits_get() && i < limits_get()->count; i++)
		overhead_less(memory_limit(i));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult (*real)(CUcontext) = REAL(cuda, cuCtxDestroy_v2);
	NEED(real);
	cores_forget_context(context);
	CUresult r = real(context);
	if (r == CUDA_SUCCESS)
		context_gone(context);
	return r;
}

static CUcontext primary(CUdevice device)
{
	CUcontext context = NULL;
	CUresult (*retain)(CUcontext *, CUdevice) = REAL(cuda, cuDevicePrimaryCtxRetain);
	CUresult (*release)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxRelease_v2);
	/* Retaining a missing context would create it. */
	if (!limits_get() || !retain || !release || !active(device) || retain(&context, device) != CUDA_SUCCESS)
		return NULL;
	release(device);
	return context;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUresult (*real)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxReset_v2);
	NEED(real);
	CUcontext context = primary(device);
	cores_forget_context(context);
	CUresult r = real(device);
	if (r == CUDA_SUCCESS)
		context_gone(context);
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult (*real)(CUdevice) = REAL(cuda, cuDevicePrimaryCtxRelease_v2);
	NEED(real);
	CUcontext context = primary(device);
	cores_forget_context(context);
	CUresult r = real(device);
	if (r == CUDA_SUCCESS && context && !active(device))
		context_gone(context);
	return r;
}

/* Calls that load, unload, or look up a function for the next launch. */
#define MODULE(name, then, parameters, arguments)                   \
	EXPORT CUresult name parameters                             \
	{                                                           \
		CUresult(*real) parameters = REAL(cuda, name);      \
		NEED(real);                                         \
		CUresult r = real arguments;                        \
		if (r == CUDA_SUCCESS)                              \
			then;                                       \
		return r;                                           \
	}

#define LIBRARY_OPTIONS void *jit, void **jit_values, unsigned int jits, void *options, void **values, unsigned int count

MODULE(cuModuleLoad, overhead_module(), (CUmodule * out, const char *file), (out, file))
MODULE(cuModuleLoadData, overhead_module(), (CUmodule * out, const void *image), (out, image))
MODULE(cuModuleLoadDataEx, overhead_module(), (CUmodule * out, const void *image, unsigned int count, void *options, void **values),
       (out, image, count, options, values))
MODULE(cuModuleLoadFatBinary, overhead_module(), (CUmodule * out, const void *image), (out, image))
MODULE(cuModuleUnload, overhead_less(-1), (CUmodule module), (module))
MODULE(cuModuleGetFunction, overhead_kernel(), (CUfunction * out, CUmodule module, const char *kernel), (out, module, kernel))
MODULE(cuLibraryLoadData, overhead_module(), (void **out, const void *code, LIBRARY_OPTIONS),
	(out, code, jit, jit_values, jits, options, values, count))
MODULE(cuLibraryLoadFromFile, overhead_module(), (void **out, const char *file, LIBRARY_OPTIONS),
	(out, file, jit, jit_values, jits, options, values, count))
MODULE(cuLibraryUnload, overhead_less(-1), (void *library), (library))
MODULE(cuLibraryGetKernel, overhead_kernel(), (void **out, void *library, const char *kernel), (out, library, kernel))
MODULE(cuKernelGetFunction, overhead_kernel(), (CUfunction * out, void *kernel), (out, kernel))
