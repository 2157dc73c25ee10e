#define _GNU_SOURCE
#include "overhead.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "devices.h"
#include "memory.h"
#include "words.h"

/* The minimum time between two NVML queries for a GPU, in nanoseconds. */
#ifndef OVERHEAD_APART
#define OVERHEAD_APART 100000000
#endif

#define MOST_PROCESSES 1024

/* The machine's first PID namespace (PROC_PID_INIT_INO of Linux), whose PIDs NVML reports. */
#define FIRST_NAMESPACE "pid:[4026531836]"

/* NVML_VALUE_NOT_AVAILABLE: the driver does not report the amount. */
#define UNKNOWN (~0ull)

/* nvmlProcessInfo_v2_t, which versions 2 and 3 of the call fill. */
struct process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int gpu_instance, compute_instance;
};

struct list {
	unsigned int count;
	bool known;
	struct process processes[MOST_PROCESSES];
};

_Atomic bool overhead_due;

static struct {
	pthread_mutex_t lock;
	_Atomic bool looking;
	bool opened, there; /* NVML */
	unsigned int pid;   /* NVML's PID of this process; 0: unknown */
	bool imported;
	struct {
		bool due, less, context; /* a query is due; memory may have shrunk; it concerns a context */
		int64_t asked;
	} gpus[MOST_DEVICES];
	struct list before, now;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t clock_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static bool open_nvml(void)
{
	if (own.opened)
		return own.there; /* search for a missing library only once: that is the largest cost at a short process's start */
	int (*init)(void) = REAL(nvml, nvmlInit_v2);
	own.there = init && init() == 0;
	own.opened = true;
	return own.there;
}

/* The processes on a GPU; none if there are more than fit, or NVML does not answer. */
static void list_processes(int limit, struct list *l)
{
	l->count = 0;
	l->known = false;
	if (!open_nvml())
		return;
	int (*by_uuid)(const char *, void **) = REAL(nvml, nvmlDeviceGetHandleByUUID);
	int (*list)(void *, unsigned int *, struct process *) = REAL(nvml, nvmlDeviceGetComputeRunningProcesses_v3);
	void *device;
	if (!list)
		list = REAL(nvml, nvmlDeviceGetComputeRunningProcesses_v2);
	l->count = MOST_PROCESSES;
	l->known = by_uuid && list && by_uuid(limits_get()->devices[limit].uuid, &device) == 0 && list(device, &l->count, l->processes) == 0;
	if (!l->known)
		l->count = 0;
}

static const struct process *find(const struct list *l, unsigned int pid)
{
	for (unsigned int i = 0; i < l->count; i++)
		if (l->processes[i].pid == pid)
			return &l->processes[i];
	return NULL;
}

static bool in_first_namespace(void)
{
	char target[sizeof FIRST_NAMESPACE] = "";
	return readlink("/proc/self/ns/pid", target, sizeof target) == (ssize_t)sizeof target - 1 &&
		   memcmp(target, FIRST_NAMESPACE, sizeof target - 1) == 0;
}

/* A GPU with a memory limit, while NVML is available. */
static bool asks(int limit)
{
	return limit >= 0 && limits_get()->devices[limit].memory && open_nvml();
}

void overhead_before(CUdevice device)
{
	int limit = memory_limit(limit_of(device));
	if (limit < 0)
		return;
	pthread_mutex_lock(&own.lock);
	own.before.known = false;
	if (!own.pid && asks(limit)) {
		if (in_first_namespace())
			own.pid = (unsigned int)getpid();
		else
			list_processes(limit, &own.before);
	}
	pthread_mutex_unlock(&own.lock);
}

/* In its own PID namespace a process cannot see its outside PID. It is the PID that appeared with its first context, if only one did. */
static void learn_pid(int limit)
{
	unsigned int came = 0, pid = 0, here = (unsigned int)getpid();
	if (own.pid || !own.before.known)
		return;
	list_processes(limit, &own.now);
	for (unsigned int i = 0; i < own.now.count; i++)
		if (!find(&own.before, own.now.processes[i].pid)) {
			came++;
			pid = pid == here ? here : own.now.processes[i].pid;
		}
	/* Some drivers translate PIDs into the caller's namespace. */
	if (came == 1 || pid == here)
		own.pid = pid;
	own.before.known = false;
}

/* Call without the lock: writing to standard error may block, and then only the writing thread waits. */
static void tell_uncounted(void)
{
	words_once("NVML does not say how much memory this process has: its contexts and modules do not count against its limit");
}

/* Charges what NVML reports above the counted memory. The caller holds the lock. Returns whether NVML reported a value. */
static bool ask(int limit)
{
	uint64_t total, had[2], now[2];
	const struct process *p;
	own.gpus[limit].asked = clock_now();
	own.gpus[limit].due = false;
	list_processes(limit, &own.now);
	account_mine(limit, &total, had);
	p = find(&own.now, own.pid);
	if (!own.now.known || (p && p->bytes == UNKNOWN))
		return false;
	uint64_t counted = total - had[0] - had[1], above = p && p->bytes > counted ? p->bytes - counted : 0;
	/*
	 * Pending reservations of other threads make this value too low, never too high. So use it when it is higher, or after something has
	 * ended.
	 */
	bool less = own.gpus[limit].less || !p, context = own.gpus[limit].context || had[0] == 0;
	bool told = p || !own.gpus[limit].context;
	own.gpus[limit].less = own.gpus[limit].context = false;
	if (above <= had[0] + had[1] && !less)
		return told;
	if (!p)
		now[0] = now[1] = 0;
	else if (context) /* modules were loaded before, or none */
		now[1] = above < had[1] ? above : had[1], now[0] = above - now[1];
	else
		now[0] = above < had[0] ? above : had[0], now[1] = above - now[0];
	account_overhead(limit, now);
	return told;
}

/* Marks a GPU for a query. */
static void note(int limit, bool context, bool less)
{
	if (limit < 0)
		return;
	pthread_mutex_lock(&own.lock);
	if (own.pid && !own.imported && asks(limit)) {
		own.gpus[limit].due = true;
		own.gpus[limit].context = own.gpus[limit].context || context;
		own.gpus[limit].less = own.gpus[limit].less || less;
		atomic_store(&overhead_due, true);
	}
	pthread_mutex_unlock(&own.lock);
}

void overhead_context(CUdevice device)
{
	int limit = memory_limit(limit_of(device));
	if (limit < 0)
		return;
	pthread_mutex_lock(&own.lock);
	learn_pid(limit);
	bool uncounted = limits_get()->devices[limit].memory && (!open_nvml() || !own.pid);
	own.gpus[limit].asked = 0; /* contexts are few: query at once */
	pthread_mutex_unlock(&own.lock);
	if (uncounted)
		tell_uncounted();
	note(limit, true, false);
	overhead_settle();
}

void overhead_kernel(void)
{
	CUcontext context;
	note(memory_limit(limit_of_current(&context)), false, false);
}

void overhead_module(void)
{
	overhead_kernel();
	overhead_settle();
}

void overhead_less(int limit)
{
	CUcontext context;
	note(limit < 0 ? memory_limit(limit_of_current(&context)) : limit, false, true);
	overhead_settle();
}

void overhead_imported(void)
{
	pthread_mutex_lock(&own.lock);
	own.imported = true;
	pthread_mutex_unlock(&own.lock);
}

void overhead_look(void)
{
	bool left = false, uncounted = false;
	if (atomic_exchange(&own.looking, true))
		return; /* another thread is */
	pthread_mutex_lock(&own.lock);
	int64_t now = clock_now();
	for (int i = 0; i < MOST_DEVICES; i++) {
		if (own.gpus[i].due && !own.imported && (!own.gpus[i].asked || now - own.gpus[i].asked >= OVERHEAD_APART))
			uncounted = !ask(i) || uncounted;
		left = left || (own.gpus[i].due && !own.imported);
	}
	atomic_store(&overhead_due, left);
	pthread_mutex_unlock(&own.lock);
	atomic_store(&own.looking, false);
	if (uncounted)
		tell_uncounted();
}

void overhead_forget(void)
{
	pthread_mutex_init(&own.lock, NULL);
	atomic_store(&overhead_due, false);
	atomic_store(&own.looking, false);
	own.opened = own.there = own.imported = own.before.known = false;
	own.pid = 0;
	memset(own.gpus, 0, sizeof own.gpus);
}
