/*
 * Every intercepted function: X(base, exported, type...). The base name is the argument of cuGetProcAddress, the exported name the
 * library's symbol. T replaces X for variants whose default stream is the thread's own.
 */
#pragma once
#include "cuda.h"
#include "process.h"

#define CUDA_HOOKS(X, T)                                                                                                       \
	X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                  \
	X(cuMemAllocPitch, cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))                        \
	X(cuMemAllocManaged, cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))                                         \
	X(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                                              \
	X(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                 \
	T(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr *, size_t, CUstream))                                            \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                   \
	T(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))              \
	X(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, CUstream))                                                             \
	T(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream))                                                        \
	X(cuMemPoolCreate, cuMemPoolCreate, (CUmemoryPool *, const CUpool_properties *))                                        \
	X(cuMemPoolDestroy, cuMemPoolDestroy, (CUmemoryPool))                                                                  \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                            \
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipc_handle, unsigned int))                              \
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (CUhandle *, void *, int))                           \
	X(cuMemPoolImportPointer, cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, void *))                               \
	X(cuImportExternalMemory, cuImportExternalMemory, (void **, const void *))                                             \
	X(cuMemCreate, cuMemCreate, (CUhandle *, size_t, const CUallocation *, unsigned long long))                            \
	X(cuMemRelease, cuMemRelease, (CUhandle))                                                                              \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (CUhandle *, void *))                                      \
	X(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))                                     \
	X(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t))                                                                       \
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *, CUhandle, int, unsigned long long))             \
	X(cuMulticastCreate, cuMulticastCreate, (CUhandle *, const void *))                                                    \
	X(cuMulticastBindMem, cuMulticastBindMem, (CUhandle, size_t, CUhandle, size_t, size_t, unsigned long long))             \
	X(cuMulticastBindMem, cuMulticastBindMem_v2, (CUhandle, CUdevice, size_t, CUhandle, size_t, size_t, unsigned long long)) \
	X(cuMulticastBindAddr, cuMulticastBindAddr, (CUhandle, size_t, CUdeviceptr, size_t, unsigned long long))                \
	X(cuMulticastBindAddr, cuMulticastBindAddr_v2, (CUhandle, CUdevice, size_t, CUdeviceptr, size_t, unsigned long long))   \
	X(cuMulticastUnbind, cuMulticastUnbind, (CUhandle, CUdevice, size_t, size_t))                                          \
	X(cuGraphExecUpdate, cuGraphExecUpdate, (CUgraphExec, CUgraph, CUgraphNode *, int *))                                  \
	X(cuGraphExecUpdate, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, void *))                                             \
	X(cuArrayCreate, cuArrayCreate_v2, (CUarray *, const CUarray_descriptor *))                                            \
	X(cuArray3DCreate, cuArray3DCreate_v2, (CUarray *, const CUarray3d_descriptor *))                                      \
	X(cuArrayDestroy, cuArrayDestroy, (CUarray))                                                                           \
	X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, (CUarray *, const CUarray3d_descriptor *, unsigned int))             \
	X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, (CUarray))                                                         \
	X(cuCtxCreate, cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                                                  \
	X(cuCtxCreate, cuCtxCreate_v3, (CUcontext *, void *, int, unsigned int, CUdevice))                                     \
	X(cuCtxCreate, cuCtxCreate_v4, (CUcontext *, void *, unsigned int, CUdevice))                                          \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                         \
	X(cuModuleLoad, cuModuleLoad, (CUmodule *, const char *))                                                              \
	X(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))                                                      \
	X(cuModuleLoadDataEx, cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, void *, void **))                   \
	X(cuModuleLoadFatBinary, cuModuleLoadFatBinary, (CUmodule *, const void *))                                            \
	X(cuModuleUnload, cuModuleUnload, (CUmodule))                                                                          \
	X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                    \
	X(cuLibraryLoadData, cuLibraryLoadData, LIBRARY_ARGUMENTS(const void *))                                               \
	X(cuLibraryLoadFromFile, cuLibraryLoadFromFile, LIBRARY_ARGUMENTS(const char *))                                       \
	X(cuLibraryUnload, cuLibraryUnload, (void *))                                                                          \
	X(cuLibraryGetKernel, cuLibraryGetKernel, (void **, void *, const char *))                                             \
	X(cuKernelGetFunction, cuKernelGetFunction, (CUfunction *, void *))                                                    \
	X(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext))                                                                          \
	X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice))                                                     \
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                 \
	X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                                                 \
	X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                         \
	X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                                          \
	X(cuCtxSynchronize, cuCtxSynchronize_v2, (CUcontext))                                                                  \
	X(cuStreamSynchronize, cuStreamSynchronize, (CUstream))                                                                \
	T(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream))                                                           \
	X(cuEventSynchronize, cuEventSynchronize, (CUevent))                                                                   \
	X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))                                                                     \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int))                                                      \
	T(cuStreamBeginCapture, cuStreamBeginCapture_v2_ptsz, (CUstream, int))                                                 \
	X(cuLaunch, cuLaunch, (CUfunction))                                                                                    \
	X(cuLaunchGrid, cuLaunchGrid, (CUfunction, int, int))                                                                  \
	X(cuLaunchGridAsync, cuLaunchGridAsync, (CUfunction, int, int, CUstream))                                              \
	X(cuLaunchKernel, cuLaunchKernel, LAUNCH_ARGUMENTS(void **))                                                           \
	T(cuLaunchKernel, cuLaunchKernel_ptsz, LAUNCH_ARGUMENTS(void **))                                                      \
	X(cuLaunchKernelEx, cuLaunchKernelEx, (const CUlaunch_config *, CUfunction, void **, void **))                         \
	T(cuLaunchKernelEx, cuLaunchKernelEx_ptsz, (const CUlaunch_config *, CUfunction, void **, void **))                    \
	X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, COOPERATIVE_ARGUMENTS)                                         \
	T(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, COOPERATIVE_ARGUMENTS)                                    \
	X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                                               \
	T(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec, CUstream))                                                          \
	X(cuGraphUpload, cuGraphUpload, (CUgraphExec, CUstream))                                                               \
	T(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec, CUstream))                                                          \
	X(cuGraphInstantiate, cuGraphInstantiate, INSTANTIATE_ARGUMENTS)                                                       \
	X(cuGraphInstantiate, cuGraphInstantiate_v2, INSTANTIATE_ARGUMENTS)                                                    \
	X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                       \
	X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, void *))                        \
	T(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, (CUgraphExec *, CUgraph, void *))                   \
	X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))                                                               \
	X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, (CUdevice))

