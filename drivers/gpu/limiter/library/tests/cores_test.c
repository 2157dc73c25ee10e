/* The limit of cores over a driver whose kernels take time, and may end only after a later launch: launches pass, are held to the
 * percentage, and never wait for ever. */
#define _GNU_SOURCE
#include "cores_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "driver.h"
#include "hooks.h"
#include "launches.h"
#include "seats.h"

#define MILLISECOND 1000000ll
#define GPU "GPU-01010101-0101-0101-0101-010101010101"
#define NEIGHBOUR "neighbour0000000"
#define OWN "own0000000000000"

/* The files of the container's seat, as the node's plugin makes them: its page, that of a neighbour, and the order. */
static struct gate_page *own, *neighbour;
static struct order *order;

static void *file(const char *path)
{
	int f = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	CHECK(f >= 0 && ftruncate(f, GATE_PAGE) == 0, "%s", path);
	void *at = mmap(NULL, GATE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
	CHECK(at != MAP_FAILED, "%s", path);
	close(f);
	return at;
}

static void write_order(int lend, unsigned int percent, unsigned int other)
{
	*order = (struct order){
		.magic = ORDER_MAGIC, .version = GATE_VERSION, .generation = order->generation + 1, .count = 2, .lend = (uint32_t)lend};
	memcpy(order->entries[0].name, NEIGHBOUR, GATE_NAME);
	order->entries[0].percent = other;
	memcpy(order->entries[1].name, OWN, GATE_NAME);
	order->entries[1].percent = percent;
	uint64_t sum = 0xcbf29ce484222325u;
	for (const unsigned char *at = (unsigned char *)&order->generation; at < (unsigned char *)&order->entries[2]; at++)
		sum = (sum ^ *at) * 0x100000001b3u;
	order->sum = sum;
}

static void sit(int lend, unsigned int percent, unsigned int other)
{
	mkdir(CORES_OWN, 0700);
	mkdir(CORES_DIRECTORY, 0700);
	mkdir(CORES_DIRECTORY "/" GPU, 0700);
	own = file(CORES_OWN "/" GPU);
	neighbour = file(CORES_DIRECTORY "/" GPU "/" NEIGHBOUR);
	order = file(CORES_DIRECTORY "/" GPU "/order");
	own->magic = neighbour->magic = GATE_MAGIC;
	own->version = neighbour->version = GATE_VERSION;
	memcpy(own->name, OWN, GATE_NAME);
	write_order(lend, percent, other);
}

static void stand(void)
{
	unlink(CORES_OWN "/" GPU);
	unlink(CORES_DIRECTORY "/" GPU "/order");
}

/* Each test is a process of its own, since a process reads where its seat is once. */
static void in_process(void (*test)(void))
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		stand();
		driver_use(0);
		alarm(120); /* a launch that waits for ever ends the test */
		test();
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a test ended with %d", status);
}

static void launch(CUstream s)
{
	CHECK(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL) == 0, "launch");
}

static void sleep_for(int64_t nanoseconds)
{
	nanosleep(&(struct timespec){.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000}, NULL);
}

static void *stream(void *s)
{
	driver_use(0);
	for (int i = 0; i < 2000; i++) {
		launch(i % 3 == 0 ? s : (CUstream)((uintptr_t)s + 64));
		if (i % 64 == 0)
			CHECK(cuGraphLaunch(NULL, NULL) == 0 && cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0 &&
			      cuLaunchKernelEx(&(CUlaunch_config){.stream = s}, NULL, NULL, NULL) == 0, "others");
		if (i % 500 == 0)
			CHECK(cuStreamDestroy_v2((CUstream)((uintptr_t)s + 64)) == 0, "destroy");
	}
	return NULL;
}

/* Whether the process says that it has nothing on the GPU. */
static void wait_for_rest(void)
{
	while (atomic_load(&own->busy) || launches_idle_at(0) > seats_now())
		sleep_for(MILLISECOND / 10);
}

