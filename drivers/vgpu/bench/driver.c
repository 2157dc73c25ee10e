#include "driver.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

const char driver_kernels[] = ".version 6.3\n"
			      ".target sm_75\n"
			      ".address_size 64\n"
			      "\n"
			      ".global .align 4 .u32 result;\n"
			      "\n"
			      ".visible .entry nothing_0ms()\n"
			      "{\n"
			      "	ret;\n"
			      "}\n"
			      "\n"
			      ".visible .entry work_1ms(.param .u32 rounds)\n"
			      "{\n"
			      "	.reg .pred %more;\n"
			      "	.reg .u32 %left, %value;\n"
			      "\n"
			      "	ld.param.u32 %left, [rounds];\n"
			      "	mov.u32 %value, %left;\n"
			      "again:\n"
			      "	mad.lo.u32 %value, %value, 1664525, 1013904223;\n"
			      "	sub.u32 %left, %left, 1;\n"
			      "	setp.ne.u32 %more, %left, 0;\n"
			      "	@%more bra again;\n"
			      "	st.global.u32 [result], %value;\n" /* so that no compiler leaves the work out */
			      "	ret;\n"
			      "}\n";

static bool lacks(void *handle, void *into, const char *name, char failed[FAILED])
{
	void *found = dlsym(handle, name);
	memcpy(into, &found, sizeof found);
	if (!found)
		snprintf(failed, FAILED, "%s is not in the library", name);
	return !found;
}

static int look_up(void *handle, struct driver *d, char failed[FAILED])
{
	char unused[FAILED];
	if (lacks(handle, &d->init, "cuInit", failed) || lacks(handle, &d->retain, "cuDevicePrimaryCtxRetain", failed) ||
	    lacks(handle, &d->current, "cuCtxSetCurrent", failed) || lacks(handle, &d->info, "cuMemGetInfo_v2", failed) ||
	    lacks(handle, &d->allocate, "cuMemAlloc_v2", failed) || lacks(handle, &d->release, "cuMemFree_v2", failed) ||
	    lacks(handle, &d->load, "cuModuleLoadData", failed) || lacks(handle, &d->function, "cuModuleGetFunction", failed) ||
	    lacks(handle, &d->launch, "cuLaunchKernel", failed) || lacks(handle, &d->synchronize, "cuCtxSynchronize", failed) ||
	    lacks(handle, &d->stream, "cuStreamCreate", failed) || lacks(handle, &d->event, "cuEventCreate", failed) ||
	    lacks(handle, &d->record, "cuEventRecord", failed) || lacks(handle, &d->await, "cuEventSynchronize", failed))
		return -1;
	d->graphs =
		!lacks(handle, &d->capture, "cuStreamBeginCapture_v2", unused) && !lacks(handle, &d->end_capture, "cuStreamEndCapture", unused) &&
		!lacks(handle, &d->instantiate, "cuGraphInstantiateWithFlags", unused) && !lacks(handle, &d->launch_graph, "cuGraphLaunch", unused);
	return 0;
}

int driver_open(const char *library, struct driver *d, char failed[FAILED])
{
	void *context, *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
	if (!handle) {
		snprintf(failed, FAILED, "%s", dlerror());
		return -1;
	}
	if (look_up(handle, d, failed))
		return -1;
	DO(d->init(0), "cuInit", failed);
	DO(d->retain(&context, 0), "cuDevicePrimaryCtxRetain", failed);
	DO(d->current(context), "cuCtxSetCurrent", failed);
	return 0;
}

int driver_graph(
	const struct driver *d, void *function, void **parameters, void *stream, unsigned int kernels, void **graph, char failed[FAILED])
{
	void *captured;
	DO(d->capture(stream, CAPTURE_THREAD), "cuStreamBeginCapture", failed);
	for (unsigned int i = 0; i < kernels; i++)
		DO(d->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel in a capture", failed);
	DO(d->end_capture(stream, &captured), "cuStreamEndCapture", failed);
	DO(d->instantiate(graph, captured, 0), "cuGraphInstantiateWithFlags", failed);
	return 0;
}

double driver_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
