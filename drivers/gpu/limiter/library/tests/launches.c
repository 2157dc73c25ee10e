#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "hooks.h"
#include "launches.h"
#include "seats.h"

_Atomic uint64_t launches_nanoseconds, launches_done, launches_wrong;
_Atomic int launches_events, launches_capturing;
static _Atomic int64_t idle_at[2];
static _Atomic uintptr_t waiting; /* the stream whose kernel waits */
static _Atomic uint64_t waits, sets;

struct event {
	CUcontext context;
	_Atomic int64_t at;
	_Atomic uint64_t behind; /* the launch that it waits for, 0: none */
};

bool launches_drained(CUstream s)
{
	return atomic_load(&waiting) != (uintptr_t)s || atomic_load(&sets) >= atomic_load(&waits);
}

int64_t launches_idle_at(int device)
{
	return atomic_load(&idle_at[device]);
}

static CUresult run(void)
{
	int64_t had = atomic_load(&idle_at[driver_current()]), now = seats_now(), length = (int64_t)atomic_load(&launches_nanoseconds);
	atomic_fetch_add(&launches_done, 1);
	if (length && !atomic_load(&launches_capturing))
		while (!atomic_compare_exchange_weak(&idle_at[driver_current()], &had, (had > now ? had : now) + length))
			;
	return CUDA_SUCCESS;
}

static CUresult kernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
	unsigned int shared, CUstream s, void **parameters, void **extra)
{
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters, (void)extra;
	if (f == LAUNCHES_WAITS) {
		atomic_store(&waiting, (uintptr_t)s);
		atomic_fetch_add(&waits, 1);
		return CUDA_SUCCESS;
	}
	if (f == LAUNCHES_SETS)
		atomic_fetch_add(&sets, 1);
	return run();
}

static CUresult graph(CUgraphExec g, CUstream s)
{
	(void)g, (void)s;
	return run();
}

static CUresult with_config(const CUlaunch_config *c, CUfunction f, void **parameters, void **extra)
{
	(void)c, (void)f, (void)parameters, (void)extra;
	return run();
}

static CUresult create(CUevent *out, unsigned int flags)
{
	struct event *e = calloc(1, sizeof *e);
	(void)flags;
	e->context = (CUcontext)(uintptr_t)(driver_current() + 1);
	atomic_fetch_add(&launches_events, 1);
	*out = e;
	return CUDA_SUCCESS;
}

static CUresult destroy(CUevent e)
{
	atomic_fetch_sub(&launches_events, 1);
	free(e);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent out, CUstream s)
{
	struct event *e = out;
	int64_t now = seats_now(), end = atomic_load(&idle_at[driver_current()]);
	if (atomic_load(&launches_capturing) || e->context != (CUcontext)(uintptr_t)(driver_current() + 1))
		atomic_fetch_add(&launches_wrong, 1);
	atomic_store(&e->at, end > now ? end : now);
	atomic_store(&e->behind, launches_drained(s) ? 0 : atomic_load(&waits));
	return CUDA_SUCCESS;
}

static CUresult query(CUevent in)
{
	struct event *e = in;
	bool ended = atomic_load(&e->at) <= seats_now() && atomic_load(&e->behind) <= atomic_load(&sets);
	return ended ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult capturing(CUstream s, int *status)
{
	(void)s;
	*status = atomic_load(&launches_capturing);
	return CUDA_SUCCESS;
}

static CUresult capture(CUstream s, int mode)
{
	(void)s, (void)mode;
	atomic_store(&launches_capturing, 1);
	return CUDA_SUCCESS;
}

static CUresult set_context(CUcontext c)
{
	driver_use((int)(uintptr_t)c - 1);
	return CUDA_SUCCESS;
}

static CUresult destroy_stream(CUstream s)
{
	(void)s;
	return CUDA_SUCCESS;
}

static CUresult exchange(int *mode)
{
	if (*mode != CAPTURE_RELAXED)
		atomic_fetch_add(&launches_wrong, 1);
	return CUDA_SUCCESS;
}

void *launches_function(const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} table[] = {
		{"cuLaunchKernel", kernel}, {"cuLaunchKernel_ptsz", kernel}, {"cuLaunchKernelEx", with_config}, {"cuGraphLaunch", graph},
		{"cuEventCreate", create}, {"cuEventDestroy_v2", destroy}, {"cuEventRecord", record}, {"cuEventQuery", query},
		{"cuStreamIsCapturing", capturing}, {"cuStreamBeginCapture_v2", capture}, {"cuCtxSetCurrent", set_context},
		{"cuStreamDestroy_v2", destroy_stream}, {"cuThreadExchangeStreamCaptureMode", exchange},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (strcmp(table[i].name, name) == 0)
			return table[i].function;
	return NULL;
}