static void what_threads_launch_is_charged_to_the_last(void)
{
	pthread_t t[8];
	sit(1, 25, 75);
	atomic_store(&launches_nanoseconds, 10000);
	int64_t began = seats_now();
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&t[i], NULL, stream, (void *)((i + 1) * 4096)) == 0, "thread");
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	int64_t passed = 0, ran = (int64_t)(atomic_load(&launches_done) * atomic_load(&launches_nanoseconds));
	wait_for_rest();
	passed = seats_now() - began;
	int64_t charged = atomic_load(&own->charged);
	CHECK(charged >= ran * 8 / 10 && charged <= passed, "%lld us are charged for kernels of %lld, in %lld", (long long)(charged / 1000),
	      (long long)(ran / 1000), (long long)(passed / 1000));
	CHECK(cuCtxDestroy_v2((void *)(uintptr_t)1) == 0 && atomic_load(&launches_events) == 0, "%d events of a context that is gone",
	      atomic_load(&launches_events));
	CHECK(atomic_load(&launches_wrong) == 0, "%llu wrong uses of events", (unsigned long long)atomic_load(&launches_wrong));
}

static void a_capture_gets_no_events(void)
{
	sit(0, 50, 50);
	atomic_store(&launches_nanoseconds, 100000);
	CUstream s = (void *)(uintptr_t)4096;
	for (int i = 0; i < 5; i++)
		launch(s);
	CHECK(cuStreamBeginCapture_v2(s, 0) == 0, "capture");
	for (int i = 0; i < 1000; i++)
		launch(s);
	wait_for_rest();
	atomic_store(&launches_capturing, 0);
	launch(s);
	wait_for_rest();
	CHECK(atomic_load(&launches_wrong) == 0, "%llu events in a capture", (unsigned long long)atomic_load(&launches_wrong));
}

/*
 * Until when the neighbour's thread has said that it wants the GPU, 0 if there is none; and how long it said nothing before, since a
 * busy machine had no processor for it. What is lent meanwhile is lent rightly.
 */
static _Atomic int64_t wanted_until, silent;

static int64_t lent(void)
{
	int64_t until = atomic_load(&wanted_until), late = until ? seats_now() - until : 0;
	return atomic_load(&silent) + (late > 0 ? late : 0);
}

/* A slow machine makes it less, so this is a bound wherever the test runs. */
static void keeps_to(unsigned int percent_of, int64_t length)
{
	atomic_store(&launches_nanoseconds, MILLISECOND);
	int64_t began = seats_now();
	while (seats_now() - began < length)
		launch(NULL);
	int64_t ran = (int64_t)atomic_load(&launches_done) * MILLISECOND, passed = seats_now() - began;
	/* A debt of 100 ms, what was saved, and what is ahead. */
	CHECK(ran <= passed * percent_of / 100 + 150 * MILLISECOND + lent(), "%lld ms in %lld, with %u %%", (long long)(ran / MILLISECOND),
	      (long long)(passed / MILLISECOND), percent_of);
	CHECK(ran > 0, "nothing ran");
}

static void without_a_page_a_process_holds_itself(void)
{
	keeps_to(25, 2000 * MILLISECOND);
}

static void a_container_keeps_to_its_slots(void)
{
	sit(0, 25, 75);
	keeps_to(25, 2000 * MILLISECOND);
	int64_t charged = atomic_load(&own->charged), ran = (int64_t)atomic_load(&launches_done) * MILLISECOND;
	CHECK(charged > 0 && charged >= ran / 2, "%lld ms are charged for %lld", (long long)(charged / MILLISECOND),
		(long long)(ran / MILLISECOND));
}

static void *wants_always(void *unused)
{
	for (int64_t until = 0;;) {
		int64_t now = seats_now();
		if (until && now > until)
			atomic_fetch_add(&silent, now - until);
		until = now + GATE_LEASE;
		atomic_store(&neighbour->wants_until, until);
		atomic_store(&wanted_until, until);
		sleep_for(10 * MILLISECOND);
	}
	return unused;
}

static void a_neighbour_that_wants_the_gpu_gets_its_part(void)
{
	pthread_t t;
	sit(1, 25, 75);
	CHECK(pthread_create(&t, NULL, wants_always, NULL) == 0, "thread");
	while (!atomic_load(&neighbour->wants_until))
		sleep_for(MILLISECOND);
	keeps_to(26, 2000 * MILLISECOND); /* a machine that keeps the neighbour's thread waiting lends a little */
}

