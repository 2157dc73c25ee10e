/* The devices that this process sees: GPUs, or MIG devices, as CUDA_VISIBLE_DEVICES says. */
#pragma once
#include "cuda.h"
#include "state.h"

struct device {
	unsigned int gpu;
	unsigned int gi, ci; /* FF_NONE for a whole GPU */
	unsigned char uuid[16];
	size_t memory; /* bytes in all */
	unsigned int multiprocessors;
	struct ff_core core;
};

/* Lists the devices; CUDA_ERROR_NO_DEVICE when there are none. */
CUresult devices_find(void);
int devices_count(void);
const struct device *device_at(CUdevice number);

/* Changes this process's entry on the device's GPU by delta bytes, making the entry if need be: OUT_OF_MEMORY when it does not fit,
 * DEVICE_UNAVAILABLE when the compute mode or another process forbids it. */
CUresult device_use(const struct device *d, long long delta);

/* Makes the GPU busy for a time, after what it is doing now, and tells when that ends (microseconds since the epoch). */
CUresult device_run(const struct device *d, unsigned long long microseconds, unsigned long long *end);

/* What is free of the device's memory and what it has in all, in bytes; both of the limit of this process's cgroup, where it has one. */
CUresult device_memory(const struct device *d, size_t *available, size_t *total);

/* Takes this process's entries away. */
void devices_leave(void);
