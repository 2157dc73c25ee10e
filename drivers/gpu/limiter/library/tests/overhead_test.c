/* Where NVML does not tell what a process has, its contexts and modules do not count, and the process says so once. */
#define _GNU_SOURCE
#include "overhead_test.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"
#include "driver.h"
#include "hooks.h"

#define WORDS "do not count against its limit"

/* Makes a context and loads two modules, as a program with that PID at NVML does. */
static void use_the_gpu(enum driver_nvml nvml, unsigned int pid)
{
	CUcontext c;
	CUmodule m;
	driver_use(0);
	atomic_store(&driver_nvml, nvml);
	atomic_store(&driver_pid, pid);
	CHECK(cuCtxCreate_v2(&c, 0, 0) == 0 && cuModuleLoadData(&m, "") == 0 && cuModuleLoadData(&m, "") == 0, "use the GPU");
}

/* Uses the GPU in a process, whose standard error is read. in_namespace: in a PID namespace of its own. False: such a one cannot be made.
 */
static bool hear(enum driver_nvml nvml, bool in_namespace, char *said, size_t size)
{
	int ends[2], status;
	CHECK(pipe(ends) == 0, "pipe");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		if (in_namespace) {
			if (unshare(CLONE_NEWPID) != 0)
				_exit(errno == EPERM ? 2 : 3);
			pid_t inside = fork();
			if (inside != 0)
				_exit(inside > 0 && waitpid(inside, &status, 0) == inside && status == 0 ? 0 : 3);
		}
		CHECK(dup2(ends[1], 2) == 2, "write to the pipe");
		use_the_gpu(nvml, in_namespace ? 4321 : (unsigned int)getpid()); /* the PID outside */
		_exit(0);
	}
	close(ends[1]);
	size_t length = 0;
	for (ssize_t n; (n = read(ends[0], said + length, size - 1 - length)) > 0;)
		length += (size_t)n;
	said[length] = 0;
	close(ends[0]);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) != 3 && WEXITSTATUS(status) != 1,
		"the process failed: %s", said);
	return WEXITSTATUS(status) == 0;
}

void test_overhead(void)
{
	static const struct {
		const char *name;
		enum driver_nvml nvml;
		bool in_namespace, told;
	} cases[] = {
		{"NVML tells", NVML_TELLS, false, true},
		{"NVML is missing", NVML_MISSING, false, false},
		{"NVML fails", NVML_FAILS, false, false},
		{"NVML does not list the process", NVML_LISTS_OTHERS, false, false},
		{"a PID that is learned", NVML_TELLS, true, true},
		{"a PID that is one of two", NVML_LISTS_TWO, true, false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char said[512];
		container("gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 0\n");
		if (!hear(cases[i].nvml, cases[i].in_namespace, said, sizeof said)) {
			printf("skipped: %s: a PID namespace is for root alone\n", cases[i].name);
			continue;
		}
		const char *words = strstr(said, WORDS);
		CHECK(!words == cases[i].told && (!words || !strstr(words + 1, WORDS)), "%s: said: %s", cases[i].name, said);
	}
}
