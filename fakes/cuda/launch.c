/* What takes time: kernels, alone and in graphs, and events behind them. How long a kernel takes is in its name (anything_250ms, anything_250us), or
 * FAKEFABRIC_KERNEL_MS says it; else it takes 1 ms. A GPU runs one kernel at a time, in the order in which they were launched by all its processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "context.h"

struct module {
	int unused;
};

struct kernel {
	unsigned long long microseconds;
	struct kernel *next;
};

struct graph {
	_Atomic unsigned long long microseconds;
	atomic_bool invalid;
};

struct event {
	_Atomic unsigned long long at; /* microseconds since the epoch; 0: it was never recorded */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels;

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	static struct module only;
	NEED_CONTEXT();
	NEED(out && image, CUDA_ERROR_INVALID_VALUE);
	*out = &only;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule m)
{
	NEED_INIT();
	NEED(m, CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

/* The microseconds of a kernel: the time at the end of its name, or the environment's, or 1 ms. */
static unsigned long long duration(const char *name)
{
	const char *ms = getenv("FAKEFABRIC_KERNEL_MS"), *tail = strrchr(name, '_');
	char unit[3];
	unsigned long v;
	if (tail && sscanf(tail, "_%lu%2s", &v, unit) == 2 && strcmp(unit, "ms") == 0)
		return v * 1000ull;
	if (tail && sscanf(tail, "_%lu%2s", &v, unit) == 2 && strcmp(unit, "us") == 0)
		return v;
	return ms && sscanf(ms, "%lu", &v) == 1 ? v * 1000ull : 1000;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
	NEED_INIT();
	NEED(out && m && name, CUDA_ERROR_INVALID_VALUE);
	struct kernel *k = calloc(1, sizeof *k);
	NEED(k, CUDA_ERROR_OUT_OF_MEMORY);
	k->microseconds = duration(name);
	pthread_mutex_lock(&lock);
	k->next = kernels;
	kernels = k;
	pthread_mutex_unlock(&lock);
	*out = k;
	return CUDA_SUCCESS;
}

/* Runs for a time on the context's device, behind all that it was given before, or adds that to what is captured. */
static CUresult run(struct context *c, unsigned long long microseconds)
{
	struct graph *g = c->captured;
	unsigned long long end, known = c->busy_until;
	if (g) {
		g->microseconds += microseconds;
		return CUDA_SUCCESS;
	}
	CUresult r = device_run(c->device, microseconds, &end);
	while (r == CUDA_SUCCESS && known < end && !atomic_compare_exchange_weak(&c->busy_until, &known, end))
		;
	return r;
}

EXPORT CUresult cuLaunchKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
			       unsigned int shared, CUstream stream, void **parameters, void **extra)
{
	(void)shared, (void)stream, (void)parameters, (void)extra;
	NEED_CONTEXT();
	NEED(k && gx && gy && gz && bx && by && bz, CUDA_ERROR_INVALID_VALUE);
	return run(current, k->microseconds);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
					  unsigned int bz, unsigned int shared, CUstream stream, void **parameters)
{
	return cuLaunchKernel(k, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

static unsigned long long now(void)
{
	struct timeval t;
	gettimeofday(&t, NULL);
	return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_usec;
}

static void sleep_until(unsigned long long end)
{
	unsigned long long began = now();
	if (end > began) {
		unsigned long long left = end - began;
		struct timespec d = {.tv_sec = (time_t)(left / 1000000), .tv_nsec = (long)(left % 1000000) * 1000};
		while (nanosleep(&d, &d) != 0 && errno == EINTR) {
			/* a signal does not end a kernel */
		}
	}
}

EXPORT CUresult cuCtxSynchronize(void)
{
	NEED_CONTEXT();
	sleep_until(current->busy_until);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	(void)flags;
	NEED_CONTEXT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = (CUstream)current; /* all streams of a context are one */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
	(void)s;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream s)
{
	(void)s;
	return cuCtxSynchronize();
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	(void)flags;
	NEED_CONTEXT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = calloc(1, sizeof **out);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuEventDestroy_v2(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	free(e);
	return CUDA_SUCCESS;
}

/* The driver allows an event in a capture. Here it ends the capture, so that a test sees who put one into somebody else's. */
EXPORT CUresult cuEventRecord(CUevent e, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	if (g) {
		g->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	unsigned long long began = now(), end = current->busy_until;
	e->at = end > began ? end : began;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	return e->at <= now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	sleep_until(e->at);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second)
{
	NEED_INIT();
	NEED(milliseconds && first && second && first->at && second->at, CUDA_ERROR_INVALID_VALUE);
	NEED(first->at <= now() && second->at <= now(), CUDA_ERROR_NOT_READY);
	*milliseconds = (float)((double)second->at - (double)first->at) / 1000;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	(void)stream, (void)mode;
	NEED_CONTEXT();
	NEED(!current->captured, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = calloc(1, sizeof *g);
	NEED(g, CUDA_ERROR_OUT_OF_MEMORY);
	current->captured = g;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(status, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	*status = !g ? 0 : g->invalid ? 2 : 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(out && current->captured, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = atomic_exchange(&current->captured, NULL);
	*out = g->invalid ? NULL : g;
	if (*out)
		return CUDA_SUCCESS;
	free(g);
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	(void)flags;
	NEED_INIT();
	NEED(out && g, CUDA_ERROR_INVALID_VALUE);
	*out = calloc(1, sizeof **out);
	NEED(*out, CUDA_ERROR_OUT_OF_MEMORY);
	(*out)->microseconds = g->microseconds;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec g, CUstream stream)
{
	(void)stream;
	NEED_CONTEXT();
	NEED(g, CUDA_ERROR_INVALID_VALUE);
	return run(current, g->microseconds);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec g)
{
	NEED_INIT();
	free(g);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph g)
{
	NEED_INIT();
	free(g);
	return CUDA_SUCCESS;
}
