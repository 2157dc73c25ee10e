#define _GNU_SOURCE
#include "stocks_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"
#include "driver.h"
#include "hooks.h"
#include "launches.h"
#include "warehouse.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT (1024 * MIB)

static void counted(const char *when, uint64_t mib)
{
	CHECK(account_used(0) == mib * MIB && atomic_load(&driver_allocated[0]) == mib * MIB,
		"%s: %llu bytes are counted and %llu taken, want %llu MiB", when, (unsigned long long)account_used(0),
		(unsigned long long)atomic_load(&driver_allocated[0]), (unsigned long long)mib);
}

static void grows_by(uint64_t mib)
{
	atomic_store(&warehouse_step, mib * MIB);
}

static void a_pool_is_charged_by_what_it_reserves(void)
{
	CUdeviceptr p, q, r, all;
	grows_by(32);
	CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0, "allocate");
	counted("one allocation", 32);
	CHECK(cuMemAllocAsync(&q, MIB, NULL) == 0, "allocate");
	counted("one that the pool serves", 32);
	CHECK(cuMemAlloc_v2(&all, LIMIT - 32 * MIB) == 0, "the rest");
	CHECK(cuMemAllocAsync_ptsz(&r, 30 * MIB, NULL) == 0, "what the pool has costs nothing");
	CHECK(cuMemFreeAsync(r, NULL) == 0 && cuMemAllocAsync(&r, 31 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "more than it has");
	CHECK(cuMemFreeAsync(p, NULL) == 0 && cuMemFree_v2(q) == 0, "free");
	counted("all freed, and nothing synchronized", 1024);
	CHECK(cuStreamSynchronize(NULL) == 0, "synchronize");
	counted("synchronized", 1024 - 32);
	CHECK(cuMemFree_v2(all) == 0, "free");
	atomic_store(&warehouse_threshold, LIMIT);
	CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && cuMemFreeAsync(p, NULL) == 0 && cuStreamSynchronize(NULL) == 0,
		"a pool that keeps what it has");
	counted("kept", 32);
	CHECK(cuMemAlloc_v2(&all, LIMIT - 64 * MIB) == 0 && cuMemAllocAsync(&p, 60 * MIB, NULL) == 0, "what the pool has, and a little more");
	counted("full", 1024);
	CHECK(cuMemFree_v2(p) == 0 && cuMemFree_v2(all) == 0, "free");
	CHECK(cuMemAlloc_v2(&all, LIMIT) == 0, "what a pool keeps and does not use is given back when nothing else is left");
	counted("given back", 1024);
	CHECK(cuMemFree_v2(all) == 0, "free");
	atomic_store(&warehouse_threshold, 0);
}

