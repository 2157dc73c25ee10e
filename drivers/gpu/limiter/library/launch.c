/* CUDA's functions that launch GPU work: each waits at the gate of the limit of cores. */
#define _GNU_SOURCE
#include <stdatomic.h>

#include "cores.h"
#include "graphs.h"
#include "hooks.h"
#include "overhead.h"

/*
 * A function that launches into a stream: its name, whether its default stream is the thread's own, its parameters, the stream, and its
 * arguments.
 */
#define LAUNCH(name, per_thread, parameters, stream, arguments)                       \
	EXPORT CUresult name parameters                                               \
	{                                                                             \
		CUresult(*real) parameters = REAL(cuda, name);                        \
		struct launch l;                                                      \
		if (!real)                                                            \
			return NOT_THERE;                                             \
		cores_begin(&l, stream, per_thread);                                  \
		CUresult r = cores_end(&l, real arguments);                           \
		overhead_settle();                                                    \
		return r;                                                             \
	}

/* A graph may allocate memory, which is checked before it waits. */
#define GRAPH(name, per_thread)                                                                         \
	EXPORT CUresult name(CUgraphExec g, CUstream s)                                                 \
	{                                                                                               \
		CUresult (*real)(CUgraphExec, CUstream) = REAL(cuda, name);                             \
		struct graph_draw d;                                                                    \
		struct launch l;                                                                        \
		if (!real)                                                                              \
			return NOT_THERE;                                                               \
		if (!graphs_begin(&d, g, s, per_thread))                                                \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                \
		cores_begin(&l, s, per_thread);                                                         \
		CUresult r = graphs_end(&d, cores_end(&l, real(g, s)));                                 \
		overhead_settle();                                                                      \
		return r;                                                                               \
	}

#define KERNEL_PARAMETERS                                                                                                             \
	(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,          \
	 unsigned int shared, CUstream s, void **parameters, void **extra)
#define KERNEL_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra)
#define TOGETHER_PARAMETERS                                                                                                           \
	(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,          \
	 unsigned int shared, CUstream s, void **parameters)
#define TOGETHER_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, s, parameters)

LAUNCH(cuLaunchKernel, false, KERNEL_PARAMETERS, s, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchKernel_ptsz, true, KERNEL_PARAMETERS, s, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel, false, TOGETHER_PARAMETERS, s, TOGETHER_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel_ptsz, true, TOGETHER_PARAMETERS, s, TOGETHER_ARGUMENTS)
LAUNCH(cuLaunchKernelEx, false, (const CUlaunch_config *c, CUfunction f, void **parameters, void **extra), c ? c->stream : NULL,
	(c, f, parameters, extra))
LAUNCH(cuLaunchKernelEx_ptsz, true, (const CUlaunch_config *c, CUfunction f, void **parameters, void **extra), c ? c->stream : NULL,
	(c, f, parameters, extra))
GRAPH(cuGraphLaunch, false)
GRAPH(cuGraphLaunch_ptsz, true)
LAUNCH(cuLaunch, false, (CUfunction f), NULL, (f))
LAUNCH(cuLaunchGrid, false, (CUfunction f, int w, int h), NULL, (f, w, h))
LAUNCH(cuLaunchGridAsync, false, (CUfunction f, int w, int h, CUstream s), s, (f, w, h, s))

#define CAPTURE(name)                                                          \
	EXPORT CUresult name(CUstream s, int mode)                             \
	{                                                                      \
		CUresult (*real)(CUstream, int) = REAL(cuda, name);            \
		return real ? cores_capture(real, s, mode) : NOT_THERE;        \
	}

CAPTURE(cuStreamBeginCapture_v2)
CAPTURE(cuStreamBeginCapture_v2_ptsz)

EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
	CUresult (*real)(CUstream) = REAL(cuda, cuStreamDestroy_v2);
	if (!real)
		return NOT_THERE;
	cores_forget_stream(s);
	graphs_forget_stream(s);
	return real(s);
}
