/* Contexts, of which each thread has a stack. */
#pragma once
#include <stdatomic.h>

#include "device.h"

/* A context stays when it is destroyed: it may be another thread's current one, or further down in a stack. */
struct context {
	const struct device *device;
	_Atomic unsigned long long busy_until; /* microseconds since the epoch */
	struct graph *_Atomic captured;	       /* what launches are added to instead of run; NULL: they run */
	atomic_bool destroyed;
	_Atomic size_t modules; /* bytes */
};

/* The thread's current context, NULL: none. */
struct context *context_current(void);

/* Whether cuInit was called. */
bool context_any(void);

/* Bytes that each context, or each module, takes of its GPU: the MiB in a variable of the environment; none without it. */
size_t context_overhead(const char *variable);

/* An address that nothing else has. */
CUdeviceptr context_address(size_t size);

#define NEED(condition, error) \
	if (!(condition))      \
		return error
#define NEED_INIT() NEED(context_any(), CUDA_ERROR_NOT_INITIALIZED)
#define NEED_CONTEXT()                                  \
	NEED_INIT();                                    \
	struct context *current = context_current();    \
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);      \
	NEED(!current->destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED)
#define NEED_DEVICE(number)                              \
	NEED_INIT();                                     \
	const struct device *device = device_at(number); \
	NEED(device, CUDA_ERROR_INVALID_DEVICE)
