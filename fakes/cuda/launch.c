/* Work that takes time: kernels (module.c), alone and in graphs (graphs.c), and events behind them. A GPU runs one kernel at a time, in the
 * order in which they were launched by all its processes; a kernel that waits, waits beside that (stream.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#include "context.h"
#include "event.h"
#include "module.h"
#include "stock.h"
#include "stream.h"

CUresult launch_run(struct context *c, unsigned long long microseconds)
{
	unsigned long long end, known = c->busy_until;
	CUresult r = device_run(c->device, microseconds, &end);
	while (r == CUDA_SUCCESS && known < end && !atomic_compare_exchange_weak(&c->busy_until, &known, end))
		;
	return r;
}

EXPORT CUresult cuLaunchKernel(CUfunction k, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
	unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra)
{
	(void)shared;
	NEED_CONTEXT();
	NEED(k && gx && gy && gz && bx && by && bz && kernel_has(k, parameters, extra), CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	return g ? graphs_capture(g, k->microseconds) : streams_run(current, stream, k);
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

/* Waits until what is looked at again has ended, which has no known end. */
static void pause_for_a_look(void)
{
	struct timespec t = {.tv_nsec = 20000};
	nanosleep(&t, NULL);
}

EXPORT CUresult cuCtxSynchronize(void)
{
	NEED_CONTEXT();
	NEED_SAFE();
	while (streams_wait(current, NULL, true))
		pause_for_a_look();
	sleep_until(current->busy_until);
	pools_synchronized();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	(void)flags;
	NEED_CONTEXT();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = streams_new(current);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
	*out = (uintptr_t)s > 2 ? streams_context(s) : current; /* 1 and 2 are the legacy stream and the thread's own */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream s)
{
	NEED_CONTEXT();
	NEED_SAFE();
	while (streams_wait(current, s, false))
		pause_for_a_look();
	sleep_until(current->busy_until);
	pools_synchronized();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	(void)flags;
	NEED_CONTEXT();
	NEED_SAFE();
	NEED(out, CUDA_ERROR_INVALID_VALUE);
	*out = calloc(1, sizeof **out);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuEventDestroy_v2(CUevent e)
{
	NEED_INIT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	if (e->waits)
		streams_forget(e);
	free(e);
	return CUDA_SUCCESS;
}

/* The driver allows an event in a capture. Here it ends the capture, so that a test sees who put one into somebody else's. */
EXPORT CUresult cuEventRecord(CUevent e, CUstream stream)
{
	NEED_CONTEXT();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	struct graph *g = current->captured;
	if (g) {
		graphs_invalidate(g);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	return streams_record(current, stream, e);
}

EXPORT CUresult cuEventQuery(CUevent e)
{
	NEED_INIT();
	NEED_SAFE();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	if (e->waits)
		streams_advance();
	return !e->waits && e->at <= launch_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent e)
{
	NEED_INIT();
	NEED_SAFE();
	NEED(e, CUDA_ERROR_INVALID_VALUE);
	for (streams_advance(); e->waits; streams_advance())
		pause_for_a_look();
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
