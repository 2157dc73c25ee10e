/* Whose memory counts, and for how long: processes that are killed with children, and memory that several hold. Each test has processes of
 * its own. */
#define _GNU_SOURCE
#include "lives_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"
#include "driver.h"
#include "hooks.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT (1024 * MIB)
#define GPU "GPU-01010101-0101-0101-0101-010101010101"

/* Words between processes: each is written once. */
static _Atomic int *words;

/* A process that fails writes none: its parent must not wait for ever. */
static void wait_for(int word)
{
	for (int i = 0; !words[word]; i++) {
		CHECK(i < 120000, "word %d was not written", word);
		usleep(1000);
	}
}

/* Starts a process that ends with this one. */
static pid_t start(void (*run)(void))
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		driver_use(0);
		run();
		_exit(0);
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Ends the process whose number is in a word. A word that is not written yet would name every process of the group that the test runs in.
 */
static void end_other(int word)
{
	wait_for(word);
	CHECK(kill(words[word], SIGKILL) == 0, "end process %d", words[word]);
}

/* Runs it in a process of its own, which must succeed. */
static void apart(void (*run)(void))
{
	int status;
	memset((void *)words, 0, 4096);
	container("gpufabric-limits 1\n" GPU " 1073741824 0\n");
	pid_t pid = start(run);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
}

static uint64_t used;

static void look(void)
{
	*(volatile uint64_t *)(words + 512) = account_used(0);
}

/* The amount that a process without memory of its own sees. */
static uint64_t seen(void)
{
	int status;
	pid_t pid = start(look);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "look");
	return used = *(volatile uint64_t *)(words + 512);
}

/* Takes memory, and has a child that does nothing: by fork, or by a clone that no handler sees. */
static void has_a_child(bool bare)
{
	CUdeviceptr p;
	CHECK(cuMemAlloc_v2(&p, 800 * MIB) == 0, "allocate");
	pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (child == 0) {
		words[1] = 1;
		pause();
	}
	words[0] = child;
	wait_for(1);
	pause();
}

static void forks(void)
{
	has_a_child(false);
}

static void clones(void)
{
	has_a_child(true);
}

static void killed(void (*parent)(void))
{
	pid_t pid = start(parent);
	wait_for(0);
	wait_for(1);
	CHECK(seen() == 800 * MIB, "%llu of a process that lives", (unsigned long long)used);
	end(pid);
	CHECK(kill(words[0], 0) == 0, "the child lives");
	CHECK(seen() == 0, "%llu MiB of a process that was killed, whose child lives", (unsigned long long)(used / MIB));
	end_other(0);
}

static void kills_a_parent_of_a_fork(void)
{
	killed(forks);
}

static void kills_a_parent_of_a_clone(void)
{
	killed(clones);
}

/* A child that was made without handlers frees what it believes to be its own, as a library's destructors do. */
static void frees_in_a_bare_child(void)
{
	CUdeviceptr p, q;
	int status;
	CHECK(cuMemAlloc_v2(&p, 800 * MIB) == 0, "allocate");
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		cuMemFree_v2(p);
		CHECK(cuMemAlloc_v2(&q, 300 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && cuMemAlloc_v2(&q, 200 * MIB) == 0, "what the parent left");
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
	CHECK(account_used(0) == 800 * MIB, "%llu", (unsigned long long)account_used(0));
}

/* As daemons do. The number of a descriptor that was closed may then be a file of the program's own. */
static void closes_all_descriptors(void)
{
	CUdeviceptr p, q;
	CHECK(cuMemAlloc_v2(&p, 800 * MIB) == 0, "allocate");
	for (int i = 3; i < 256; i++)
		close(i);
	int files[64];
	for (int i = 0; i < 64; i++)
		files[i] = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	CHECK(cuMemAlloc_v2(&q, 300 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "refused, after a search for ended processes");
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	for (int i = 0; i < 64 && files[i] >= 0; i++)
		CHECK(fcntl(files[i], F_OFD_GETLK, &l) == 0 && l.l_type == F_UNLCK, "a lock in a file of the program's");
	CHECK(seen() == 800 * MIB, "%llu", (unsigned long long)used);
	CHECK(cuMemFree_v2(p) == 0 && seen() == 0, "%llu after it freed all", (unsigned long long)used);
}

/* ulimit -f: to make a longer file is a signal that ends the program. */
static void may_write_no_long_files(void)
{
	CUdeviceptr p;
	CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536}) == 0, "setrlimit");
	CHECK(cuMemAlloc_v2(&p, MIB) == 0, "a process that counts by itself");
	CHECK(cuMemAlloc_v2(&p, LIMIT) == CUDA_ERROR_OUT_OF_MEMORY, "and is held to the limit");
}

