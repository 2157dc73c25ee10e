/* The functions that are intercepted, over a driver that counts: what the limiter counts is what the driver gave, and never more than the
 * limit. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "common_test.h"
#include "cores_test.h"
#include "driver.h"
#include "gate_test.h"
#include "hooks.h"
#include "lives_test.h"
#include "overhead_test.h"
#include "stocks_test.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT (1024 * MIB)

static void equal(const char *what)
{
	CHECK(account_used(0) == atomic_load(&driver_allocated[0]), "%s: %llu bytes are counted, and %llu allocated", what,
	      (unsigned long long)account_used(0), (unsigned long long)atomic_load(&driver_allocated[0]));
}

static void limits_are_read_whole_or_not_at_all(void)
{
	static const char good[] = "gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 30\nclosed\n";
	static const char cores_alone[] = "gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 - 30\n";
	static const char *const bad[] = {
		"",
		"gpufabric-limits 1\n",
		"gpufabric-limits 2\nGPU-01010101 1 1\n",
		"gpufabric-limits 1\nGPU-01010101 1 1",
		"gpufabric-limits 1\nGPU-01010101 -1 1\n",
		"gpufabric-limits 1\nGPU-01010101 -- 1\n",
		"gpufabric-limits 1\nGPU-01010101 1 -\n",
		"gpufabric-limits 1\nGPU-01010101 1 101\n",
		"gpufabric-limits 1\nGPU-01010101 1\n",
		"gpufabric-limits 1\nGPU-01010101 99999999999999999999 1\n",
		"gpufabric-limits 1\nGPU-01010101 1 1 1\n",
		"gpufabric-limits 1\n../../x 1 1\n",
		"gpufabric-limits 1\nGPU-01010101 1 1\nGPU-01010101 1 1\n",
		"gpufabric-limits 1\nGPU-01010101 1 1\nopen\n",
	};
	struct limits l;
	CHECK(limits_parse(cores_alone, sizeof cores_alone - 1, &l) && l.devices[0].elsewhere && l.devices[0].memory == 0 &&
			  l.devices[0].cores == 30,
		"cores");
	CHECK(limits_parse(good, sizeof good - 1, &l) && l.count == 1 && l.closed && !l.devices[0].elsewhere && l.devices[0].memory == LIMIT &&
			  l.devices[0].cores == 30,
		"good");
	for (size_t i = 0; i < sizeof good - 1; i++)
		if (limits_parse(good, i, &l))
			CHECK(good[i - 1] == '\n', "the first %zu bytes were taken for limits", i);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		CHECK(!limits_parse(bad[i], strlen(bad[i]), &l), "taken for limits: %s", bad[i]);
}

static void limits_of_two_claims_add_up(void)
{
	static const char first[] = "gpufabric-limits 1\nGPU-01010101 1000 30\nGPU-02020202 7 0\n", second[] =
		"gpufabric-limits 1\nclosed\nGPU-01010101 500 80\nGPU-03030303 0 5\n";
	struct limits have, more;
	CHECK(limits_parse(first, sizeof first - 1, &have) && limits_parse(second, sizeof second - 1, &more) && limits_join(&have, &more), "join");
	CHECK(have.count == 3 && have.closed && have.devices[0].memory == 1500 && have.devices[0].cores == 100 && have.devices[1].memory == 7 &&
	      have.devices[2].memory == 0, "%d: %llu", have.count, (unsigned long long)have.devices[0].memory);
	CHECK(limits_join(&more, &have) && more.devices[0].memory == 2000 && more.devices[1].memory == 0, "all of one");
	have.count = MOST_DEVICES;
	for (int i = 0; i < MOST_DEVICES; i++)
		snprintf(have.devices[i].uuid, sizeof have.devices[i].uuid, "GPU-%d", i);
	CHECK(!limits_join(&have, &more), "more GPUs than can be counted");
}

static void every_way_to_allocate_counts(void)
{
	CUdeviceptr p[6];
	CUmemoryPool pool;
	CUhandle h;
	CUarray a;
	size_t pitch, available, total;
	driver_use(0);
	CHECK(cuMemPoolCreate(&pool, &(CUpool_properties){.type = 1, .location = {LOCATION_DEVICE, 0}}) == 0, "a pool");
	CHECK(cuMemAlloc_v2(&p[0], MIB) == 0 && cuMemAllocManaged(&p[1], MIB, 1) == 0 && cuMemAllocAsync(&p[2], MIB, NULL) == 0 &&
	      cuMemAllocAsync_ptsz(&p[3], MIB, NULL) == 0 && cuMemAllocFromPoolAsync(&p[4], MIB, pool, NULL) == 0, "allocate");
	equal("memory");
	CHECK(cuMemAllocPitch_v2(&p[5], &pitch, 1000, 10, 4) == 0 && pitch == 1024, "pitch %zu", pitch);
	equal("rows that the driver makes longer");
	CHECK(cuArrayCreate_v2(&a, &(CUarray_descriptor){1024, 512, 0x01, 2}) == 0, "array");
	equal("an array");
	CHECK(cuMemCreate(&h, 2 * MIB, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == 0, "physical memory");
	equal("physical memory");
	CHECK(cuMemMap(MIB, 2 * MIB, 0, h, 0) == 0 && cuMemRelease(h) == 0, "map, and release the handle");
	equal("physical memory that is mapped, and has no handle any more");
	CHECK(cuMemGetInfo_v2(&available, &total) == 0 && total == LIMIT && available == LIMIT - account_used(0), "%zu of %zu", available, total);
	CHECK(cuDeviceTotalMem_v2(&total, 0) == 0 && total == LIMIT, "%zu", total);
	CHECK(cuMemUnmap(MIB, 2 * MIB) == 0, "unmap");
	equal("physical memory that is gone");
	CHECK(cuMemFree_v2(p[0]) == 0 && cuMemFree_v2(p[1]) == 0 && cuMemFreeAsync(p[2], NULL) == 0 && cuMemFreeAsync_ptsz(p[3], NULL) == 0 &&
	      cuMemFreeAsync(p[4], NULL) == 0 && cuMemFree_v2(p[5]) == 0 && cuArrayDestroy(a) == 0, "free");
	equal("all freed, and what the pools keep");
	CHECK(cuStreamSynchronize(NULL) == 0 && cuMemPoolDestroy(pool) == 0, "synchronize");
	equal("all freed");
	CHECK(account_used(0) == 0, "%llu bytes are left", (unsigned long long)account_used(0));
	CHECK(cuMemFree_v2(p[0]) != 0, "freed twice");
	equal("freed twice");
}

/* CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING: the memory is that of cuMemCreate, which is mapped into them later. */
static void arrays_without_memory_do_not_count(void)
{
	const CUarray3d_descriptor plain = {4096, 4096, 1, 0xc2, 4, 0}, large = {1 << 17, 1 << 17, 0, 0x20, 4, 0x40};
	CUarray3d_descriptor deferred = large;
	CUarray a[4];
	deferred.flags = 0x80;
	driver_use(0);
	CHECK(cuArray3DCreate_v2(&a[0], &plain) == 0, "an array of normalized bytes");
	equal("an array of normalized bytes");
	CHECK(cuArray3DCreate_v2(&a[1], &large) == 0 && cuMipmappedArrayCreate(&a[2], &large, 5) == 0, "sparse arrays larger than the limit");
	CHECK(cuArray3DCreate_v2(&a[3], &deferred) == 0, "an array with deferred mapping");
	equal("arrays without memory");
	CHECK(cuArrayDestroy(a[0]) == 0 && cuArrayDestroy(a[1]) == 0 && cuMipmappedArrayDestroy(a[2]) == 0 && cuArrayDestroy(a[3]) == 0,
		"destroy");
	equal("arrays that are gone");
}

