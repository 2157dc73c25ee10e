/*
 * 64 processes reserve and release as fast as they can, and are killed at random: together they never have more than the limit, and when
 * all have ended the whole limit is free. Each writes what it really has into a place of its own in memory that the test shares and the
 * limiter does not know.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

#define PROCESSES 64
#define LIMIT ((uint64_t)1 << 30)
#define STEP 512

/* The least that a process has: raised after it reserved, lowered before it releases. */
struct told {
	_Atomic uint64_t has, count, denied;
};

static void work(struct told *t, unsigned int seed)
{
	uint64_t held[64] = {0};
	for (;;) {
		int i = rand_r(&seed) % 64;
		if (held[i]) {
			atomic_fetch_sub(&t->has, held[i]);
			account_release(0, held[i]);
			held[i] = 0;
			continue;
		}
		uint64_t bytes = (uint64_t)(1 + rand_r(&seed) % 4096) * STEP;
		if (account_reserve(0, bytes)) {
			atomic_fetch_add(&t->has, bytes);
			held[i] = bytes;
			atomic_fetch_add(&t->count, 1);
		} else {
			atomic_fetch_add(&t->denied, 1);
		}
	}
}

static pid_t start(struct told *t, unsigned int seed)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0)
		work(t, seed);
	return pid;
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 5;
	unsigned int seed = argc > 2 ? (unsigned int)atoi(argv[2]) : (unsigned int)time(NULL);
	pid_t pids[PROCESSES];
	uint64_t kills = 0, most = 0;
	struct told *told = mmap(NULL, sizeof *told * PROCESSES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	container("gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 0\n");
	for (int i = 0; i < PROCESSES; i++)
		pids[i] = start(&told[i], seed + (unsigned int)i);
	for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
		uint64_t sum = 0;
		for (int i = 0; i < PROCESSES; i++)
			sum += atomic_load(&told[i].has);
		/* The values are read one after another while they change. Their sum is exact only while all processes stand still, which the last
		 * look checks. */
		most = sum > most ? sum : most;
		int i = rand_r(&seed) % PROCESSES;
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
		atomic_store(&told[i].has, 0);
		kills++;
		pids[i] = start(&told[i], seed + (unsigned int)kills * 1000);
		usleep(500);
	}
	/* While the processes are stopped, the values do not change. */
	uint64_t sum = 0, count = 0, denied = 0;
	for (int i = 0; i < PROCESSES; i++)
		kill(pids[i], SIGSTOP);
	for (int i = 0; i < PROCESSES; i++)
		waitpid(pids[i], NULL, WUNTRACED);
	for (int i = 0; i < PROCESSES; i++) {
		sum += atomic_load(&told[i].has);
		count += atomic_load(&told[i].count);
		denied += atomic_load(&told[i].denied);
	}
	CHECK(sum <= LIMIT, "the processes have %llu bytes together, where %llu are the limit", (unsigned long long)sum,
		(unsigned long long)LIMIT);
	for (int i = 0; i < PROCESSES; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	CHECK(account_reserve(0, LIMIT), "all are gone, and not all of the limit is free: %llu bytes are taken",
		(unsigned long long)account_used(0));
	CHECK(!account_reserve(0, STEP), "more than the limit was given");
	account_release(0, LIMIT);
	CHECK(account_used(0) == 0, "%llu bytes are taken by nobody", (unsigned long long)account_used(0));
	printf("%d processes, %d s: %llu reservations, %llu denied, %llu killed; at the end %llu of %llu bytes\n", PROCESSES, seconds,
		(unsigned long long)count, (unsigned long long)denied, (unsigned long long)kills, (unsigned long long)sum,
		(unsigned long long)LIMIT);
	return 0;
}