/* With the node's file that is no matter. */
static void has_the_nodes_file_and_may_write_no_long_files(void)
{
	CUdeviceptr p;
	int file = open(ACCOUNT_FILE, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0 && posix_fallocate(file, 0, 459904) == 0 && close(file) == 0, "make " ACCOUNT_FILE);
	pid_t other = start(forks);
	wait_for(1);
	CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536}) == 0, "setrlimit");
	CHECK(cuMemAlloc_v2(&p, 300 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && cuMemAlloc_v2(&p, 200 * MIB) == 0, "what the other left");
	end_other(0);
	end(other);
	unlink(ACCOUNT_FILE);
}

/* Programs remove what lies in /tmp. */
static void loses_the_monitors_file(void)
{
	CUdeviceptr p;
	CHECK(cuMemAlloc_v2(&p, 800 * MIB) == 0, "allocate");
	CHECK(unlink(REGION_DIRECTORY "/cudevshr.cache") == 0, "remove");
	CHECK(seen() == 800 * MIB, "%llu", (unsigned long long)used);
	CHECK(cuMemFree_v2(p) == 0 && seen() == 0, "%llu after it freed all", (unsigned long long)used);
}

/* The system calls of this test's program that are counted. */
static int locks;

int fcntl(int file, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	locks++;
	return (int)syscall(SYS_fcntl, file, command, argument);
}

static void begins_with_few_system_calls(void)
{
	CUdeviceptr p;
	locks = 0;
	CHECK(cuMemAlloc_v2(&p, MIB) == 0, "allocate");
	CHECK(locks <= 8, "%d locks at the first allocation", locks);
}

/* Physical memory that one process exports and another imports, by a descriptor that it inherits. */
static int exported;

static void imports(void)
{
	CUhandle h;
	if (words[3])
		prctl(PR_SET_PDEATHSIG, 0); /* its parent is killed */
	words[0] = getpid();
	CHECK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)exported, HANDLE_DESCRIPTOR) == 0, "import");
	CHECK(cuMemMap(64 * MIB, 800 * MIB, 0, h, 0) == 0 && cuMemRelease(h) == 0, "map, and release the handle");
	words[1] = 1;
	wait_for(2);
	CHECK(cuMemUnmap(64 * MIB, 800 * MIB) == 0, "unmap");
	words[4] = 1;
	pause();
}

