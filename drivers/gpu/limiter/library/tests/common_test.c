/* Containers that use one share of a GPU count in one account, by the directory that the node mounted for the share. */
#define _GNU_SOURCE
#include "common_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"
#include "limits.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT (1024 * MIB)
#define GPU "GPU-01010101-0101-0101-0101-010101010101"
#define SHARE "gpufabric-limits 1\n" GPU " 1073741824 0\n"

/* The file that the node mounts for the share. */
#define COMMON COMMON_DIRECTORY "/" GPU

static void make_common(bool wanted)
{
	CHECK(remove(COMMON) == 0 || errno == ENOENT, "remove " COMMON);
	CHECK(remove(COMMON_DIRECTORY) == 0 || errno == ENOENT, "remove " COMMON_DIRECTORY);
	if (!wanted)
		return;
	CHECK(mkdir(COMMON_DIRECTORY, 0700) == 0, "make " COMMON_DIRECTORY);
	int file = open(COMMON, O_WRONLY | O_CREAT, 0666);
	CHECK(file >= 0 && fchmod(file, 0666) == 0 && close(file) == 0, "make " COMMON);
}

/* The limits of a container with so many shares of the GPU. */
static void give_shares(int count)
{
	container(SHARE);
	for (int i = 1; i < 3; i++) {
		char path[256];
		snprintf(path, sizeof path, LIMITS_DIRECTORY "/claim_%d", i);
		unlink(path);
		mkdir(LIMITS_DIRECTORY, 0700);
		FILE *f = i < count ? fopen(path, "w") : NULL;
		CHECK(i >= count || (f && fputs(SHARE, f) >= 0 && fclose(f) == 0), "write %s", path);
	}
}

/* A process in a container of its own, which reserves what is wanted. It keeps that until it is killed. */
static pid_t start_as(uid_t user, uint64_t bytes, bool fits)
{
	_Atomic int *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(said != MAP_FAILED, "shared memory");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a check that fails ends the parent alone */
		if (user)
			CHECK(setgid(user) == 0 && setuid(user) == 0, "become user %d", (int)user);
		*said = account_reserve(0, bytes) ? 1 : 2;
		raise(SIGSTOP);
		_exit(0);
	}
	CHECK(waitpid(pid, NULL, WUNTRACED) == pid && *said != 0, "a process of a container");
	CHECK((*said == 1) == fits, "%llu MiB were %s", (unsigned long long)(bytes / MIB), *said == 1 ? "reserved" : "refused");
	munmap((void *)said, sizeof *said);
	return pid;
}

static pid_t start(uint64_t bytes, bool fits)
{
	return start_as(0, bytes, fits);
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "end");
}

static void containers_of_one_share_have_one_limit(void)
{
	make_common(true);
	give_shares(1);
	pid_t first = start(600 * MIB, true);
	give_shares(1); /* another container: its own directory is empty */
	pid_t second = start(424 * MIB, true);
	give_shares(1);
	pid_t third = start(MIB, false);
	end(first);
	give_shares(1);
	pid_t fourth = start(600 * MIB, true);
	end(second);
	end(third);
	end(fourth);
	end(start(LIMIT, true));
}

/* fs.protected_regular keeps even root from opening another user's file with O_CREAT in a directory like this one. */
static void containers_of_several_users_have_one_limit(void)
{
	static const uid_t users[][2] = {{1000, 2000}, {1000, 0}, {0, 1000}};
	if (geteuid() != 0) {
		puts("skipped: containers of several users: processes of other users are for root alone");
		return;
	}
	for (size_t i = 0; i < sizeof users / sizeof users[0]; i++) {
		make_common(true);
		CHECK(chmod(TESTS_DIRECTORY, 0755) == 0 && chmod(COMMON_DIRECTORY, 0755) == 0, "modes");
		give_shares(1);
		umask(022);
		pid_t first = start_as(users[i][0], 1000 * MIB, true), second = start_as(users[i][1], 25 * MIB, false);
		pid_t third = start_as(users[i][1], 24 * MIB, true);
		end(first);
		end(second);
		end(third);
	}
}

/* The container is then as one without a common directory: its processes have its limit together. */
static void where_the_common_directory_cannot_be_used_the_container_counts(void)
{
	make_common(true);
	CHECK(remove(COMMON) == 0 && mkdir(COMMON, 0700) == 0, "something else in the file's place");
	give_shares(1);
	pid_t first = start(1000 * MIB, true), second = start(25 * MIB, false);
	end(first);
	end(second);
}

static void without_the_nodes_directory_each_container_has_its_own(void)
{
	make_common(false);
	give_shares(1);
	pid_t first = start(LIMIT, true);
	give_shares(1);
	pid_t second = start(LIMIT, true);
	end(first);
	end(second);
}

/*
 * A process that is stopped while it holds the lock on the totals, and has announced a recount. The test uses the file's offset of that
 * word, and of the lock's byte: account.c.
 */
static pid_t stopped_with_the_lock(const char *path, bool recounts)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		struct flock head = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
		uint32_t stop = recounts;
		int file = open(path, O_RDWR);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(fcntl(file, F_OFD_SETLK, &head) == 0 && pwrite(file, &stop, sizeof stop, 8) == sizeof stop, "take the lock in %s", path);
		raise(SIGSTOP);
		_exit(0);
	}
	CHECK(waitpid(pid, NULL, WUNTRACED) == pid, "the process that is stopped");
	return pid;
}

/* A process that is not stopped continues: its allocations are refused, and what it frees stays counted. */
static void goes_on_beside_a_stopped_process(const char *path)
{
	CHECK(account_reserve(0, 1000 * MIB), "before the lock is kept");

	pid_t stopped = stopped_with_the_lock(path, false);
	CHECK(!account_reserve(0, 25 * MIB), "more than the limit, which makes it look for ended processes");
	CHECK(account_reserve(0, 24 * MIB), "what is left, which takes no lock");
	end(start(MIB, false)); /* a process that has no slot yet */
	account_release(0, 24 * MIB);
	end(stopped);

	stopped = stopped_with_the_lock(path, true);
	CHECK(!account_reserve(0, MIB), "a total that is recounted");
	account_release(0, 500 * MIB);
	end(stopped);
	CHECK(account_used(0) == 1000 * MIB, "what was freed meanwhile stays counted, not %llu", (unsigned long long)account_used(0));
	CHECK(account_reserve(0, 24 * MIB) && !account_reserve(0, 1), "as before");
	end(start(1, false));
}

static void a_stopped_process_keeps_nobody_waiting(void)
{
	for (int own = 0; own < 2; own++) {
		int status;
		make_common(!own);
		give_shares(1);
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			goes_on_beside_a_stopped_process(own ? OWN_DIRECTORY "/account" : COMMON);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "beside a stopped process: status %d", status);
	}
}

/* Two shares of one GPU are one sum, which no other container shares. */
static void two_shares_of_a_gpu_are_counted_for_the_container(void)
{
	make_common(true);
	give_shares(1);
	pid_t other = start(LIMIT, true);
	give_shares(2);
	end(start(2 * LIMIT, true));
	end(start(2 * LIMIT + 1, false));
	end(other);
	make_common(false);
	give_shares(1);
}

void test_common(void)
{
	container(NULL);
	containers_of_one_share_have_one_limit();
	containers_of_several_users_have_one_limit();
	where_the_common_directory_cannot_be_used_the_container_counts();
	without_the_nodes_directory_each_container_has_its_own();
	a_stopped_process_keeps_nobody_waiting();
	two_shares_of_a_gpu_are_counted_for_the_container();
}
