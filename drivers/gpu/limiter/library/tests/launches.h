/* The part of the unit tests' driver that runs kernels: each of its two GPUs does one after the other, but for kernels that wait for a
 * later launch. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* Kernels: one that ends only after the next launch of the other kind, which is on another stream; any other function takes its time. */
#define LAUNCHES_WAITS ((CUfunction)(uintptr_t)1)
#define LAUNCHES_SETS ((CUfunction)(uintptr_t)2)

extern _Atomic uint64_t launches_nanoseconds;	/* how long a kernel takes */
extern _Atomic uint64_t launches_done;		/* kernels that were launched */
extern _Atomic uint64_t launches_wrong;		/* events in a capture, and ones that were used after their end or with another context */
extern _Atomic int launches_events;		/* events that are not destroyed */
extern _Atomic int launches_capturing;		/* streams record what they are given */

/* When a GPU has done all that it was given, by seats_now. */
int64_t launches_idle_at(int device);

/* Whether a stream has no kernel that waits. */
bool launches_drained(CUstream s);

/* The driver's function of a name, NULL where this part has none. */
void *launches_function(const char *name);
