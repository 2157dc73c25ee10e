/* Measures a process's GPU operations under a limit, through CUDA's driver interface. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

struct figures {
	uint64_t total;		     /* bytes that cuMemGetInfo shows in all */
	uint64_t had;		     /* bytes that could be allocated, in steps, up to the requested amount */
	double pair, launch, refuse; /* nanoseconds; refuse is 0 where nothing was refused */
	double graph;		     /* nanoseconds of a launch of a graph of GRAPH kernels; 0: the driver has no such graphs */
	char failed[FAILED];	     /* the call that failed */
};

/*
 * measure uses the first GPU that the library shows, and allocates no more than most bytes and one step. It returns 0, CUDA's error, or -1
 * if the library cannot be used; failed then names the call.
 */
int measure(const char *library, uint64_t most, unsigned int repeats, struct figures *out);

/* The bytes that drivers hand memory out in. */
#define STEP ((uint64_t)2 << 20)

/* The kernels in the measured graph. */
#define GRAPH 10
