/*
 * A client of libcuda.so.1 that a test drives, which finds all functions by cuGetProcAddress: stocks LIBRARY VERSION FLAGS; each command
 * one line of input, each answered with one line. It allocates from pools and by graphs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cuda.h"

#define MOST 16

static CUresult (*look)(const char *, void **, int, unsigned long long, int *);
static int version;
static unsigned long long flags;

static void *find(const char *name)
{
	void *f = NULL;
	if (look(name, &f, version, flags, NULL) != 0 || !f) {
		fprintf(stderr, "no %s\n", name);
		exit(3);
	}
	return f;
}

#define CALL(name, type, ...) ((CUresult(*) type)find(#name))(__VA_ARGS__)
#define GRAPH_NODE (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUmemory_node *)

static CUdeviceptr blocks[MOST];
static CUgraph graphs[MOST];
static CUgraphExec instantiated[MOST];
static CUmemoryPool pool;
static CUmodule module;
static CUcontext context;
static int n;

/* A graph that allocates, by whichever call, and frees if that is wanted. */
static CUresult build(int i, size_t bytes, int any, int frees)
{
	CUgraphNode node, second;
	CUmemory_node what = {.pool = {.type = 1, .location = {1, 0}}, .bytes = bytes};
	CUresult r = graphs[i] ? 0 : CALL(cuGraphCreate, (CUgraph *, unsigned), &graphs[i], 0);
	if (r == 0 && any) {
		CUany_node a = {.type = 10, .as.allocates = what};
		r = CALL(cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUany_node *), &node, graphs[i], NULL,
			NULL, 0, &a);
		what = a.as.allocates;
	} else if (r == 0) {
		r = CALL(cuGraphAddMemAllocNode, GRAPH_NODE, &node, graphs[i], NULL, 0, &what);
	}
	blocks[n++ % MOST] = what.address;
	if (r == 0 && frees)
		r = CALL(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr), &second, graphs[i], &node, 1,
			what.address);
	return r;
}

static CUresult instantiate(int i, unsigned long long with)
{
	if (version >= 12000)
		return CALL(cuGraphInstantiate, (CUgraphExec *, CUgraph, unsigned long long), &instantiated[i], graphs[i], with);
	return CALL(cuGraphInstantiate, (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t), &instantiated[i], graphs[i], NULL, NULL, 0);
}

