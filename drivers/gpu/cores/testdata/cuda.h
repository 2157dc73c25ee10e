/* The part of CUDA that the programs of these tests use: its functions, looked up in a library that is named, and the milliseconds of the
 * clock. */
#pragma once
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOAD(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(library, #name)
#define DO(call)                                                \
	do {                                                    \
		int r = call;                                   \
		if (r) {                                        \
			fprintf(stderr, "%s: %d\n", #call, r); \
			return 1;                               \
		}                                               \
	} while (0)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The driver's functions, of a library that LIBRARY is. */
#define FUNCTIONS(library) \
	void *context, *module; \
	LOAD(cuInit, unsigned int); \
	LOAD(cuDevicePrimaryCtxRetain, void **, int); \
	LOAD(cuCtxSetCurrent, void *); \
	LOAD(cuModuleLoadData, void **, const void *); \
	LOAD(cuModuleGetFunction, void **, void *, const char *); \
	LOAD(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **); \
	LOAD(cuCtxSynchronize, void)

/* Makes a device's context current, and loads kernels of these names. */
#define BEGIN(device, names) \
	DO(cuInit(0)); \
	DO(cuDevicePrimaryCtxRetain(&context, device)); \
	DO(cuCtxSetCurrent(context)); \
	DO(cuModuleLoadData(&module, ".version 6.3\n.target sm_75\n" names))
#define ENTRY(name) ".visible .entry " name "()\n{\n\tret;\n}\n"
#define LAUNCH(kernel, stream) DO(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL))
