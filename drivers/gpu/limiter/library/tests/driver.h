/* The driver of the unit tests: two GPUs. */
#pragma once
#include <stdint.h>

#define DRIVER_TOTAL ((uint64_t)48 << 30)

extern _Atomic uint64_t driver_allocated[2]; /* bytes, by GPU */
extern _Atomic int driver_fails;	     /* every allocation fails */

/*
 * NVML's report for this process above its allocations, by GPU: 0: the process has no context; ~0: NVML does not report the amount. And its
 * PID there.
 */
extern _Atomic uint64_t driver_overhead[2];
extern _Atomic unsigned int driver_pid;

/* NVML's behaviour: lists processes, is missing, fails, does not list this one, or lists two that came with its context. */
extern _Atomic enum driver_nvml { NVML_TELLS, NVML_MISSING, NVML_FAILS, NVML_LISTS_OTHERS, NVML_LISTS_TWO } driver_nvml;

/* Makes a GPU the calling thread's current one; and which that is. */
void driver_use(int device);
int driver_current(void);
