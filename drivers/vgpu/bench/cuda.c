#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long pointer;

/* The functions, as every version of CUDA from 3.2 on has them. They are looked up as programs do, so that a library that limits comes before. */
struct driver {
	int (*init)(unsigned int);
	int (*retain)(void **, int);
	int (*current)(void *);
	int (*info)(size_t *, size_t *);
	int (*allocate)(pointer *, size_t);
	int (*release)(pointer);
	int (*load)(void **, const void *);
	int (*function)(void **, void *, const char *);
	int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, void *, void **, void **);
	int (*synchronize)(void);
};

/* An empty kernel for every GPU from Turing on; the driver compiles it. */
static const char kernel[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry nothing_0ms()\n{\n\tret;\n}\n";

#define BATCHES 15

static int lacks(void *handle, void *into, const char *name, struct figures *out)
{
	void *found = dlsym(handle, name);
	memcpy(into, &found, sizeof found);
	if (!found)
		snprintf(out->failed, sizeof out->failed, "%s is not in the library", name);
	return !found;
}

static int open_driver(const char *library, struct driver *d, struct figures *out)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
	if (!handle) {
		snprintf(out->failed, sizeof out->failed, "%s", dlerror());
		return -1;
	}
	if (lacks(handle, &d->init, "cuInit", out) || lacks(handle, &d->retain, "cuDevicePrimaryCtxRetain", out) ||
	    lacks(handle, &d->current, "cuCtxSetCurrent", out) || lacks(handle, &d->info, "cuMemGetInfo_v2", out) ||
	    lacks(handle, &d->allocate, "cuMemAlloc_v2", out) || lacks(handle, &d->release, "cuMemFree_v2", out) ||
	    lacks(handle, &d->load, "cuModuleLoadData", out) || lacks(handle, &d->function, "cuModuleGetFunction", out) ||
	    lacks(handle, &d->launch, "cuLaunchKernel", out) || lacks(handle, &d->synchronize, "cuCtxSynchronize", out))
		return -1;
	return 0;
}

static double nanoseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *times)
{
	qsort(times, BATCHES, sizeof *times, by_size);
	return times[BATCHES / 2];
}

#define DO(call, name)                                                        \
	do {                                                                  \
		int failed_with = (call);                                     \
		if (failed_with) {                                            \
			snprintf(out->failed, sizeof out->failed, "%s", name); \
			return failed_with;                                   \
		}                                                             \
	} while (0)

static int pairs(const struct driver *d, unsigned int repeats, struct figures *out)
{
	double times[BATCHES];
	pointer p;
	for (int b = 0; b < BATCHES; b++) {
		double began = nanoseconds();
		for (unsigned int i = 0; i < repeats; i++) {
			DO(d->allocate(&p, 1 << 20), "cuMemAlloc");
			DO(d->release(p), "cuMemFree");
		}
		times[b] = (nanoseconds() - began) / repeats;
	}
	out->pair = median(times);
	return 0;
}

static int launches(const struct driver *d, unsigned int repeats, struct figures *out)
{
	double times[BATCHES];
	void *module, *function;
	DO(d->load(&module, kernel), "cuModuleLoadData");
	DO(d->function(&function, module, "nothing_0ms"), "cuModuleGetFunction");
	for (int b = 0; b < BATCHES; b++) {
		double began = nanoseconds();
		for (unsigned int i = 0; i < repeats; i++)
			DO(d->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
		times[b] = (nanoseconds() - began) / repeats;
		DO(d->synchronize(), "cuCtxSynchronize");
	}
	out->launch = median(times);
	return 0;
}

/* Fills the limit in steps, and asks for more where it is full. */
static int fill(const struct driver *d, uint64_t most, unsigned int repeats, struct figures *out)
{
	double times[BATCHES];
	size_t count = 0, room = most / STEP + 1;
	pointer more, *all = calloc(room, sizeof *all);
	int refused = 0;
	if (!all) {
		snprintf(out->failed, sizeof out->failed, "memory of this process");
		return -1;
	}
	while (count < room && !(refused = d->allocate(&all[count], STEP)))
		count++;
	out->had = count * STEP;
	if (refused == 2) { /* CUDA_ERROR_OUT_OF_MEMORY */
		for (int b = 0; b < BATCHES; b++) {
			double began = nanoseconds();
			for (unsigned int i = 0; i < repeats; i++)
				if (d->allocate(&more, STEP) == 0)
					d->release(more);
			times[b] = (nanoseconds() - began) / repeats;
		}
		out->refuse = median(times);
		refused = 0;
	}
	while (count > 0)
		d->release(all[--count]);
	free(all);
	DO(refused, "cuMemAlloc");
	return 0;
}

int measure(const char *library, uint64_t most, unsigned int repeats, struct figures *out)
{
	struct driver d;
	void *context;
	size_t available, total;
	int failed;
	memset(out, 0, sizeof *out);
	if (open_driver(library, &d, out))
		return -1;
	DO(d.init(0), "cuInit");
	DO(d.retain(&context, 0), "cuDevicePrimaryCtxRetain");
	DO(d.current(context), "cuCtxSetCurrent");
	DO(d.info(&available, &total), "cuMemGetInfo");
	out->total = total;
	if ((failed = pairs(&d, repeats, out)) || (failed = launches(&d, repeats, out)))
		return failed;
	return fill(&d, most, repeats, out);
}
