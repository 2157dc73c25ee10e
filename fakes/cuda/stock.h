/* What driver.c, launch.c, pools.c and graph.c ask of one another. */
#pragma once
#include "context.h"

/* The driver's granule of physical memory: 2 MiB, as cuMemGetAllocationGranularity tells for GPUs. */
#define GRANULE ((size_t)2 << 20)
#define GRANULES(bytes) (((bytes) + GRANULE - 1) & ~(GRANULE - 1))

/* Runs for a time on the context's device, behind all that it was given before. */
CUresult launch_run(struct context *c, unsigned long long microseconds);

/* Microseconds since the epoch. */
unsigned long long launch_now(void);

/* Frees what was allocated in any way. */
CUresult driver_free(CUdeviceptr address);

/* Frees what was allocated from a pool. False: it was not. */
bool pools_free(CUdeviceptr address);

/* A stream, an event or a context was synchronized: pools give back what they need not keep. */
void pools_synchronized(void);

/* Frees what a launched graph has allocated and left. False: there is no such allocation. */
bool graphs_free(CUdeviceptr address);

/* Adds a kernel, or an allocation, or its end, to a graph that is captured. */
CUresult graphs_capture(struct graph *g, unsigned long long microseconds);
CUresult graphs_capture_allocation(struct graph *g, CUdevice device, size_t size, CUdeviceptr *out);
CUresult graphs_capture_free(struct graph *g, CUdeviceptr address);
void graphs_invalidate(struct graph *g);

/* The error of a call that is unsafe while a stream is captured; CUDA_SUCCESS: it may be made. The capture is invalid then. */
CUresult capture_unsafe(void);

#define NEED_SAFE()                                \
	do {                                       \
		CUresult unsafe = capture_unsafe(); \
		NEED(unsafe == CUDA_SUCCESS, unsafe); \
	} while (0)
