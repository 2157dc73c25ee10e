/* Limits of a GPU's memory by cgroup, as nvmlDeviceSetMemoryLimits_v1 sets them. */
#pragma once
#include "state.h"

/* ff_memory_slice puts the limit of this process's own cgroup in the place of a GPU's memory, and what the cgroup uses in the place of what
 * all do; false where it has none. A limit of a cgroup above is enforced and not shown (NVIDIA Dynamo's documentation of per-GPU limits).
 */
bool ff_memory_slice(unsigned int gpu, uint64_t *total, uint64_t *used);

/* ff_memory_denied tells whether so many bytes more of a process are over a limit, or are reserved for others: nvml.h calls the soft limit
 * "guaranteed". available is what no process uses. */
bool ff_memory_denied(const struct ff_gpu *gpu, const struct ff_process *p, uint64_t bytes, uint64_t available);
