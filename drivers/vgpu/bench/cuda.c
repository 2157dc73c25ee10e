#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define BATCHES 15

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

static int pairs(const struct driver *d, unsigned int repeats, struct figures *out)
{
	double times[BATCHES];
	pointer p;
	for (int b = 0; b < BATCHES; b++) {
		double began = driver_now();
		for (unsigned int i = 0; i < repeats; i++) {
			DO(d->allocate(&p, 1 << 20), "cuMemAlloc", out->failed);
			DO(d->release(p), "cuMemFree", out->failed);
		}
		times[b] = (driver_now() - began) / repeats;
	}
	out->pair = median(times);
	return 0;
}

static int launches(const struct driver *d, unsigned int repeats, struct figures *out)
{
	double times[BATCHES];
	void *module, *function, *stream, *graph;
	int failed;
	DO(d->load(&module, driver_kernels), "cuModuleLoadData", out->failed);
	DO(d->function(&function, module, "nothing_0ms"), "cuModuleGetFunction", out->failed);
	for (int b = 0; b < BATCHES; b++) {
		double began = driver_now();
		for (unsigned int i = 0; i < repeats; i++)
			DO(d->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel", out->failed);
		times[b] = (driver_now() - began) / repeats;
		DO(d->synchronize(), "cuCtxSynchronize", out->failed);
	}
	out->launch = median(times);
	if (!d->graphs)
		return 0;
	DO(d->stream(&stream, STREAM_NON_BLOCKING), "cuStreamCreate", out->failed);
	if ((failed = driver_graph(d, function, NULL, stream, GRAPH, &graph, out->failed)))
		return failed;
	for (int b = 0; b < BATCHES; b++) {
		double began = driver_now();
		for (unsigned int i = 0; i < repeats; i++)
			DO(d->launch_graph(graph, stream), "cuGraphLaunch", out->failed);
		times[b] = (driver_now() - began) / repeats;
		DO(d->synchronize(), "cuCtxSynchronize", out->failed);
	}
	out->graph = median(times);
	return 0;
}

/* Fills the limit in steps, then allocates more. */
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
			double began = driver_now();
			for (unsigned int i = 0; i < repeats; i++)
				if (d->allocate(&more, STEP) == 0)
					d->release(more);
			times[b] = (driver_now() - began) / repeats;
		}
		out->refuse = median(times);
		refused = 0;
	}
	while (count > 0)
		d->release(all[--count]);
	free(all);
	DO(refused, "cuMemAlloc", out->failed);
	return 0;
}

int measure(const char *library, uint64_t most, unsigned int repeats, struct figures *out)
{
	struct driver d;
	size_t available, total;
	int failed;
	memset(out, 0, sizeof *out);
	if ((failed = driver_open(library, &d, out->failed)))
		return failed;
	DO(d.info(&available, &total), "cuMemGetInfo", out->failed);
	out->total = total;
	if ((failed = pairs(&d, repeats, out)) || (failed = launches(&d, repeats, out)))
		return failed;
	return fill(&d, most, repeats, out);
}
