/* What takes time: kernels (module.c), alone and in graphs (graphs.c), and events behind them. A GPU runs one kernel at a time, in the order in which they were
 * launched by all its processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#include "context.h"
#include "module.h"
#include "stock.h"

struct event {
	_Atomic unsigned long long at; /* microseconds since the epoch; 0: it was never recorded */
};

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
	(void)shared, (void)stream;
	NEED_CONTEXT();
	NEED(k && gx && gy && gz && bx && by && bz && kernel_has(k, parameters, extra), CUDA_ERROR_INVALID_VALUE);
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
