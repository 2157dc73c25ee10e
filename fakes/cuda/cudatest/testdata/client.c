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

/* What may be given to cuModuleLoadData, and what may not. */
static const struct {
	const char *name, *text;
} images[] = {
	{"empty", ""},
	{"words", "kernel"},
	{"no-version", ".target sm_75\n.entry plain_0ms()\n{\n}\n"},
	{"no-target", ".version 6.3\n.entry plain_0ms()\n{\n}\n"},
	{"cubin", "\x7f" "ELF"},
	{"ptx", "// .entry hidden_0ms\n /* .version */ .version 6.3\n.target sm_75\n.visible .entry plain_0ms ( )\n{\n\tret;\n}\n"
		".entry fed_0ms(\n\t.param .u32 rounds\n)\n{\n\tret;\n}\n"},
};

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
	LOAD(CUresult, cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
		void **);
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
			char text[256];
			snprintf(text, sizeof text, ".version 6.3\n.target sm_75\n.visible .entry %s()\n{\n\tret;\n}\n", argument);
			CUresult r = cuModuleLoadData(&module, text);
			r = r ? r : cuModuleGetFunction(&f, module, argument);
			printf("%d\n", r ? r : cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
		} else if (strcmp(word, "image") == 0) {
			for (size_t i = 0; i < sizeof images / sizeof *images; i++)
				if (strcmp(images[i].name, argument) == 0)
					printf("%d\n", cuModuleLoadData(&module, images[i].text));
		} else if (strcmp(word, "function") == 0) { /* of the last image, launched without parameters and with some */
			void *some[] = {line};
			CUfunction f;
			CUresult r = cuModuleGetFunction(&f, module, argument);
			printf("%d %d %d\n", r, r ? -1 : cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL),
			       r ? -1 : cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, some, NULL));
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
