/* What takes time: kernels, and events behind them. How long a kernel takes is in its name (anything_250ms, anything_250us), or
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
#include "stock.h"

struct module {
	struct context *context;
	size_t bytes;
};

struct kernel {
	unsigned long long microseconds;
	struct kernel *next;
};

struct event {
	_Atomic unsigned long long at; /* microseconds since the epoch; 0: it was never recorded */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels;

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	NEED_CONTEXT();
	NEED(out && image, CUDA_ERROR_INVALID_VALUE);
	struct module *m = calloc(1, sizeof *m);
	NEED(m, CUDA_ERROR_OUT_OF_MEMORY);
	*m = (struct module){current, context_overhead("FAKEFABRIC_MODULE_MIB")};
	CUresult r = device_use(current->device, (long long)m->bytes);
	if (r != CUDA_SUCCESS) {
		free(m);
		return r;
	}
	current->modules += m->bytes;
	*out = m;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule m)
{
	NEED_INIT();
	NEED(m, CUDA_ERROR_INVALID_VALUE);
	if (!m->context->destroyed) { /* else it went with its context */
		m->context->modules -= m->bytes;
		device_use(m->context->device, -(long long)m->bytes);
	}
	free(m);
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

CUresult launch_run(struct context *c, unsigned long long microseconds)
{
	unsigned long long end, known = c->busy_until;
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
	struct graph *g = current->captured;
	return g ? graphs_capture(g, k->microseconds) : launch_run(current, k->microseconds);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
					  unsigned int bz, unsigned int shared, CUstream stream, void **parameters)
{
	return cuLaunchKernel(k, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

unsigned long long launch_now(void)
{
	struct timeval t;
	gettimeofday(&t, NULL);
	return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_usec;
}

static void sleep_until(unsigned long long end)
{
	unsigned long long began = launch_now();
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
	pools_synchronized();
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

EXPORT CUresult cuStreamGetCtx(CUstream s, CUcontext *out)
{
	NEED_CONTEXT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = (uintptr_t)s > 2 ? (CUcontext)s : current; /* 1 and 2 are the legacy stream and the thread's own */
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
		graphs_invalidate(g);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	unsigned long long began = launch_now(), end = current->busy_until;
	e->at = end > began ? end : began;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	return e->at <= launch_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	sleep_until(e->at);
	pools_synchronized();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second)
{
	NEED_INIT();
	NEED(milliseconds && first && second && first->at && second->at, CUDA_ERROR_INVALID_VALUE);
	NEED(first->at <= launch_now() && second->at <= launch_now(), CUDA_ERROR_NOT_READY);
	*milliseconds = (float)((double)second->at - (double)first->at) / 1000;
	return CUDA_SUCCESS;
}
