/*
 * The GPU memory of contexts and modules. The driver does not report it; NVML reports a process's total, and the part above the counted
 * memory is theirs. A query takes long, so it runs when a context or module is made, and once behind launches that load kernels.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda.h"

/* A query of some GPU is due. */
extern _Atomic bool overhead_due;

/* Before a context is made on a device, if it may be the first of the process. */
void overhead_before(CUdevice device);

/* After it. */
void overhead_context(CUdevice device);

/* A module of the current context was loaded. */
void overhead_module(void);

/* The next launch may load a module: the driver loads kernels lazily (CUDA's programming guide, "Lazy Loading"). */
void overhead_kernel(void);

/* Memory may have shrunk after an unload or the end of a context. limit: -1: of the current context's device. */
void overhead_less(int limit);

/* The process has imported memory, which NVML may count as its own: then the rest is not only overhead. */
void overhead_imported(void);

/* Queries now, if due and not queried a short time ago. */
void overhead_look(void);
static inline void overhead_settle(void)
{
	if (atomic_load_explicit(&overhead_due, memory_order_relaxed))
		overhead_look();
}

/* After a fork: the child is another process. */
void overhead_forget(void);