static CUresult kernel(const char *name)
{
	CUfunction f;
	/* A binary, in which the stand-in finds any name. */
	CUresult r = module ? 0 : CALL(cuModuleLoadData, (CUmodule *, const void *), &module, "\x7f""ELF");
	if (r == 0)
		r = CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &f, module, name);
	return r ? r
			 : CALL(cuLaunchKernel,
				   (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **), f, 1, 1,
				   1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
	void *library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
	const CUpool_properties here = {.type = 1, .location = {1, 0}};
	char line[256];
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	look = (CUresult(*)(const char *, void **, int, unsigned long long, int *))dlsym(library, "cuGetProcAddress_v2");
	version = atoi(argv[2]);
	flags = strtoull(argv[3], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		char word[64] = "", text[128] = "";
		unsigned long long second = 0;
		sscanf(line, "%63s %127s %llu", word, text, &second);
		unsigned long long v = strtoull(text, NULL, 10);
		int i = (int)(v % MOST);
		CUresult r = -1;
		if (strcmp(word, "context") == 0) {
			r = CALL(cuInit, (unsigned), 0);
			if (r == 0)
				r = CALL(cuCtxCreate, (CUcontext *, unsigned, CUdevice), &context, 0, (CUdevice)v);
		} else if (strcmp(word, "primary") == 0) {
			r = CALL(cuInit, (unsigned), 0);
			if (r == 0)
				r = CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), &context, (CUdevice)v);
			if (r == 0)
				r = CALL(cuCtxSetCurrent, (CUcontext), context);
		} else if (strcmp(word, "destroy") == 0) {
			r = CALL(cuCtxDestroy, (CUcontext), context);
		} else if (strcmp(word, "alloc") == 0) {
			r = CALL(cuMemAlloc, (CUdeviceptr *, size_t), &blocks[n++ % MOST], v);
		} else if (strcmp(word, "async") == 0) {
			r = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream), &blocks[n++ % MOST], v, NULL);
		} else if (strcmp(word, "from") == 0) {
			r = CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream), &blocks[n++ % MOST], v, pool, NULL);
		} else if (strcmp(word, "free") == 0) { /* the one so many back */
			r = CALL(cuMemFree, (CUdeviceptr), blocks[(n - 1 - i) % MOST]);
		} else if (strcmp(word, "freeasync") == 0) {
			r = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream), blocks[(n - 1 - i) % MOST], NULL);
		} else if (strcmp(word, "pool") == 0) {
			r = CALL(cuMemPoolCreate, (CUmemoryPool *, const CUpool_properties *), &pool, &here);
		} else if (strcmp(word, "default") == 0) {
			r = CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice), &pool, 0);
		} else if (strcmp(word, "use") == 0) {
			r = CALL(cuDeviceSetMemPool, (CUdevice, CUmemoryPool), (CUdevice)v, pool);
		} else if (strcmp(word, "drop") == 0) {
			r = CALL(cuMemPoolDestroy, (CUmemoryPool), pool);
		} else if (strcmp(word, "trim") == 0) {
			r = CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t), pool, v);
		} else if (strcmp(word, "set") == 0) {
			r = CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *), pool, (int)v, &second);
		} else if (strcmp(word, "sync") == 0) {
			r = CALL(cuStreamSynchronize, (CUstream), NULL);
		} else if (strcmp(word, "kernel") == 0) {
			r = kernel(text);
		} else if (strcmp(word, "unload") == 0) {
			r = CALL(cuModuleUnload, (CUmodule), module);
			module = NULL;
		} else if (strcmp(word, "graph") == 0 || strcmp(word, "any") == 0) {
			r = build(i, second, word[0] == 'a', 1);
		} else if (strcmp(word, "keeps") == 0) {
			r = build(i, second, 0, 0);
		} else if (strcmp(word, "frees") == 0) { /* a graph that frees what the last one allocated */
			CUgraphNode node;
			r = graphs[i] ? 0 : CALL(cuGraphCreate, (CUgraph *, unsigned), &graphs[i], 0);
			if (r == 0)
				r = CALL(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr), &node, graphs[i], NULL, 0,
					 blocks[(n - 1) % MOST]);
		} else if (strcmp(word, "capture") == 0) {
			r = CALL(cuStreamBeginCapture, (CUstream, int), NULL, (int)v);
		} else if (strcmp(word, "exchange") == 0) {
			int mode = (int)v;
			r = CALL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
		} else if (strcmp(word, "captured") == 0) {
			r = CALL(cuStreamEndCapture, (CUstream, CUgraph *), NULL, &graphs[i]);
		} else if (strcmp(word, "instantiate") == 0) {
			r = instantiate(i, second);
		} else if (strcmp(word, "launch") == 0) {
			r = CALL(cuGraphLaunch, (CUgraphExec, CUstream), instantiated[i], NULL);
		} else if (strcmp(word, "upload") == 0) {
			r = CALL(cuGraphUpload, (CUgraphExec, CUstream), instantiated[i], NULL);
		} else if (strcmp(word, "end") == 0) {
			r = CALL(cuGraphExecDestroy, (CUgraphExec), instantiated[i]);
		} else if (strcmp(word, "trimgraphs") == 0) {
			r = CALL(cuDeviceGraphMemTrim, (CUdevice), 0);
		} else if (strcmp(word, "setgraphs") == 0) {
			r = CALL(cuDeviceSetGraphMemAttribute, (CUdevice, int, void *), 0, (int)v, &second);
		} else if (strcmp(word, "reserved") == 0) { /* MiB reserved and used, now and at most: by the pool, and by graphs */
			unsigned long long a[8];
			for (int j = 0; j < 4; j++) {
				CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *), pool, 5 + j, &a[j]);
				CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *), 0, (j + 2) % 4, &a[4 + j]);
			}
			for (int j = 0; j < 8; j++)
				printf("%llu%s", a[j] >> 20, j < 7 ? " " : "\n");
			continue;
		} else if (strcmp(word, "info") == 0) {
			size_t available = 0, total = 0;
			r = CALL(cuMemGetInfo, (size_t *, size_t *), &available, &total);
			printf("%d %zu\n", r, available >> 20);
			continue;
		}
		printf("%d\n", r);
	}
	return 0;
}