/* A kernel, its grid, its blocks, its shared memory, its stream and its parameters. */
#define COOPERATIVE_ARGUMENTS                                                                                              \
	(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **)
#define LAUNCH_ARGUMENTS(extra)                                                                                            \
	(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, extra)

/* Error functions that CUDA 12 no longer has. */
#define INSTANTIATE_ARGUMENTS (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)
#define LIBRARY_ARGUMENTS(code) (void **, code, void *, void **, unsigned int, void *, void **, unsigned int)

/* The functions by which programs find others. */
#define PROC_HOOKS(X)                                                                                 \
	X(cuGetProcAddress, cuGetProcAddress, (const char *, void **, int, unsigned long long))      \
	X(cuGetProcAddress, cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *))

#define NVML_HOOKS(X)                                                            \
	X(nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo, (void *, void *))    \
	X(nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo_v2, (void *, void *))

#define DECLARE(base, exported, arguments) int exported arguments;
CUDA_HOOKS(DECLARE, DECLARE)
PROC_HOOKS(DECLARE)
NVML_HOOKS(DECLARE)
#undef DECLARE

/* The driver's function of an exported name; NULL: none. */
void *real_cuda(const char *exported);
void *real_nvml(const char *exported);

/* The C library's pthread_create; NULL: the program has none. */
void *real_thread(void);

/* This library's replacement of an exported name; NULL: none. */
void *hook_of(const char *exported);

/* The driver's function, looked up once. Each hook begins with it. */
#define REAL(library, exported)                                                                              \
	({                                                                                                   \
		process_check();                                                                             \
		static void *_Atomic found_##exported;                                                       \
		void *f = atomic_load_explicit(&found_##exported, memory_order_relaxed);                     \
		if (!f) {                                                                                    \
			f = real_##library(#exported);                                                       \
			atomic_store_explicit(&found_##exported, f, memory_order_relaxed);                   \
		}                                                                                            \
		f;                                                                                           \
	})

#define EXPORT __attribute__((visibility("default")))
#define NOT_THERE 500 /* CUDA_ERROR_NOT_FOUND: the driver is older than this function */