static void what_does_not_fit_is_refused_and_changes_nothing(void)
{
	CUdeviceptr p, q;
	CHECK(cuMemAlloc_v2(&p, LIMIT) == 0, "all of it");
	CHECK(cuMemAlloc_v2(&q, 1) == CUDA_ERROR_OUT_OF_MEMORY, "one byte more");
	CHECK(cuMemAlloc_v2(&q, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY, "all bytes that there are");
	CHECK(cuMemAllocPitch_v2(&q, &(size_t){0}, SIZE_MAX / 2, 4, 4) == CUDA_ERROR_OUT_OF_MEMORY, "rows whose product overflows");
	CHECK(cuArrayCreate_v2((CUarray[]){NULL}, &(CUarray_descriptor){SIZE_MAX, SIZE_MAX, 0x20, 4}) == CUDA_ERROR_OUT_OF_MEMORY,
		"such an array");
	equal("refused");
	CHECK(cuMemFree_v2(p) == 0, "free");
	CHECK(cuMemAlloc_v2(&p, LIMIT - 2 * MIB) == 0 && cuMemAlloc_v2(&q, 2 * MIB + 1) == CUDA_ERROR_OUT_OF_MEMORY,
		"two granules of the driver, where one is left");
	CHECK(cuMemFree_v2(p) == 0, "free");
	atomic_store(&driver_fails, 1);
	CHECK(cuMemAlloc_v2(&p, MIB) == 999, "the driver's own error");
	atomic_store(&driver_fails, 0);
	CHECK(account_used(0) == 0, "a failed allocation is counted");
	driver_use(1);
	CHECK(cuMemAlloc_v2(&p, 2 * LIMIT) == 0 && cuMemFree_v2(p) == 0, "a GPU without a limit");
	driver_use(0);
	CHECK(cuMemAlloc_v2(&p, MIB) == 0 && cuCtxDestroy_v2((void *)(uintptr_t)1) == 0, "a context goes with its memory");
	equal("its context is gone");
	CHECK(account_used(0) == 0, "memory of a context that is gone");
}

static void a_child_has_its_own_and_its_death_gives_it_back(void)
{
	CUdeviceptr p;
	CHECK(cuMemAlloc_v2(&p, 2 * MIB) == 0, "allocate");
	pid_t pid = fork();
	if (pid == 0) {
		CUdeviceptr q;
		driver_use(0);
		CHECK(cuMemAlloc_v2(&q, LIMIT - 2 * MIB) == 0, "what the parent left");
		CHECK(cuMemAlloc_v2(&q, MIB) == CUDA_ERROR_OUT_OF_MEMORY, "what the parent has");
		_exit(0); /* nothing is freed */
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child failed");
	CHECK(cuMemAlloc_v2(&p + 0, LIMIT - 2 * MIB) == 0, "what the child had");
	CHECK(cuCtxDestroy_v2((void *)(uintptr_t)1) == 0 && account_used(0) == 0, "all freed");
}

/* How a thread allocates and frees: by the limiter, or by the driver alone. */
struct pair {
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*release)(CUdeviceptr);
};

static int pairs = 20000; /* of each thread */

static void *churn(void *by)
{
	const struct pair *p = by;
	driver_use(0);
	for (int i = 0; i < pairs; i++) {
		CUdeviceptr at;
		if (p->alloc(&at, (size_t)(1 + i % 64) * MIB) == 0)
			CHECK(p->release(at) == 0, "free");
	}
	return NULL;
}

static const struct pair limited = {cuMemAlloc_v2, cuMemFree_v2};

static int64_t read_clock(clockid_t which)
{
	struct timespec t;
	clock_gettime(which, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Nanoseconds of a pair, by a clock: of processors, which a busy machine changes little, or of the wall. */
static double nanoseconds(int threads, const struct pair *by, clockid_t which)
{
	pthread_t t[16];
	int64_t began = read_clock(which);
	for (int i = 0; i < threads; i++)
		pthread_create(&t[i], NULL, churn, (void *)by);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	return (double)(read_clock(which) - began) / pairs / threads;
}

/* The least of many short runs: other programs of the machine were in the way of the rest. */
static double least(int threads, const struct pair *by, clockid_t which)
{
	double best = nanoseconds(threads, by, which);
	for (int i = 0; i < 20; i++) {
		double now = nanoseconds(threads, by, which);
		best = now < best ? now : best;
	}
	return best;
}

/* Programs that keep many allocations free the oldest first. */
static void bench_many(void)
{
	static CUdeviceptr many[100000];
	const int count = sizeof many / sizeof many[0];
	for (int i = 0; i < count; i++)
		CHECK(cuMemAlloc_v2(&many[i], 512) == 0, "allocate");
	int64_t began = read_clock(CLOCK_PROCESS_CPUTIME_ID);
	for (int i = 0; i < count; i++)
		cuMemFree_v2(many[i]);
	printf("free, the oldest of %d first: %.0f ns of a processor\n", count, (double)(read_clock(CLOCK_PROCESS_CPUTIME_ID) - began) / count);
}

static void bench(void)
{
	const struct pair alone = {real_cuda("cuMemAlloc_v2"), real_cuda("cuMemFree_v2")};
	CUdeviceptr p, q;
	driver_use(0);
	pairs = 1000;
	for (int threads = 1; threads <= 16; threads += 15) {
		double with = least(threads, &limited, CLOCK_PROCESS_CPUTIME_ID), without = least(threads, &alone, CLOCK_PROCESS_CPUTIME_ID);
		printf("allocate and free, a pair, %d threads: %.0f ns of a processor beside the driver's own %.0f; %.0f ns by the wall in all\n",
			threads, with - without, without, least(threads, &limited, CLOCK_MONOTONIC));
	}
	bench_many();
	CHECK(cuMemAlloc_v2(&p, LIMIT) == 0, "all of it");
	int64_t began = read_clock(CLOCK_MONOTONIC);
	for (int i = 0; i < 100000; i++)
		cuMemAlloc_v2(&q, MIB);
	printf("refuse: %.0f ns\n", (double)(read_clock(CLOCK_MONOTONIC) - began) / 100000);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "bench") == 0) {
		bench_cores();
	} else {
		test_lives(); /* before the limits of this process are read */
		test_common(); /* first: their processes read limits of their own, and say things once */
		test_overhead();
#ifndef __SANITIZE_THREAD__
		test_gate(); /* simulations of one thread, which take minutes there */
#endif
		test_cores();
	}
	container("gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 0\n");
	if (argc > 1 && strcmp(argv[1], "bench") == 0) {
		bench();
		return 0;
	}
	limits_are_read_whole_or_not_at_all();
	limits_of_two_claims_add_up();
	every_way_to_allocate_counts();
	arrays_without_memory_do_not_count();
	what_does_not_fit_is_refused_and_changes_nothing();
	a_child_has_its_own_and_its_death_gives_it_back();
	nanoseconds(16, &limited, CLOCK_MONOTONIC);
	CHECK(account_used(0) == 0, "threads left %llu bytes", (unsigned long long)account_used(0));
	test_stocks();
	puts("unit tests passed");
	return 0;
}