/* Rounds: the kernel of one stream ends after a launch into another one, which comes later. */
static void waits_for_later(int rounds, int64_t later)
{
	CUstream a = (void *)(uintptr_t)4096, b = (void *)(uintptr_t)8192;
	for (int i = 1; i <= rounds; i++) {
		CHECK(cuLaunchKernel(LAUNCHES_WAITS, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL) == 0, "launch");
		if (later)
			sleep_for(later);
		CHECK(cuLaunchKernel(LAUNCHES_SETS, 1, 1, 1, 1, 1, 1, 0, b, NULL, NULL) == 0, "launch");
		while (!launches_drained(a))
			sleep_for(MILLISECOND / 20);
	}
}

static void a_kernel_that_waits_for_a_later_launch_ends(void)
{
	atomic_store(&launches_nanoseconds, 100000);
	waits_for_later(10, MILLISECOND); /* no page */
}

static void it_ends_beside_a_neighbour(void)
{
	pthread_t t;
	sit(1, 30, 70);
	CHECK(pthread_create(&t, NULL, wants_always, NULL) == 0, "thread");
	atomic_store(&launches_nanoseconds, 100000);
	waits_for_later(20, MILLISECOND);
	waits_for_later(5, 30 * MILLISECOND);
}

static void it_ends_in_debt(void)
{
	sit(0, 10, 90);
	atomic_store(&own->level, -100 * MILLISECOND);
	atomic_store(&own->at, seats_now());
	atomic_store(&launches_nanoseconds, 100000);
	waits_for_later(3, MILLISECOND);
}

/* Garbage in the pages does not stop a process, nor end it. */
static void no_file_stops_a_process(void)
{
	atomic_store(&launches_nanoseconds, 100000);
	for (int fault = 0; fault < 8; fault++) {
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid) {
			int status;
			CHECK(waitpid(pid, &status, 0) == pid && status == 0, "fault %d ended a process with %d", fault, status);
			continue;
		}
		sit(1, 30, 70);
		alarm(60);
		switch (fault) {
		case 0:
			memset(own, 0xff, GATE_PAGE);
			break;
		case 1: /* far in the future: another clock, or a lie */
			atomic_store(&own->shut_until, INT64_MAX);
			atomic_store(&own->at, INT64_MAX);
			break;
		case 2:
			memset(neighbour, 0xff, GATE_PAGE);
			neighbour->magic = GATE_MAGIC;
			neighbour->version = GATE_VERSION;
			break;
		case 3:
			CHECK(truncate(CORES_DIRECTORY "/" GPU "/" NEIGHBOUR, 7) == 0, "cut");
			break;
		case 4:
			memset(order, 0x7f, GATE_PAGE);
			break;
		case 5:
			order->entries[0].percent = 100000; /* the sum is wrong now */
			break;
		case 6:
			memcpy(order->entries[0].name, "../../etc/passwd", GATE_NAME);
			break;
		default: /* a clock that is behind the node's */
			order->stamp = INT64_MAX;
		}
		for (int i = 0; i < 50; i++)
			launch(NULL);
		waits_for_later(3, MILLISECOND);
		if (fault == 3) /* it comes back while the process runs, and is cut again */
			CHECK(truncate(CORES_DIRECTORY "/" GPU "/" NEIGHBOUR, GATE_PAGE) == 0 && truncate(CORES_DIRECTORY "/" GPU "/" NEIGHBOUR, 0) == 0, "cut");
		for (int i = 0; i < 50; i++)
			launch(NULL);
		_exit(0);
	}
}

/*
 * Waits for a place in the page that is the owner's or, if others is true, another process's. A place that was silent for long, as on a
 * busy machine, may be another's now; its owner takes one again when its thread looks.
 */
__attribute__((unused)) static bool place_comes(int64_t owner, bool others)
{
	for (int tries = 0; tries < 60000; tries++) {
		for (int i = 0; i < GATE_PROCESSES; i++) {
			int64_t one = atomic_load(&own->processes[i].owner);
			if (others ? one != owner && one != 0 : one == owner)
				return true;
		}
		usleep(1000);
	}
	return false;
}