static void a_pool_that_grows_further_than_it_said_is_undone(void)
{
	CUdeviceptr all, p;
	CHECK(cuMemAlloc_v2(&all, LIMIT - 32 * MIB) == 0, "all but 32 MiB");
	grows_by(64);
	CHECK(cuMemAllocAsync(&p, MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "1 MiB, for which the driver took 64");
	counted("undone", 1024 - 32);
	grows_by(2);
	atomic_store(&warehouse_scattered, 1);
	CHECK(cuMemAllocAsync(&p, 20 * MIB, NULL) == 0 && cuMemFreeAsync(p, NULL) == 0, "20 MiB, which are not used again");
	counted("freed", 1024 - 12);
	CHECK(cuMemAllocAsync(&p, 20 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "the pool has them, and cannot use them");
	counted("undone again", 1024 - 32);
	atomic_store(&warehouse_scattered, 0);
	CHECK(cuMemFree_v2(all) == 0, "free");
}

static void a_pool_that_is_destroyed_is_charged_until_its_last_allocation_is_freed(void)
{
	CUdeviceptr p, q;
	CUmemoryPool pool, again;
	const CUpool_properties here = {.type = 1, .location = {LOCATION_DEVICE, 0}};
	CHECK(cuMemPoolCreate(&pool, &here) == 0 && cuMemAllocFromPoolAsync(&p, 10 * MIB, pool, NULL) == 0, "a pool");
	CHECK(cuMemPoolDestroy(pool) == 0, "destroy");
	counted("destroyed, with an allocation", 10);
	CHECK(cuMemFreeAsync(p, NULL) == 0, "free");
	counted("destroyed, and all freed", 0);
	CHECK(cuMemPoolCreate(&again, &here) == 0 && again == pool, "the test's driver gives the handle again");
	CHECK(cuMemAllocFromPoolAsync(&p, 10 * MIB, again, NULL) == 0 && cuMemAllocFromPoolAsync(&q, 4 * MIB, again, NULL) == 0 &&
	      cuMemFreeAsync(p, NULL) == 0 && cuMemPoolTrimTo(again, 6 * MIB) == 0, "trim");
	counted("trimmed", 6);
	CHECK(cuMemFreeAsync(q, NULL) == 0 && cuMemPoolDestroy(again) == 0, "destroy");
	counted("all gone", 0);
	CUmemoryPool first;
	CUresult (*get)(CUmemoryPool *, CUdevice) = real_cuda("cuDeviceGetDefaultMemPool");
	CHECK(get(&first, 0) == 0 && cuMemAllocFromPoolAsync(&p, 10 * MIB, first, NULL) == 0, "a device's own pool, by its handle");
	CHECK(cuMemPoolDestroy(first) != 0, "which cannot be destroyed");
	counted("kept", 10);
	CHECK(cuMemFreeAsync(p, NULL) == 0 && cuStreamSynchronize(NULL) == 0, "free");
	counted("freed", 0);
}

static void a_pool_that_a_reset_has_emptied_is_charged_for_nothing(void)
{
	CUdeviceptr p;
	CHECK(cuMemAllocAsync(&p, 10 * MIB, NULL) == 0 && warehouse_frees(p), "the driver frees it by itself");
	CUresult (*synchronize)(CUstream) = real_cuda("cuStreamSynchronize");
	CHECK(synchronize(NULL) == 0 && cuCtxDestroy_v2((void *)(uintptr_t)1) == 0, "the end of the context");
	counted("reset", 0);
	CHECK(cuMemFreeAsync(p, NULL) != 0 && cuMemAllocAsync(&p, 4 * MIB, NULL) == 0, "used again");
	counted("used again", 4);
	CHECK(cuMemFreeAsync(p, NULL) == 0 && cuStreamSynchronize(NULL) == 0, "free");
	counted("freed", 0);
}

static void what_is_allocated_in_a_capture_costs_nothing_yet(void)
{
	CUdeviceptr all, p;
	CHECK(cuMemAlloc_v2(&all, LIMIT - 2 * MIB) == 0, "nearly all");
	atomic_store(&launches_capturing, 1);
	CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && cuMemAllocAsync(&p, 512 * MIB, NULL) == 0, "nodes of a graph");
	atomic_store(&launches_capturing, 0);
	counted("captured", 1024 - 2);
	CHECK(cuMemFree_v2(all) == 0, "free");
}

static CUgraphExec graph(uint64_t mib, bool frees)
{
	CUgraphExec e;
	CUgraph g = warehouse_graph(0, mib * MIB, frees);
	CHECK(cuGraphInstantiateWithFlags(&e, g, 0) == 0, "instantiate");
	free(g);
	return e;
}

static void a_graph_is_charged_when_it_is_launched(void)
{
	CUdeviceptr all;
	CUstream a = (CUstream)(uintptr_t)16, b = (CUstream)(uintptr_t)17;
	CUgraphExec small = graph(100, true), large = graph(600, true), keeps = graph(300, false), larger = graph(1025, true);
	counted("instantiated", 0);
	CHECK(cuGraphLaunch(small, a) == 0 && cuGraphLaunch(small, a) == 0, "launch twice");
	counted("once mapped", 100);
	CHECK(cuGraphUpload(large, a) == 0, "upload");
	counted("graphs of a stream share", 600);
	CHECK(cuGraphLaunch(large, a) == 0 && cuGraphLaunch(small, a) == 0 && cuGraphLaunch(large, a) == 0,
		"launch in turn, with more together than the limit");
	CHECK(cuGraphLaunch(larger, a) == CUDA_ERROR_OUT_OF_MEMORY, "more than the limit");
	counted("refused, and for that what no graph uses was given back", 0);
	CHECK(cuGraphLaunch(large, a) == 0 && cuGraphLaunch(keeps, a) == 0, "one that keeps what it allocates");
	counted("kept", 900);
	CHECK(cuGraphLaunch(small, b) == 0, "in another stream");
	counted("which shares nothing", 1000);
	CHECK(cuMemAlloc_v2(&all, 424 * MIB) == 0, "what graphs do not use is given back for other memory");
	counted("given back", 300 + 424);
	CHECK(cuGraphLaunch(large, b) == CUDA_ERROR_OUT_OF_MEMORY, "a launch past the limit");
	CHECK(cuGraphLaunch(small, b) == 0, "one within it");
	CHECK(cuGraphExecDestroy(small) == 0, "destroy");
	counted("destroyed, and its memory kept", 300 + 424 + 100);
	CHECK(cuDeviceGraphMemTrim(0) == 0, "trim");
	counted("trimmed", 300 + 424);
	CHECK(cuMemFree_v2(all) == 0 && cuGraphExecDestroy(large) == 0 && cuGraphExecDestroy(larger) == 0, "free");
	CHECK(cuGraphLaunch(keeps, b) == 0, "launched again, with what it has");
	counted("the same", 300);
	CHECK(cuGraphExecDestroy(keeps) == 0, "destroy");
	counted("destroyed, with an allocation that was not freed", 300);
}

static void a_graph_that_was_updated_is_charged_for_its_new_nodes(void)
{
	CUstream s = (CUstream)(uintptr_t)20;
	CUgraphExec e = graph(100, true);
	CUgraph larger = warehouse_graph(0, 700 * MIB, true), too_large = warehouse_graph(0, LIMIT, true);
	CHECK(cuGraphLaunch(e, s) == 0, "launch");
	counted("before the update", 300 + 100);
	CHECK(cuGraphExecUpdate_v2(e, too_large, NULL) == 0 && cuGraphLaunch(e, s) == CUDA_ERROR_OUT_OF_MEMORY, "updated past the limit");
	CHECK(cuGraphExecUpdate_v2(e, larger, NULL) == 0 && cuGraphLaunch(e, s) == 0, "launch after an update");
	counted("after the update", 300 + 700);
	CHECK(cuGraphExecDestroy(e) == 0 && cuDeviceGraphMemTrim(0) == 0, "destroy");
	counted("trimmed", 300);
	free(larger);
	free(too_large);
}

static void contexts_and_modules_are_charged_by_what_nvml_tells(void)
{
	CUcontext c;
	CUmodule m;
	CUdeviceptr p;
	uint64_t total, overhead[2], before = account_used(0);
	atomic_store(&driver_pid, (unsigned int)getpid());
	CHECK(cuMemAlloc_v2(&p, 4 * MIB) == 0 && cuCtxCreate_v2(&c, 0, 0) == 0, "a context");
	account_mine(0, &total, overhead);
	CHECK(overhead[0] == 300 * MIB && overhead[1] == 0 && total == before + 304 * MIB, "%llu bytes for the context, %llu for modules, of %llu",
	      (unsigned long long)overhead[0], (unsigned long long)overhead[1], (unsigned long long)total);
	CHECK(cuModuleLoadData(&m, "") == 0, "a module");
	account_mine(0, &total, overhead);
	CHECK(overhead[0] == 300 * MIB && overhead[1] == 10 * MIB && total == account_used(0), "%llu for modules",
		(unsigned long long)overhead[1]);
	CHECK(cuMemAlloc_v2(&(CUdeviceptr){0}, LIMIT - before - 312 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "they take of the limit");
	CHECK(cuModuleUnload(m) == 0, "unload");
	account_mine(0, &total, overhead);
	CHECK(overhead[1] == 0 && total == before + 304 * MIB, "%llu for modules that were unloaded", (unsigned long long)overhead[1]);
	atomic_store(&driver_overhead[0], ~0ull);
	char said[256] = "";
	int ends[2], own = dup(2);
	CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2, "read what is said");
	CHECK(cuModuleLoadData(&m, "") == 0, "a module, when the driver does not say how much");
	CHECK(cuModuleLoadData(&m, "") == 0, "and another");
	CHECK(dup2(own, 2) == 2 && close(ends[1]) == 0 && close(own) == 0, "say the rest elsewhere");
	ssize_t length = read(ends[0], said, sizeof said - 1);
	close(ends[0]);
	const char *words = strstr(said, "do not count against its limit");
	CHECK(length > 0 && words && !strstr(words + 1, "do not count"), "said, and once: %s", said);
	account_mine(0, &total, overhead);
	CHECK(overhead[0] == 300 * MIB, "what is known stays: %llu", (unsigned long long)overhead[0]);
	CHECK(cuMemFree_v2(p) == 0 && cuCtxDestroy_v2((void *)(uintptr_t)1) == 0, "destroy");
	account_mine(0, &total, overhead);
	CHECK(overhead[0] == 0 && total == before, "%llu for a context that is gone", (unsigned long long)overhead[0]);
}

static void *churn(void *unused)
{
	CUgraphExec e = graph(8, true);
	(void)unused;
	driver_use(0);
	for (int i = 0; i < 500; i++) {
		CUdeviceptr p;
		if (cuMemAllocAsync(&p, (size_t)(1 + i % 96) * MIB, NULL) == 0)
			CHECK((i % 2 ? cuMemFreeAsync(p, NULL) : cuMemFree_v2(p)) == 0, "free");
		cuGraphLaunch(e, (CUstream)(uintptr_t)(16 + i % 4));
		if (i % 50 == 0)
			CHECK(cuStreamSynchronize(NULL) == 0 && cuDeviceGraphMemTrim(0) == 0, "give back");
	}
	CHECK(cuGraphExecDestroy(e) == 0, "destroy");
	return NULL;
}

static void threads_leave_nothing(uint64_t kept)
{
	pthread_t t[16];
	for (int i = 0; i < 16; i++)
		pthread_create(&t[i], NULL, churn, NULL);
	for (int i = 0; i < 16; i++)
		pthread_join(t[i], NULL);
	CHECK(cuStreamSynchronize(NULL) == 0 && cuDeviceGraphMemTrim(0) == 0, "give back");
	counted("after threads", kept);
}

static void a_child_counts_its_own_pools(void)
{
	CUdeviceptr p, q;
	CHECK(cuMemAllocAsync(&p, 100 * MIB, NULL) == 0, "allocate");
	uint64_t has = account_used(0);
	pid_t pid = fork();
	if (pid == 0) {
		driver_use(0);
		CHECK(cuMemAllocAsync(&q, LIMIT, NULL) == CUDA_ERROR_OUT_OF_MEMORY, "what the parent has");
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child failed");
	CHECK(account_used(0) == has && cuMemFreeAsync(p, NULL) == 0 && cuStreamSynchronize(NULL) == 0, "free");
}

void test_stocks(void)
{
	driver_use(0);
	counted("at first", 0);
	a_pool_is_charged_by_what_it_reserves();
	a_pool_that_grows_further_than_it_said_is_undone();
	a_pool_that_is_destroyed_is_charged_until_its_last_allocation_is_freed();
	a_pool_that_a_reset_has_emptied_is_charged_for_nothing();
	what_is_allocated_in_a_capture_costs_nothing_yet();
	a_graph_is_charged_when_it_is_launched();
	a_graph_that_was_updated_is_charged_for_its_new_nodes();
	contexts_and_modules_are_charged_by_what_nvml_tells();
	threads_leave_nothing(300);
	a_child_counts_its_own_pools();
	/* Memory of the graph of a test above stays to the end of the process. */
	counted("at last", 300);
}
