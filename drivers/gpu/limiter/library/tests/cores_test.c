/* Turns on a GPU, with an arbiter that is a thread of the test: nothing is launched outside of a turn, and nothing runs on the GPU when one is given back. */
#define _GNU_SOURCE
#include "cores_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "driver.h"
#include "hooks.h"
#include "launches.h"
#include "turns.h"

#define MILLISECOND 1000000ll

/* What the arbiter does with whoever asks. */
static struct {
	pthread_t thread;
	int listener, connection;
	int64_t turn;		    /* nanoseconds; longer ones than MOST are cut by the library */
	_Atomic int silent;	    /* it answers nothing */
	_Atomic int generous;	    /* more is always granted */
	_Atomic uint64_t turns, wants, early; /* early: given back while the GPU still ran */
	int64_t granted;
	_Atomic int64_t worked;	  /* how long the GPU worked in all turns, as the library says */
	_Atomic uint64_t boasted; /* turns in which it worked longer than they lasted, by what the library says */
} arbiter;

static void answer(enum turn_kind kind)
{
	struct turn_message m = {.kind = kind, .nanoseconds = (uint64_t)arbiter.turn};
	CHECK(send(arbiter.connection, &m, sizeof m, MSG_NOSIGNAL) == sizeof m || errno == EPIPE, "answer");
}

static void *arbitrate(void *unused)
{
	struct turn_message m;
	(void)unused;
	arbiter.connection = accept(arbiter.listener, NULL, NULL);
	CHECK(arbiter.connection >= 0, "accept");
	CHECK(recv(arbiter.connection, &m, sizeof m, 0) == sizeof m && m.kind == TURN_HELLO && strncmp(m.uuid, "GPU-01010101-", 13) == 0, "hello");
	while (recv(arbiter.connection, &m, sizeof m, 0) == sizeof m) {
		switch (m.kind) {
		case TURN_WANT:
			atomic_fetch_add(&arbiter.wants, 1);
			if (atomic_load(&arbiter.silent))
				break;
			atomic_fetch_add(&arbiter.turns, 1);
			atomic_store(&launches_allowed, 1);
			arbiter.granted = turns_now();
			answer(TURN_GRANT);
			break;
		case TURN_MORE:
			answer(atomic_load(&arbiter.generous) ? TURN_GRANT : TURN_CLOSE);
			break;
		case TURN_DONE:
			atomic_fetch_add(&arbiter.worked, (int64_t)m.nanoseconds);
			atomic_fetch_add(&arbiter.boasted, (int64_t)m.nanoseconds > turns_now() - arbiter.granted);
			atomic_store(&launches_allowed, 0);
			if (launches_idle_at(0) > turns_now())
				atomic_fetch_add(&arbiter.early, 1);
		}
	}
	close(arbiter.connection);
	return NULL;
}

static void begin(int64_t turn)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	mkdir(ACCOUNT_DIRECTORY "/turns", 0700);
	unlink(TURNS_SOCKET);
	memcpy(at.sun_path, TURNS_SOCKET, sizeof TURNS_SOCKET);
	memset(&arbiter, 0, sizeof arbiter);
	arbiter.turn = turn;
	arbiter.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(arbiter.listener >= 0 && bind(arbiter.listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(arbiter.listener, 8) == 0, "listen");
	CHECK(pthread_create(&arbiter.thread, NULL, arbitrate, NULL) == 0 && pthread_detach(arbiter.thread) == 0, "thread");
}

/* Each test is a process of its own, since a process has one connection to one arbiter. */
static void in_process(void (*test)(void))
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		driver_use(0);
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

static void wait_until(_Atomic uint64_t *value, uint64_t least)
{
	while (atomic_load(value) < least)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void nothing_is_launched_outside_of_a_turn(void)
{
	pthread_t t[8];
	begin(2 * MILLISECOND);
	atomic_store(&launches_nanoseconds, 10000);
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&t[i], NULL, stream, (void *)((i + 1) * 4096)) == 0, "thread");
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	while (atomic_load(&launches_allowed)) /* idle: it gives its turn back */
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	CHECK(atomic_load(&launches_outside) == 0, "%llu of %llu launches were outside of a turn", (unsigned long long)atomic_load(&launches_outside),
	      (unsigned long long)atomic_load(&launches_done));
	CHECK(atomic_load(&arbiter.early) == 0, "%llu of %llu turns ended while the GPU ran", (unsigned long long)atomic_load(&arbiter.early),
	      (unsigned long long)atomic_load(&arbiter.turns));
	int64_t ran = (int64_t)(atomic_load(&launches_done) * atomic_load(&launches_nanoseconds));
	CHECK(atomic_load(&arbiter.boasted) == 0 && atomic_load(&arbiter.worked) > ran / 10 * 9,
	      "%lld us of work in all turns, and kernels of %lld; %llu turns were too short",
	      (long long)(atomic_load(&arbiter.worked) / 1000), (long long)(ran / 1000), (unsigned long long)atomic_load(&arbiter.boasted));
	CHECK(atomic_load(&arbiter.turns) > 8, "%llu turns for 160 ms of kernels", (unsigned long long)atomic_load(&arbiter.turns));
	CHECK(cuCtxDestroy_v2((void *)(uintptr_t)1) == 0 && atomic_load(&launches_events) == 0, "%d events of a context that is gone",
	      atomic_load(&launches_events));
	CHECK(atomic_load(&launches_wrong) == 0, "%llu wrong uses of events", (unsigned long long)atomic_load(&launches_wrong));
}

