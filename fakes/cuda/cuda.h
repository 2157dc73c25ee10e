/* The part of CUDA's driver interface that the stand-in has: types and numbers as CUDA's documentation gives them. */
#pragma once
#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct kernel *CUfunction;
typedef struct stream *CUstream;
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
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_SUPPORTED = 801,
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

#define EXPORT __attribute__((visibility("default")))
