/* The part of CUDA's driver API that the library intercepts: types and numbers from CUDA's documentation. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUarray;
typedef void *CUfunction;
typedef void *CUgraph;
typedef void *CUgraphNode;
typedef void *CUgraphExec;
typedef void *CUmodule;
typedef void *CUevent;
typedef void *CUmemoryPool;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */

typedef struct {
	unsigned char bytes[16];
} CUuuid;

typedef struct {
	char bytes[64];
} CUipc_handle;

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

#define ARRAY_SPARSE 0x40		/* CUDA_ARRAY3D_SPARSE */
#define ARRAY_DEFERRED_MAPPING 0x80 /* CUDA_ARRAY3D_DEFERRED_MAPPING */

typedef struct {
	int type, handle_types;
	CUlocation location;
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

_Static_assert(sizeof(CUpool_properties) == 88 && offsetof(CUmemory_node, bytes) == 104, "as CUDA has them");

typedef struct {
	unsigned int grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned int attribute_count;
} CUlaunch_config;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_READY = 600,
	LOCATION_DEVICE = 1,
	HANDLE_DESCRIPTOR = 1,	/* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
	POOL_RESERVED = 5,	/* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
	GRAPHS_RESERVED = 2,	/* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
	NODE_GRAPH = 4,		/* CU_GRAPH_NODE_TYPE_GRAPH */
	NODE_ALLOCATES = 10,	/* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
	NODE_FREES = 11,	/* CU_GRAPH_NODE_TYPE_MEM_FREE */
	GET_PROC_ADDRESS_PER_THREAD = 2,
	STREAM_LEGACY = 1,
	STREAM_PER_THREAD = 2,
	EVENT_WITHOUT_TIME = 2,
	CAPTURE_RELAXED = 2,
};
