/* The part of the unit tests' driver that runs kernels: each of its two GPUs does one after the other. */
#pragma once
#include <stdint.h>

extern _Atomic uint64_t launches_nanoseconds;	/* how long a kernel takes */
extern _Atomic uint64_t launches_done;		/* kernels that were launched */
extern _Atomic uint64_t launches_outside;	/* of these, outside of a turn */
extern _Atomic int launches_allowed;		/* a turn: the test's arbiter says when */
extern _Atomic uint64_t launches_wrong;		/* events in a capture, and ones that were used after their end or with another context */
extern _Atomic int launches_events;		/* events that are not destroyed */
extern _Atomic int launches_capturing;		/* streams record what they are given */

/* When a GPU has done all that it was given, by turns_now. */
int64_t launches_idle_at(int device);

/* The driver's function of a name, NULL where this part has none. */
void *launches_function(const char *name);
