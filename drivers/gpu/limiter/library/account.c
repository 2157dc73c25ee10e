#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "region.h"
#include "words.h"

/* Linux 3.15; the headers of glibc 2.17 lack them. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

#define MAGIC 0x67706661626c6d31u /* gpfablm1 */
#define LOCK_HEAD 0
#define LOCK_SLOT(i) (4096 + (i))

/* The shortest time between two searches for slots of ended processes, while allocations are denied. */
#define LOOK_NANOSECONDS 100000

struct device_account {
	_Atomic uint64_t total;
	_Atomic uint32_t dirty; /* the total may be too high */
	uint32_t unused[13];	/* fills a cache line */
};

struct slot_account {
	_Atomic uint64_t pending[MOST_DEVICES];
	_Atomic uint32_t taken;
	uint32_t unused[15];
};

struct shared {
	_Atomic uint64_t magic;
	_Atomic uint32_t stop; /* totals are being recounted: change nothing, and wait for the lock on the head */
	_Atomic uint32_t high; /* slots from here on were never taken */
	uint64_t limits;       /* a sum over the limits that the files were made for */
	uint64_t unused[5];
	struct device_account devices[MOST_DEVICES];
	struct slot_account slots[REGION_SLOTS];
};

static struct {
	pthread_mutex_t lock; /* the lock on the head keeps other processes out; this one, other threads */
	atomic_int ready;     /* 0: not opened, 1: shared, 2: this process alone, 3: nothing may be allocated */
	atomic_int slot;      /* -1: none */
	int file;
	struct shared *shared;
	struct region *region;
	_Atomic int64_t looked; /* nanoseconds */
} own = {.lock = PTHREAD_MUTEX_INITIALIZER, .slot = -1, .file = -1};

static bool set_lock(int command, short type, off_t at)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	int r;
	do
		r = fcntl(own.file, command, &l);
	while (r < 0 && errno == EINTR);
	return r == 0;
}

