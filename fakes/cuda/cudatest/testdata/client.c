/* A client of libcuda.so.1 that a test drives: client LIBRARY COMMAND..., each command one line of input, each answered with one line. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "../../cuda.h"

#define LOAD(result, name, ...) result (*name)(__VA_ARGS__) = (result(*)(__VA_ARGS__))dlsym(library, #name)

static void ignore(int signal)
{
	(void)signal;
}

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	char line[256];
	CUdeviceptr blocks[64];
	CUmodule module;
	CUcontext context, popped;
	CUdevice device;
	int n = 0;
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	LOAD(CUresult, cuInit, unsigned int);
	LOAD(CUresult, cuDeviceGetCount, int *);
	LOAD(CUresult, cuDeviceGetName, char *, int, CUdevice);
	LOAD(CUresult, cuCtxCreate_v2, CUcontext *, unsigned int, CUdevice);
	LOAD(CUresult, cuCtxDestroy_v2, CUcontext);
	LOAD(CUresult, cuCtxPushCurrent_v2, CUcontext);
	LOAD(CUresult, cuCtxPopCurrent_v2, CUcontext *);
	LOAD(CUresult, cuCtxSetCurrent, CUcontext);
	LOAD(CUresult, cuCtxGetDevice, CUdevice *);
	LOAD(CUresult, cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	LOAD(CUresult, cuMemAlloc_v2, CUdeviceptr *, size_t);
	LOAD(CUresult, cuMemFree_v2, CUdeviceptr);
	LOAD(CUresult, cuMemGetInfo_v2, size_t *, size_t *);
	LOAD(CUresult, cuModuleLoadData, CUmodule *, const void *);
	LOAD(CUresult, cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	LOAD(CUresult, cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	LOAD(CUresult, cuCtxSynchronize, void);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		char word[64] = "", argument[128] = "";
		sscanf(line, "%63s %127s", word, argument);
		if (strcmp(word, "init") == 0) {
			int count = -1;
			char name[128] = "";
			CUresult r = cuInit(0);
			if (r == 0) {
				cuDeviceGetCount(&count);
				cuDeviceGetName(name, sizeof name, 0);
			}
			printf("%d %d %s\n", r, count, name);
		} else if (strcmp(word, "context") == 0) {
			printf("%d\n", cuCtxCreate_v2(&context, 0, atoi(argument)));
		} else if (strcmp(word, "primary") == 0) {
			printf("%d\n", cuDevicePrimaryCtxRetain(&context, atoi(argument)));
		} else if (strcmp(word, "push") == 0) {
			printf("%d\n", cuCtxPushCurrent_v2(strcmp(argument, "none") == 0 ? NULL : context));
		} else if (strcmp(word, "pop") == 0) {
			CUresult r = cuCtxPopCurrent_v2(&popped);
			printf("%d %d\n", r, r == 0 && popped == context);
		} else if (strcmp(word, "set") == 0) {
			printf("%d\n", cuCtxSetCurrent(strcmp(argument, "none") == 0 ? NULL : context));
		} else if (strcmp(word, "device") == 0) {
			device = -1;
			CUresult r = cuCtxGetDevice(&device);
			printf("%d %d\n", r, device);
		} else if (strcmp(word, "destroy") == 0) {
			printf("%d\n", cuCtxDestroy_v2(context));
		} else if (strcmp(word, "signals") == 0) {
			struct sigaction action = {.sa_handler = ignore};
			struct itimerval every = {{0, 20000}, {0, 20000}};
			sigaction(SIGALRM, &action, NULL);
			printf("%d\n", setitimer(ITIMER_REAL, &every, NULL));
		} else if (strcmp(word, "alloc") == 0) {
			printf("%d\n", cuMemAlloc_v2(&blocks[n++ % 64], strtoull(argument, NULL, 10)));
		} else if (strcmp(word, "free") == 0) {
			printf("%d\n", cuMemFree_v2(blocks[--n]));
		} else if (strcmp(word, "info") == 0) {
			size_t available = 0, total = 0;
			CUresult r = cuMemGetInfo_v2(&available, &total);
			printf("%d %zu %zu\n", r, available, total);
		} else if (strcmp(word, "launch") == 0) {
			CUfunction f;
			cuModuleLoadData(&module, "");
			cuModuleGetFunction(&f, module, argument);
			printf("%d\n", cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
		} else if (strcmp(word, "wait") == 0) {
			printf("%d\n", cuCtxSynchronize());
		} else if (strcmp(word, "die") == 0) {
			_exit(9);
		} else {
			return 0;
		}
	}
	return 0;
}
