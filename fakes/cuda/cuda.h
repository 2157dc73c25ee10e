/* The part of CUDA's driver interface that the stand-in has: types and numbers as CUDA's documentation gives them. */
#pragma once
#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct kernel *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;
typedef struct graph *CUgraphExec;
typedef unsigned long long CUdeviceptr;
typedef struct {
	char bytes[16];
} CUuuid;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_UNKNOWN = 999,
};

enum {
	ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
	ATTRIBUTE_WARP_SIZE = 10,
	ATTRIBUTE_CLOCK_RATE = 13,
	ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	ATTRIBUTE_INTEGRATED = 18,
	ATTRIBUTE_COMPUTE_MODE = 20,
	ATTRIBUTE_ECC_ENABLED = 32,
	ATTRIBUTE_PCI_BUS_ID = 33,
	ATTRIBUTE_PCI_DEVICE_ID = 34,
	ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
	ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
	ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	ATTRIBUTE_PCI_DOMAIN_ID = 50,
	ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};

CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);

/* launch.c */
CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuModuleUnload(CUmodule m);
CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name);
CUresult cuLaunchKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
			unsigned int shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
				   unsigned int bz, unsigned int shared, CUstream stream, void **parameters);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream *out, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream s);
CUresult cuStreamSynchronize(CUstream s);
CUresult cuEventCreate(CUevent *out, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent e);
CUresult cuEventRecord(CUevent e, CUstream stream);
CUresult cuEventQuery(CUevent e);
CUresult cuEventSynchronize(CUevent e);
CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec g, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec g);
CUresult cuGraphDestroy(CUgraph g);

#define EXPORT __attribute__((visibility("default")))
