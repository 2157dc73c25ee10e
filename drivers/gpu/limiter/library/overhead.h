/*
 * What contexts and modules take of a GPU. The driver does not tell a program that, and NVML tells what a process has in all: what is above that which is
 * counted is theirs. Asking takes long, so it is done when a context or a module is made, and once behind the launches that load kernels, but at no other time.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda.h"

/* Some GPU is to be asked about. */
extern _Atomic bool overhead_due;

/* Before a context is made on a device, when it may be the first of the process. */
void overhead_before(CUdevice device);

/* After it. */
void overhead_context(CUdevice device);

/* A module of the current context was loaded. */
void overhead_module(void);

/* The next launch may load one: the driver loads kernels lazily (CUDA's programming guide, "Lazy Loading"). */
void overhead_kernel(void);

/* Something was unloaded, or a context has ended: there may be less. limit: -1: of the current context's device. */
void overhead_less(int limit);

/* The process has memory of others, which NVML may report as its own: what is above the counted is not overhead alone any more. */
void overhead_imported(void);

/* Asks now, where something is due and was not asked a short time ago. */
void overhead_look(void);
static inline void overhead_settle(void)
{
	if (atomic_load_explicit(&overhead_due, memory_order_relaxed))
		overhead_look();
}

/* After a fork: the child is another process. */
void overhead_forget(void);
