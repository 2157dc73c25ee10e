/* cuGetProcAddress, by which programs find the other functions. */
#define _GNU_SOURCE
#include <string.h>

#include "context.h"

enum { PER_THREAD_DEFAULT_STREAM = 2 };

/* A thread's own stream is the context's here, so the variants for it are the same. */
#define PER_THREAD(f, parameters, arguments)           \
	EXPORT CUresult f##_ptsz parameters;           \
	EXPORT CUresult f##_ptsz parameters            \
	{                                              \
		return f arguments;                    \
	}

PER_THREAD(cuMemAllocAsync, (CUdeviceptr * out, size_t size, CUstream s), (out, size, s))
PER_THREAD(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t size, CUmemoryPool p, CUstream s), (out, size, p, s))
PER_THREAD(cuMemFreeAsync, (CUdeviceptr address, CUstream s), (address, s))
PER_THREAD(cuGraphLaunch, (CUgraphExec e, CUstream s), (e, s))
PER_THREAD(cuGraphUpload, (CUgraphExec e, CUstream s), (e, s))
PER_THREAD(cuStreamSynchronize, (CUstream s), (s))
PER_THREAD(cuStreamIsCapturing, (CUstream s, int *status), (s, status))
PER_THREAD(cuStreamBeginCapture_v2, (CUstream s, int mode), (s, mode))
PER_THREAD(cuStreamEndCapture, (CUstream s, CUgraph *out), (s, out))

/* Names with the CUDA version that brought them to their present form; where it has several forms, that is asked by the version. */
struct entry {
	const char *name;
	void *function;
	int since;
	int per_thread;
};

#define NAME(f) {#f, (void *)f, 0, 0}
#define SECOND(f) {#f, (void *)f##_v2, 0, 0}
#define THREAD(f) {#f, (void *)f##_ptsz, 0, 1}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, unsigned long long flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status);

static const struct entry table[] = {
	NAME(cuInit),
	NAME(cuDriverGetVersion),
	NAME(cuDeviceGetCount),
	NAME(cuDeviceGet),
	NAME(cuDeviceGetName),
	SECOND(cuDeviceGetUuid),
	SECOND(cuDeviceTotalMem),
	NAME(cuDeviceGetPCIBusId),
	NAME(cuDeviceGetByPCIBusId),
	NAME(cuDeviceGetAttribute),
	SECOND(cuCtxCreate),
	NAME(cuDevicePrimaryCtxRetain),
	SECOND(cuDevicePrimaryCtxRelease),
	NAME(cuDevicePrimaryCtxGetState),
	SECOND(cuCtxDestroy),
	NAME(cuCtxSetCurrent),
	NAME(cuCtxGetCurrent),
	SECOND(cuCtxPushCurrent),
	SECOND(cuCtxPopCurrent),
	NAME(cuCtxGetDevice),
	SECOND(cuMemGetInfo),
	SECOND(cuMemAlloc),
	SECOND(cuMemFree),
	NAME(cuModuleLoadData),
	NAME(cuModuleUnload),
	NAME(cuModuleGetFunction),
	NAME(cuLaunchKernel),
	NAME(cuCtxSynchronize),
	NAME(cuStreamCreate),
	SECOND(cuStreamDestroy),
	NAME(cuStreamGetCtx),
	NAME(cuStreamSynchronize),
	THREAD(cuStreamSynchronize),
	NAME(cuGetErrorName),
	NAME(cuGetErrorString),
	NAME(cuLaunchCooperativeKernel),
	NAME(cuEventCreate),
	NAME(cuEventRecord),
	NAME(cuEventQuery),
	NAME(cuEventSynchronize),
	NAME(cuEventElapsedTime),
	SECOND(cuEventDestroy),
	SECOND(cuStreamBeginCapture),
	{"cuStreamBeginCapture", (void *)cuStreamBeginCapture_v2_ptsz, 0, 1},
	NAME(cuStreamIsCapturing),
	THREAD(cuStreamIsCapturing),
	NAME(cuStreamEndCapture),
	THREAD(cuStreamEndCapture),
	NAME(cuGraphCreate),
	NAME(cuGraphDestroy),
	NAME(cuThreadExchangeStreamCaptureMode),
	NAME(cuGraphAddMemAllocNode),
	NAME(cuGraphAddMemFreeNode),
	NAME(cuGraphAddNode),
	{"cuGraphAddNode", (void *)cuGraphAddNode_v2, 12030, 0},
	NAME(cuGraphGetNodes),
	NAME(cuGraphNodeGetType),
	NAME(cuGraphMemAllocNodeGetParams),
	NAME(cuGraphMemFreeNodeGetParams),
	NAME(cuGraphInstantiate),
	{"cuGraphInstantiate", (void *)cuGraphInstantiate_v2, 11000, 0},
	{"cuGraphInstantiate", (void *)cuGraphInstantiateWithFlags, 12000, 0},
	NAME(cuGraphInstantiateWithFlags),
	NAME(cuGraphUpload),
	THREAD(cuGraphUpload),
	NAME(cuGraphLaunch),
	THREAD(cuGraphLaunch),
	NAME(cuGraphExecDestroy),
	NAME(cuDeviceGraphMemTrim),
	NAME(cuDeviceGetGraphMemAttribute),
	NAME(cuDeviceSetGraphMemAttribute),
	NAME(cuDeviceGetDefaultMemPool),
	NAME(cuDeviceGetMemPool),
	NAME(cuDeviceSetMemPool),
	NAME(cuMemPoolCreate),
	NAME(cuMemPoolDestroy),
	NAME(cuMemPoolTrimTo),
	NAME(cuMemPoolGetAttribute),
	NAME(cuMemPoolSetAttribute),
	NAME(cuMemAllocAsync),
	THREAD(cuMemAllocAsync),
	NAME(cuMemAllocFromPoolAsync),
	THREAD(cuMemAllocFromPoolAsync),
	NAME(cuMemFreeAsync),
	THREAD(cuMemFreeAsync),
	NAME(cuGetProcAddress),
	{"cuGetProcAddress", (void *)cuGetProcAddress_v2, 12000, 0},
};

/* Looks a function up by its base name: the newest form that the version has is the one meant. */
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status)
{
	int best = -1;
	NEED(symbol && out, CUDA_ERROR_INVALID_VALUE);
	*out = NULL;
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		const struct entry *e = &table[i];
		if (strcmp(e->name, symbol) != 0 || e->since > version || (e->per_thread && !(flags & PER_THREAD_DEFAULT_STREAM)))
			continue;
		if (e->since + e->per_thread > best) {
			best = e->since + e->per_thread;
			*out = e->function;
		}
	}
	if (status)
		*status = *out ? 0 : 1; /* 1: symbol not found */
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, unsigned long long flags)
{
	return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
