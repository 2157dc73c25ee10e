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
typedef struct node *CUgraphNode;
typedef struct executable *CUgraphExec;
typedef struct pool *CUmemoryPool;
typedef unsigned long long CUdeviceptr;
typedef struct {
	char bytes[16];
} CUuuid;

/* CUmemPoolProps, CUDA_MEM_ALLOC_NODE_PARAMS and CUgraphNodeParams. */
typedef struct {
	int type, handle_types;
	struct {
		int type, id;
	} location;
	void *security;
	size_t most;
	unsigned char more[56];
} CUpool_properties;

typedef struct {
	CUpool_properties pool;
	const void *access;
	size_t access_count, bytes;
	CUdeviceptr address;
} CUmemory_node;

typedef struct {
	int type, unused[3];
	union {
		CUmemory_node allocates;
		CUdeviceptr frees;
		long long size[29];
	} as;
	long long more;
} CUany_node;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
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

/* module.c and launch.c */
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
CUresult cuStreamGetCtx(CUstream s, CUcontext *out);
CUresult cuStreamSynchronize(CUstream s);
CUresult cuEventCreate(CUevent *out, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent e);
CUresult cuEventRecord(CUevent e, CUstream stream);
CUresult cuEventQuery(CUevent e);
CUresult cuEventSynchronize(CUevent e);
CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second);

/* capture.c */
CUresult cuThreadExchangeStreamCaptureMode(int *mode);

/* graph.c */
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out);
CUresult cuGraphCreate(CUgraph *out, unsigned int flags);
CUresult cuGraphDestroy(CUgraph g);
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUmemory_node *what);
CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUdeviceptr address);
CUresult cuGraphAddNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUany_node *what);
CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *after, const void *edges, size_t count, CUany_node *what);
CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *out, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode n, int *out);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUmemory_node *out);
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode n, CUdeviceptr *out);
CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *text, size_t size);
CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *text, size_t size);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags);
CUresult cuGraphUpload(CUgraphExec e, CUstream stream);
CUresult cuGraphLaunch(CUgraphExec e, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec e);
CUresult cuDeviceGraphMemTrim(CUdevice number);
CUresult cuDeviceGetGraphMemAttribute(CUdevice number, int attribute, void *value);
CUresult cuDeviceSetGraphMemAttribute(CUdevice number, int attribute, void *value);

/* pools.c */
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice number);
CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice number);
CUresult cuDeviceSetMemPool(CUdevice number, CUmemoryPool p);
CUresult cuMemPoolCreate(CUmemoryPool *out, const CUpool_properties *what);
CUresult cuMemPoolDestroy(CUmemoryPool p);
CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep);
CUresult cuMemPoolGetAttribute(CUmemoryPool p, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool p, int attribute, void *value);
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);

/* driver.c */
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *out, int ordinal);
CUresult cuDeviceGetName(char *name, int length, CUdevice number);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice number);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice number);
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice number);
CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice number);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice number);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice number);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number);
CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned int *flags, int *active);
CUresult cuCtxDestroy_v2(CUcontext c);
CUresult cuCtxPushCurrent_v2(CUcontext c);
CUresult cuCtxPopCurrent_v2(CUcontext *out);
CUresult cuCtxSetCurrent(CUcontext c);
CUresult cuCtxGetCurrent(CUcontext *out);
CUresult cuCtxGetDevice(CUdevice *out);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);

#define EXPORT __attribute__((visibility("default")))