static void a_capture_gets_no_events(void)
{
	begin(1000 * MILLISECOND);
	atomic_store(&launches_nanoseconds, 100000);
	CUstream s = (void *)(uintptr_t)4096;
	for (int i = 0; i < 5; i++)
		launch(s);
	CHECK(cuStreamBeginCapture_v2(s, 0) == 0, "capture");
	for (int i = 0; i < 1000; i++)
		launch(s);
	uint64_t turns = atomic_load(&arbiter.turns);
	while (atomic_load(&launches_allowed))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	atomic_store(&launches_capturing, 0);
	launch(s);
	wait_until(&arbiter.turns, turns + 1);
	CHECK(atomic_load(&launches_wrong) == 0, "%llu events in a capture", (unsigned long long)atomic_load(&launches_wrong));
}

static void *one_launch(void *unused)
{
	(void)unused;
	driver_use(0);
	launch(NULL);
	return NULL;
}

static void an_arbiter_that_goes_stops_nobody(void)
{
	pthread_t t;
	begin(MILLISECOND);
	atomic_store(&arbiter.silent, 1);
	CHECK(pthread_create(&t, NULL, one_launch, NULL) == 0, "thread");
	wait_until(&arbiter.wants, 2); /* it asks again whether anybody is there */
	CHECK(atomic_load(&launches_done) == 0, "launched without a turn");
	shutdown(arbiter.connection, SHUT_RDWR);
	close(arbiter.listener);
	pthread_join(t, NULL);
	CHECK(atomic_load(&launches_done) == 1, "it holds itself to its limit, and goes on");
}

static void without_an_arbiter_a_process_holds_itself(void)
{
	unlink(TURNS_SOCKET);
	atomic_store(&launches_nanoseconds, MILLISECOND);
	int64_t began = turns_now();
	while (turns_now() - began < 1000 * MILLISECOND)
		launch(NULL);
	/* What was launched ran by the end of the last turn: what a slow machine adds makes it less. */
	int64_t ran = (int64_t)atomic_load(&launches_done) * MILLISECOND, passed = turns_now() - began;
	CHECK(ran <= passed / 4 + 60 * MILLISECOND, "%lld ms in %lld, with 25 %%", (long long)(ran / MILLISECOND), (long long)(passed / MILLISECOND));
}

static void a_device_without_a_limit_waits_for_nobody(void)
{
	begin(MILLISECOND);
	driver_use(1);
	for (int i = 0; i < 100; i++)
		launch(NULL);
	CHECK(atomic_load(&arbiter.wants) == 0 && atomic_load(&launches_done) == 100, "asked %llu times", (unsigned long long)atomic_load(&arbiter.wants));
}

/* Memory that the driver limits is the driver's own: nothing of it is counted, no file is made, and cuMemGetInfo says what the driver says. */
static void memory_that_the_driver_limits_is_left_to_it(void)
{
	CUdeviceptr p;
	CUhandle h;
	size_t available, total;
	CHECK(cuMemAlloc_v2(&p, (size_t)2 << 30) == 0, "allocate");
	CHECK(cuMemCreate(&h, (size_t)2 << 20, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == 0, "physical memory");
	CHECK(cuMemGetInfo_v2(&available, &total) == 0 && total == DRIVER_TOTAL && available == DRIVER_TOTAL - ((size_t)2 << 30) - ((size_t)2 << 20),
	      "%zu of %zu", available, total);
	CHECK(cuMemRelease(h) == 0 && cuMemFree_v2(p) == 0 && atomic_load(&driver_allocated[0]) == 0, "free");
	CHECK(access(ACCOUNT_DIRECTORY "/gpufabric.account", F_OK) != 0 && access(ACCOUNT_DIRECTORY "/cudevshr.cache", F_OK) != 0, "it is counted");
	nothing_is_launched_outside_of_a_turn();
}

#define LIMITS "gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 25\n"

void test_cores(void)
{
	container(LIMITS);
	in_process(nothing_is_launched_outside_of_a_turn);
	in_process(a_capture_gets_no_events);
	in_process(an_arbiter_that_goes_stops_nobody);
	in_process(without_an_arbiter_a_process_holds_itself);
	in_process(a_device_without_a_limit_waits_for_nobody);
	container("gpufabric-limits 1\nclosed\nGPU-01010101-0101-0101-0101-010101010101 - 25\n");
	in_process(memory_that_the_driver_limits_is_left_to_it);
}

static double measure(void)
{
	double least = 1e9;
	for (int batch = 0; batch < 50; batch++) {
		int64_t began = turns_now();
		for (int i = 0; i < 20000; i++)
			cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		double took = (double)(turns_now() - began) / 20000;
		least = took < least ? took : least;
	}
	return least;
}

static double direct(void)
{
	int (*kernel)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **,
		      void **) = launches_function("cuLaunchKernel");
	double least = 1e9;
	for (int batch = 0; batch < 50; batch++) {
		int64_t began = turns_now();
		for (int i = 0; i < 20000; i++)
			kernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		double took = (double)(turns_now() - began) / 20000;
		least = took < least ? took : least;
	}
	return least;
}

static void print(void)
{
	begin(1000 * MILLISECOND);
	atomic_store(&arbiter.generous, 1);
	double bare = direct();
	driver_use(1);
	double unlimited = measure();
	driver_use(0);
	double limited = measure();
	printf("launch, beside the driver's own: %.0f ns with a limit of cores, %.0f ns on a GPU without one\n", limited - bare, unlimited - bare);
	fflush(stdout);
}

void bench_cores(void)
{
	container(LIMITS);
	in_process(print);
}
