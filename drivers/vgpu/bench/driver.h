/* The part of CUDA's driver interface that is measured, and the kernels for it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef unsigned long long pointer;

/* The functions, as every version of CUDA from 3.2 on has them. They are looked up as programs do, so that a library that limits comes
 * before. */
struct driver {
	int (*init)(unsigned int);
	int (*retain)(void **, int);
	int (*current)(void *);
	int (*info)(size_t *, size_t *);
	int (*allocate)(pointer *, size_t);
	int (*release)(pointer);
	int (*load)(void **, const void *);
	int (*function)(void **, void *, const char *);
	int (*launch)(
		void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, void *, void **, void **);
	int (*synchronize)(void);
	int (*stream)(void **, unsigned int);
	int (*event)(void **, unsigned int);
	int (*record)(void *, void *);
	int (*await)(void *);
	/* These came with CUDA 11.4; graphs is true if the driver has them. */
	bool graphs;
	int (*capture)(void *, int);
	int (*end_capture)(void *, void **);
	int (*instantiate)(void **, void *, unsigned long long);
	int (*launch_graph)(void *, void *);
};

/* The numbers are CUDA's: CU_STREAM_NON_BLOCKING, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL. */
#define STREAM_NON_BLOCKING 1
#define EVENT_BLOCKING 3
#define CAPTURE_THREAD 1

/* The size of the text that names the failed call, in bytes. */
#define FAILED 128

/*
 * PTX for every GPU from Turing on, which the driver compiles: nothing_0ms does nothing; work_1ms does so many rounds of dependent
 * arithmetic, which take no part of the time in which another process has the GPU. The CUDA stand-in reads from the names how long they
 * take.
 */
extern const char driver_kernels[];

/* Loads the library, looks the functions up, and makes the first GPU's context the thread's. It returns 0, CUDA's error, or -1 where the
 * library cannot be used. */
int driver_open(const char *library, struct driver *d, char failed[FAILED]);

/* Makes a graph of so many launches of a kernel, one after another. */
int driver_graph(
	const struct driver *d, void *function, void **parameters, void *stream, unsigned int kernels, void **graph, char failed[FAILED]);

/* Nanoseconds of a clock that is never set. */
double driver_now(void);

#define DO(call, name, failed)                             \
	do {                                               \
		int failed_with = (call);                  \
		if (failed_with) {                         \
			snprintf(failed, FAILED, "%s", name); \
			return failed_with;                \
		}                                          \
	} while (0)
