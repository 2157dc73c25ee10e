#include "spinner.h"

#include <string.h>

#define MILLISECOND 1e6

/* The number of kernels in a calibration, and the interval of checks. */
#define SAMPLE 8
#define LOOKS 12

static int launch(struct spinner *s)
{
	void *parameters[] = {&s->rounds};
	DO(s->driver.launch(s->function, 1, 1, 1, 1, 1, 1, 0, s->stream, parameters, NULL), "cuLaunchKernel", s->failed);
	return 0;
}

/* Finds the rounds of a kernel of a millisecond, within a tenth. */
static int calibrate(struct spinner *s)
{
	int failed;
	s->rounds = 20000;
	for (int look = 0; look < LOOKS; look++) {
		double began = driver_now(), one;
		for (int i = 0; i < SAMPLE; i++)
			if ((failed = launch(s)))
				return failed;
		DO(s->driver.synchronize(), "cuCtxSynchronize", s->failed);
		one = (driver_now() - began) / SAMPLE;
		if (one > 0.9 * MILLISECOND && one < 1.1 * MILLISECOND)
			return 0;
		double next = s->rounds * (one > 0 ? MILLISECOND / one : 10);
		next = next > 10.0 * s->rounds ? 10.0 * s->rounds : next; /* the first kernels of a GPU that rests are slow */
		s->rounds = next < 1 ? 1 : next > 1e9 ? 1000000000 : (unsigned int)next;
	}
	return 0; /* the time of a kernel is measured anyway */
}

int spinner_open(struct spinner *s, const char *library, unsigned int rounds, bool graph)
{
	void *module;
	int failed;
	memset(s, 0, sizeof *s);
	if ((failed = driver_open(library, &s->driver, s->failed)))
		return failed;
	const struct driver *d = &s->driver;
	DO(d->load(&module, driver_kernels), "cuModuleLoadData", s->failed);
	DO(d->function(&s->function, module, "work_1ms"), "cuModuleGetFunction", s->failed);
	DO(d->stream(&s->stream, STREAM_NON_BLOCKING), "cuStreamCreate", s->failed);
	for (int i = 0; i < OUTSTANDING; i++)
		DO(d->event(&s->events[i], EVENT_BLOCKING), "cuEventCreate", s->failed);
	s->rounds = rounds;
	if (!rounds && (failed = calibrate(s)))
		return failed;
	if (!graph)
		return 0;
	if (!d->graphs) {
		snprintf(s->failed, FAILED, "the driver has no graphs as CUDA 11.4 has them");
		return -1;
	}
	void *parameters[] = {&s->rounds};
	return driver_graph(d, s->function, parameters, s->stream, BATCH, &s->graph, s->failed);
}

/* Launches a batch, with an event behind it. */
static int batch(struct spinner *s)
{
	int failed;
	if (s->graph)
		DO(s->driver.launch_graph(s->graph, s->stream), "cuGraphLaunch", s->failed);
	for (int i = 0; i < BATCH && !s->graph; i++)
		if ((failed = launch(s)))
			return failed;
	DO(s->driver.record(s->events[(s->first + s->outstanding) % OUTSTANDING], s->stream), "cuEventRecord", s->failed);
	s->outstanding++;
	return 0;
}

/* Waits for the oldest batch. */
static int reap(struct spinner *s)
{
	DO(s->driver.await(s->events[s->first]), "cuEventSynchronize", s->failed);
	s->first = (s->first + 1) % OUTSTANDING;
	s->outstanding--;
	s->done += BATCH;
	s->at = driver_now();
	return 0;
}

int spinner_work(struct spinner *s, double least, uint64_t *kernels, double *nanoseconds)
{
	int failed;
	if (s->at == 0)
		s->at = driver_now();
	uint64_t done = s->done;
	double at = s->at;
	while (s->at - at < least) {
		while (s->outstanding < OUTSTANDING)
			if ((failed = batch(s)))
				return failed;
		if ((failed = reap(s)))
			return failed;
	}
	*kernels = s->done - done;
	*nanoseconds = s->at - at;
	return 0;
}

int spinner_end(struct spinner *s)
{
	DO(s->driver.synchronize(), "cuCtxSynchronize", s->failed);
	return 0;
}