__attribute__((unused)) static void a_child_has_a_seat_of_its_own(void)
{
	sit(0, 50, 50);
	atomic_store(&launches_nanoseconds, 100000);
	launch(NULL);
	int64_t parent = atomic_load(&own->processes[0].owner);
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		driver_use(0);
		launch(NULL);
		wait_for_rest();
		_exit(place_comes(parent, true) ? 0 : 1);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %d", status);
	launch(NULL);
	wait_for_rest();
	CHECK(place_comes(parent, false), "the parent has no place any more");
}

static void a_device_without_a_limit_waits_for_nobody(void)
{
	sit(0, 50, 50);
	driver_use(1);
	for (int i = 0; i < 100; i++)
		launch(NULL);
	CHECK(atomic_load(&launches_done) == 100 && atomic_load(&own->wants_until) == 0, "it wants the GPU with the limit");
}

/* Memory that the driver limits is the driver's own: nothing of it is counted, no file is made, and cuMemGetInfo says what the driver says.
 */
static void memory_that_the_driver_limits_is_left_to_it(void)
{
	CUdeviceptr p;
	CUhandle h;
	size_t available, total;
	CHECK(cuMemAlloc_v2(&p, (size_t)2 << 30) == 0, "allocate");
	CHECK(cuMemCreate(&h, (size_t)2 << 20, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == 0, "physical memory");
	CHECK(cuMemGetInfo_v2(&available, &total) == 0 && total == DRIVER_TOTAL &&
			  available == DRIVER_TOTAL - ((size_t)2 << 30) - ((size_t)2 << 20),
		"%zu of %zu", available, total);
	CHECK(cuMemRelease(h) == 0 && cuMemFree_v2(p) == 0 && atomic_load(&driver_allocated[0]) == 0, "free");
	CHECK(access(OWN_DIRECTORY "/account", F_OK) != 0 && access(REGION_DIRECTORY "/cudevshr.cache", F_OK) != 0, "it is counted");
	a_container_keeps_to_its_slots();
}

#define LIMITS "gpufabric-limits 1\n" GPU " 1073741824 25\n"

void test_cores(void)
{
	container(LIMITS);
	in_process(what_threads_launch_is_charged_to_the_last);
	in_process(a_capture_gets_no_events);
	in_process(without_a_page_a_process_holds_itself);
	in_process(a_container_keeps_to_its_slots);
	in_process(a_neighbour_that_wants_the_gpu_gets_its_part);
	in_process(a_kernel_that_waits_for_a_later_launch_ends);
	in_process(it_ends_beside_a_neighbour);
	in_process(it_ends_in_debt);
	in_process(no_file_stops_a_process);
#ifndef __SANITIZE_THREAD__ /* it supports no thread in the child of a process with threads */
	in_process(a_child_has_a_seat_of_its_own);
#endif
	in_process(a_device_without_a_limit_waits_for_nobody);
	container("gpufabric-limits 1\nclosed\n" GPU " - 25\n");
	in_process(memory_that_the_driver_limits_is_left_to_it);
}

static double measure(int (*kernel)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
	unsigned int, CUstream, void **, void **))
{
	double least = 1e9;
	for (int batch = 0; batch < 50; batch++) {
		int64_t began = seats_now();
		for (int i = 0; i < 20000; i++)
			kernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		double took = (double)(seats_now() - began) / 20000;
		least = took < least ? took : least;
	}
	return least;
}

static void print(void)
{
	sit(1, 25, 75);
	double bare = measure(launches_function("cuLaunchKernel"));
	driver_use(1);
	double unlimited = measure(cuLaunchKernel);
	driver_use(0);
	double limited = measure(cuLaunchKernel);
	printf("launch, beside the driver's own: %.0f ns with a limit of cores, %.0f ns on a GPU without one\n", limited - bare, unlimited - bare);
	fflush(stdout);
}

void bench_cores(void)
{
	container(LIMITS);
	in_process(print);
}