static CUhandle exports(void)
{
	CUhandle h;
	CHECK(cuMemCreate(&h, 800 * MIB, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == 0, "create");
	CHECK(cuMemExportToShareableHandle(&exported, h, HANDLE_DESCRIPTOR, 0) == 0, "export");
	return h;
}

static void exports_and_releases(void)
{
	CUhandle h = exports();
	pid_t importer = start(imports);
	wait_for(1);
	CHECK(seen() == 800 * MIB, "%llu MiB of memory that two processes have", (unsigned long long)(used / MIB));
	CHECK(cuMemRelease(h) == 0 && close(exported) == 0, "release");
	CHECK(seen() == 800 * MIB, "%llu MiB of memory that another process has mapped", (unsigned long long)(used / MIB));
	CHECK(cuMemCreate(&h, 300 * MIB, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == CUDA_ERROR_OUT_OF_MEMORY,
		"past the limit");
	words[2] = 1;
	wait_for(4);
	CHECK(seen() == 0, "%llu MiB of memory that is gone", (unsigned long long)(used / MIB));
	end(importer);
}

static void exports_and_pauses(void)
{
	exports();
	start(imports);
	pause();
}

static void kills_an_exporter(void)
{
	words[3] = 1;
	pid_t exporter = start(exports_and_pauses);
	wait_for(1);
	CHECK(seen() == 800 * MIB, "%llu", (unsigned long long)used);
	end(exporter);
	CHECK(seen() == 800 * MIB, "%llu MiB of memory that another process has mapped", (unsigned long long)(used / MIB));
	end_other(0);
	while (seen())
		usleep(1000); /* until the orphan has ended */
}

static void imports_its_own(void)
{
	CUhandle h = exports(), again;
	CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)exported, HANDLE_DESCRIPTOR) == 0, "import");
	CHECK(account_used(0) == 800 * MIB && cuMemRelease(h) == 0 && account_used(0) == 800 * MIB, "%llu", (unsigned long long)account_used(0));
	CHECK(cuMemRelease(again) == 0 && account_used(0) == 0, "%llu of memory that is gone", (unsigned long long)account_used(0));
}

static CUresult bind_mapped(CUhandle object, size_t offset, CUhandle memory, bool second)
{
	CUresult r = cuMemMap(64 * MIB, 8 * MIB, 0, memory, 0);
	if (r == 0)
		r = second ? cuMulticastBindAddr_v2(object, 0, offset, 64 * MIB, 8 * MIB, 0) : cuMulticastBindAddr(object, offset, 64 * MIB, 8 * MIB, 0);
	return r == 0 ? cuMemUnmap(64 * MIB, 8 * MIB) : r;
}

static CUresult bind_by(int function, CUhandle object, size_t offset, CUhandle memory)
{
	switch (function) {
	case 0:
		return cuMulticastBindMem(object, offset, memory, 0, 8 * MIB, 0);
	case 1:
		return cuMulticastBindMem_v2(object, 0, offset, memory, 0, 8 * MIB, 0);
	default:
		return bind_mapped(object, offset, memory, function == 3);
	}
}

/* A multicast object keeps what is bound to it, until that is unbound or the object ends. */
static void binds_to_multicast(void)
{
	const size_t offset = (size_t)5 << 32;
	CUhandle memory, object;
	for (int i = 0; i < 8; i++) {
		CHECK(cuMulticastCreate(&object, NULL) == 0, "create a multicast object");
		CHECK(cuMemCreate(&memory, 8 * MIB, &(CUallocation){.type = 1, .location = {LOCATION_DEVICE, 0}}, 0) == 0, "create");
		CHECK(bind_by(i / 2, object, offset, memory) == 0 && cuMemRelease(memory) == 0, "bind, and release the handle");
		CHECK(account_used(0) == 8 * MIB, "function %d: %llu bytes of memory that is bound", i / 2, (unsigned long long)account_used(0));
		CHECK((i % 2 ? cuMulticastUnbind(object, 0, offset, 8 * MIB) : cuMemRelease(object)) == 0, "end the binding");
		CHECK(account_used(0) == 0, "function %d: %llu bytes of memory that is gone", i / 2, (unsigned long long)account_used(0));
		CHECK(i % 2 == 0 || cuMemRelease(object) == 0, "release the object");
	}
}

void test_lives(void)
{
	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(words != MAP_FAILED, "shared memory");
	apart(kills_a_parent_of_a_fork);
	apart(kills_a_parent_of_a_clone);
	apart(frees_in_a_bare_child);
	apart(closes_all_descriptors);
	apart(may_write_no_long_files);
	apart(has_the_nodes_file_and_may_write_no_long_files);
	apart(loses_the_monitors_file);
	apart(begins_with_few_system_calls);
	apart(exports_and_releases);
	apart(kills_an_exporter);
	apart(imports_its_own);
	apart(binds_to_multicast);
}
