/* A process that always has work for a GPU: kernels of a millisecond, so many of them ahead that the GPU never waits for the process. */
#pragma once
#include "driver.h"

/* A batch is as many kernels as have one event. So many batches may be outstanding, which is more than the GPU does while the process wakes
 * up. */
#define BATCH 4
#define OUTSTANDING 8

struct spinner {
	struct driver driver;
	void *function, *stream;
	void *graph; /* NULL: kernels are launched one by one */
	unsigned int rounds; /* of each kernel's work */
	void *events[OUTSTANDING];
	unsigned int first, outstanding;
	uint64_t done; /* kernels */
	double at;     /* when the last of them was seen to be done; 0: none was launched */
	char failed[FAILED];
};

/*
 * Opens the first GPU that the library shows. With rounds 0 it calibrates a kernel of a millisecond. Returns 0, CUDA's error, or -1 if that
 * is not possible; failed then names the call.
 */
int spinner_open(struct spinner *s, const char *library, unsigned int rounds, bool graph);

/* Works for so many nanoseconds at least. kernels and nanoseconds are what was done since the end of the last call, and how long that took.
 * The work goes on in the next call as if there were one. */
int spinner_work(struct spinner *s, double least, uint64_t *kernels, double *nanoseconds);

/* Waits until the GPU has done everything. */
int spinner_end(struct spinner *s);