static bool alive(int slot)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT(slot), .l_len = 1};
	if (slot == atomic_load(&own.slot))
		return true;
	return fcntl(own.file, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

static void enter(void)
{
	pthread_mutex_lock(&own.lock);
	if (own.file >= 0) {
		set_lock(F_OFD_SETLKW, F_WRLCK, LOCK_HEAD);
		/* The process that set it held the lock, so it has died. */
		atomic_store(&own.shared->stop, 0);
	}
}

static void leave(void)
{
	if (own.file >= 0)
		set_lock(F_OFD_SETLK, F_UNLCK, LOCK_HEAD);
	pthread_mutex_unlock(&own.lock);
}

/* Clears the slot of a process that has ended. */
static void bury(int slot)
{
	struct slot_account *s = &own.shared->slots[slot];
	for (int d = 0; d < MOST_DEVICES; d++) {
		if (atomic_load(&s->pending[d]) || region_has(own.region, slot, d))
			atomic_store(&own.shared->devices[d].dirty, 1);
		atomic_store(&s->pending[d], 0);
	}
	region_clear(own.region, slot);
	atomic_store(&s->taken, 0);
}

/* Recounts a total from the processes that live. Where one of them stays in the middle of a change (it may be stopped), the total stays too high. */
static void sum(int device)
{
	struct shared *s = own.shared;
	int high = (int)atomic_load(&s->high);
	bool quiet = false;
	atomic_store(&s->stop, 1);
	for (int tries = 0; !quiet && tries < 1000; tries++) {
		quiet = true;
		for (int i = 0; i < high && i < REGION_SLOTS; i++)
			quiet = quiet && !atomic_load(&s->slots[i].pending[device]);
		if (!quiet)
			sched_yield();
	}
	if (quiet) {
		uint64_t total = 0;
		for (int i = 0; i < high && i < REGION_SLOTS; i++)
			total += region_has(own.region, i, device);
		atomic_store(&s->devices[device].total, total);
		atomic_store(&s->devices[device].dirty, 0);
	}
	atomic_store(&s->stop, 0);
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Clears the slots of processes that have ended. The caller holds the lock on the head. */
static void look(void)
{
	if (own.file < 0)
		return;
	for (int i = 0; i < (int)atomic_load(&own.shared->high) && i < REGION_SLOTS; i++)
		if (atomic_load(&own.shared->slots[i].taken) && !alive(i))
			bury(i);
	for (int d = 0; d < MOST_DEVICES; d++)
		if (atomic_load(&own.shared->devices[d].dirty))
			sum(d);
	atomic_store(&own.looked, now());
}

static bool looked_just_now(void)
{
	return now() - atomic_load(&own.looked) < LOOK_NANOSECONDS;
}

/* Maps a file of the account, which is created or resized to exactly so many bytes. */
static void *map(const char *path, size_t size, int *file)
{
	struct stat s;
	*file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
	if (*file < 0)
		return NULL;
	(void)!fchmod(*file, 0666); /* the container may have several users; only the owner's call works, and that is enough */
	/* A page that the disk has no room for would be a SIGBUS later. The system call is made directly: the C library's fstat needs glibc 2.33. */
	if (syscall(SYS_fstat, *file, &s) == 0 && S_ISREG(s.st_mode) && (s.st_size == (off_t)size || ftruncate(*file, (off_t)size) == 0) &&
	    posix_fallocate(*file, 0, (off_t)size) == 0) {
		void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
		if (at != MAP_FAILED)
			return at;
	}
	close(*file);
	*file = -1;
	return NULL;
}

/* A checksum of the limits (FNV-1a), which shows whether the files were made for other limits. */
static uint64_t sum_of(const struct limits *l)
{
	const unsigned char *b = (const unsigned char *)l->devices;
	uint64_t h = 14695981039346656037u;
	for (size_t i = 0; i < (size_t)l->count * sizeof l->devices[0]; i++)
		h = (h ^ b[i]) * 1099511628211u;
	return h;
}

/* After fork the files and the slot are the parent's. The child must not keep the parent's lock. */
static void forked(void)
{
	pthread_mutex_init(&own.lock, NULL);
	if (own.file >= 0)
		close(own.file);
	own.file = -1;
	atomic_store(&own.slot, -1);
	atomic_store(&own.ready, 0);
}

static struct shared alone_account;
static struct region alone_region;

static bool open_files(const struct limits *l)
{
	int view = -1;
	own.shared = map(ACCOUNT_DIRECTORY "/gpufabric.account", sizeof *own.shared, &own.file);
	if (!own.shared)
		return false;
	own.region = map(ACCOUNT_DIRECTORY "/cudevshr.cache", REGION_FILE, &view);
	if (view >= 0)
		close(view); /* the mapping stays */
	if (!own.region || !set_lock(F_OFD_SETLKW, F_WRLCK, LOCK_HEAD)) {
		close(own.file);
		own.file = -1;
		return false;
	}
	bool used = false; /* a living process has a slot */
	for (int i = 0; i < REGION_SLOTS; i++)
		used = used || alive(i);
	bool ours = atomic_load(&own.shared->magic) == MAGIC && own.shared->limits == sum_of(l) && region_is(own.region, l);
	if (!ours && !used) {
		memset((void *)own.shared, 0, sizeof *own.shared);
		region_make(own.region, l);
		own.shared->limits = sum_of(l);
		atomic_store(&own.shared->magic, MAGIC);
		ours = true;
	}
	set_lock(F_OFD_SETLK, F_UNLCK, LOCK_HEAD);
	if (!ours) {
		close(own.file);
		own.file = -1;
	}
	return ours;
}

static int prepare(void)
{
	static atomic_flag once = ATOMIC_FLAG_INIT;
	const struct limits *l = limits_get();
	int ready = atomic_load_explicit(&own.ready, memory_order_acquire);
	if (ready)
		return ready;
	pthread_mutex_lock(&own.lock);
	ready = atomic_load(&own.ready);
	if (!ready) {
		if (!atomic_flag_test_and_set(&once))
			pthread_atfork(NULL, NULL, forked);
		if (open_files(l)) {
			ready = 1;
		} else if (l->closed) {
			words_once("the files in " ACCOUNT_DIRECTORY " cannot be used, and the administrator lets nobody allocate on a GPU without them");
			ready = 3;
		} else {
			words_once("the files in " ACCOUNT_DIRECTORY " cannot be used: each process is held to the limits by itself");
			own.shared = &alone_account;
			own.region = &alone_region;
			memset((void *)own.shared, 0, sizeof *own.shared);
			region_make(own.region, l);
			atomic_store(&own.slot, 0);
			ready = 2;
		}
		atomic_store_explicit(&own.ready, ready, memory_order_release);
	}
	pthread_mutex_unlock(&own.lock);
	return ready;
}

/* This process's slot; -1 where no slot is free. */
static int slot(void)
{
	int mine = atomic_load_explicit(&own.slot, memory_order_acquire);
	if (mine >= 0)
		return mine;
	enter();
	mine = atomic_load(&own.slot);
	for (int i = 0; mine < 0 && i < REGION_SLOTS; i++) {
		struct slot_account *s = &own.shared->slots[i];
		if (!set_lock(F_OFD_SETLK, F_WRLCK, LOCK_SLOT(i)))
			continue; /* another's */
		if (atomic_load(&s->taken))
			bury(i);
		atomic_store(&s->taken, 1);
		if (atomic_load(&own.shared->high) < (uint32_t)i + 1)
			atomic_store(&own.shared->high, (uint32_t)i + 1);
		region_take(own.region, i, getpid());
		mine = i;
		atomic_store_explicit(&own.slot, mine, memory_order_release);
	}
	leave();
	return mine;
}

/* Announces a change of so many bytes. False: totals are being recounted, and the change was not begun. */
static bool begin(struct slot_account *s, int device, uint64_t bytes)
{
	atomic_fetch_add(&s->pending[device], bytes);
	if (!atomic_load(&own.shared->stop))
		return true;
	atomic_fetch_sub(&s->pending[device], bytes);
	enter();
	leave();
	return false;
}

/* Adds to the total; false: it is above the limit then, and nothing was added. A limit of 0 is none. */
static bool add(struct slot_account *s, int device, uint64_t bytes, uint64_t limit)
{
	struct device_account *a = &own.shared->devices[device];
	while (!begin(s, device, bytes))
		;
	uint64_t total = atomic_load(&a->total);
	do
		if (limit && (bytes > limit || total > limit - bytes)) {
			atomic_fetch_sub(&s->pending[device], bytes);
			return false;
		}
	while (!atomic_compare_exchange_weak(&a->total, &total, total + bytes));
	region_add(own.region, atomic_load(&own.slot), device, bytes);
	atomic_fetch_sub(&s->pending[device], bytes);
	return true;
}

/* The account of this process, NULL where it can have none. */
static struct slot_account *mine(void)
{
	if (prepare() == 3)
		return NULL;
	int at = slot();
	if (at < 0)
		words_once("more processes use GPUs in this container than can be counted: this one can allocate nothing");
	return at < 0 ? NULL : &own.shared->slots[at];
}

bool account_reserve(int device, uint64_t bytes)
{
	struct slot_account *s = mine();
	if (!s)
		return false;
	uint64_t limit = limits_get()->devices[device].memory;
	if (add(s, device, bytes, limit))
		return true;
	if (limit && bytes > limit)
		return false;
	if (looked_just_now())
		return false;
	enter();
	look();
	leave();
	return add(s, device, bytes, limit);
}

bool account_charge(int device, uint64_t bytes)
{
	struct slot_account *s = mine();
	return s && add(s, device, bytes, 0);
}

/* Takes away what the process at this slot has. */
static void take_away(struct slot_account *s, int slot, int device, uint64_t bytes)
{
	while (!begin(s, device, bytes))
		;
	region_take_away(own.region, slot, device, bytes);
	atomic_fetch_sub(&own.shared->devices[device].total, bytes);
	atomic_fetch_sub(&s->pending[device], bytes);
}

void account_release(int device, uint64_t bytes)
{
	int at = atomic_load(&own.slot);
	if (at >= 0) /* else the parent's, before fork */
		take_away(&own.shared->slots[at], at, device, bytes);
}

bool account_overhead(int device, const uint64_t bytes[2])
{
	struct slot_account *s = mine();
	if (!s)
		return false;
	int at = atomic_load(&own.slot);
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++) {
		_Atomic uint64_t *has = region_overhead(own.region, at, device, kind);
		uint64_t had = atomic_load(has);
		if (bytes[kind] > had) {
			add(s, device, bytes[kind] - had, 0);
			region_kind(own.region, at, device, kind, bytes[kind]);
		} else if (bytes[kind] < had) {
			region_kind(own.region, at, device, kind, bytes[kind]);
			take_away(s, at, device, had - bytes[kind]);
		}
	}
	return true;
}

void account_mine(int device, uint64_t *total, uint64_t overhead[2])
{
	int at = atomic_load(&own.slot);
	*total = overhead[0] = overhead[1] = 0;
	if (at < 0 || prepare() == 3)
		return;
	*total = region_has(own.region, at, device);
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++)
		overhead[kind] = atomic_load(region_overhead(own.region, at, device, kind));
}

uint64_t account_used(int device)
{
	if (prepare() == 3)
		return 0;
	if (!looked_just_now()) {
		enter();
		look();
		leave();
	}
	return atomic_load(&own.shared->devices[device].total);
}
