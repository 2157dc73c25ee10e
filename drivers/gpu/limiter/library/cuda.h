/* The part of CUDA's driver interface that is intercepted: types and numbers as CUDA's documentation gives them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUarray;
typedef void *CUfunction;
typedef void *CUgraphExec;
typedef void *CUevent;
typedef void *CUmemoryPool;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */

typedef struct {
	unsigned char bytes[16];
} CUuuid;

typedef struct {
	int type, id;
} CUlocation;

typedef struct {
	int type, handle_types;
	CUlocation location;
	void *attributes;
	unsigned char flags[8];
} CUallocation;

typedef struct {
	size_t width, height;
	int format;
	unsigned int channels;
} CUarray_descriptor;

typedef struct {
	size_t width, height, depth;
	int format;
	unsigned int channels, flags;
} CUarray3d_descriptor;

typedef struct {
	unsigned int grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned int attribute_count;
} CUlaunch_config;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	LOCATION_DEVICE = 1,
	GET_PROC_ADDRESS_PER_THREAD = 2,
	STREAM_LEGACY = 1,
	STREAM_PER_THREAD = 2,
	EVENT_BLOCKING_WITHOUT_TIME = 1 | 2,
	CAPTURE_RELAXED = 2,
};
