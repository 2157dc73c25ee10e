/*
 * The modes of stream capture, by CUDA's driver API reference (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode): while a stream is
 * captured, calls that may be unsafe are refused, and end the capture, on the thread that began it, and with the mode "global" on every
 * thread that does not take itself out. The reference names few of these calls, so here each is one that is no work for a stream, or of
 * graphs, and asks for more than a device's properties.
 */
#define _GNU_SOURCE
#include <string.h>

#include "graph.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static _Thread_local int own_mode = GLOBAL;

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	NEED(mode && *mode >= GLOBAL && *mode <= RELAXED, CUDA_ERROR_INVALID_VALUE);
	int had = own_mode;
	own_mode = *mode;
	*mode = had;
	return CUDA_SUCCESS;
}

bool capture_mode(int mode)
{
	return mode >= GLOBAL && mode <= RELAXED;
}

/* Whether a capture forbids unsafe calls of this thread. */
static bool forbids(const struct graph *g)
{
	if (!g->capturing || g->mode == RELAXED || own_mode == RELAXED)
		return false;
	return pthread_equal(g->thread, pthread_self()) || (g->mode == GLOBAL && own_mode == GLOBAL);
}

CUresult capture_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&graphs_lock);
	for (struct graph *g = graphs; g; g = g->next)
		if (forbids(g)) {
			g->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	pthread_mutex_unlock(&graphs_lock);
	return r;
}
