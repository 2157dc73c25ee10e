#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
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

/*
 * How long a process waits for the lock on the head, which others keep for microseconds. One that is stopped, as by a debugger or with its cgroup, keeps it
 * until it goes on. Then allocations may be refused, and what is freed may stay counted, but the program runs.
 */
#ifndef HEAD_NANOSECONDS
#define HEAD_NANOSECONDS 5000000000ll
#endif
#define HEAD_POLL_NANOSECONDS 100000

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

struct totals {
	_Atomic uint64_t magic;
	_Atomic uint32_t stop; /* totals are being recounted: change nothing, and wait for the lock on the head */
	_Atomic uint32_t high; /* slots from here on were never taken */
	uint64_t limits;       /* a sum over the limits that the files were made for */
	uint64_t unused[5];
	struct device_account devices[MOST_DEVICES];
	struct slot_account slots[REGION_SLOTS];
};

/* The two files of a directory, as this process uses them. */
struct account {
	pthread_mutex_t lock; /* the lock on the head keeps other processes out; this one, other threads */
	_Atomic enum { UNOPENED, SHARED, ALONE, REFUSED } ready; /* REFUSED: nothing may be allocated */
	atomic_int slot;      /* -1: none */
	int file;
	struct totals *totals;
	struct region *region;
	_Atomic int64_t looked; /* nanoseconds */
	bool held_up;           /* the lock on the head did not come in time; nobody waits for it until it does */
};

#define NEW_ACCOUNT {.lock = PTHREAD_MUTEX_INITIALIZER, .slot = -1, .file = -1}

/* The container's own, and those that all containers of a claim's share have in common, by the number of the GPU. */
static struct account own = NEW_ACCOUNT, common[MOST_DEVICES] = {[0 ... MOST_DEVICES - 1] = NEW_ACCOUNT};

/* In which of them a GPU's memory is counted. */
static _Atomic enum { UNKNOWN, OWN, COMMON } kinds[MOST_DEVICES];

static bool set_lock(const struct account *a, int command, short type, off_t at)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	int r;
	do
		r = fcntl(a->file, command, &l);
	while (r < 0 && errno == EINTR);
	return r == 0;
}

static bool alive(const struct account *a, int slot)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT(slot), .l_len = 1};
	if (slot == atomic_load(&a->slot))
		return true;
	return fcntl(a->file, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Takes the lock on the head. Waiting for a file lock has no time limit in Linux, so it is tried again and again. */
static bool take_head(struct account *a)
{
	const struct timespec pause = {.tv_nsec = HEAD_POLL_NANOSECONDS};
	int64_t until = now() + (a->held_up ? 0 : HEAD_NANOSECONDS);
	bool taken;
	while (!(taken = set_lock(a, F_OFD_SETLK, F_WRLCK, LOCK_HEAD)) && now() < until)
		nanosleep(&pause, NULL);
	a->held_up = !taken;
	return taken;
}

/* Says it without the lock: nobody may read standard error. */
static void say_held_up(void)
{
	words_once("another process has kept the lock on what is counted for seconds (is it stopped?): until it goes on, allocations may be "
		   "refused, and what is freed may stay counted");
}

/* False: the lock on the head is kept by another. */
static bool enter(struct account *a)
{
	pthread_mutex_lock(&a->lock);
	if (a->file < 0)
		return true;
	if (!take_head(a)) {
		pthread_mutex_unlock(&a->lock);
		say_held_up();
		return false;
	}
	/* The process that set it held the lock, so it has died. */
	atomic_store(&a->totals->stop, 0);
	return true;
}

static void leave(struct account *a)
{
	if (a->file >= 0)
		set_lock(a, F_OFD_SETLK, F_UNLCK, LOCK_HEAD);
	pthread_mutex_unlock(&a->lock);
}

/* Clears the slot of a process that has ended. */
static void bury(const struct account *a, int slot)
{
	struct slot_account *s = &a->totals->slots[slot];
	for (int d = 0; d < MOST_DEVICES; d++) {
		if (atomic_load(&s->pending[d]) || region_has(a->region, slot, d))
			atomic_store(&a->totals->devices[d].dirty, 1);
		atomic_store(&s->pending[d], 0);
	}
	region_clear(a->region, slot);
	atomic_store(&s->taken, 0);
}

/* Recounts a total from the processes that live. Where one of them stays in the middle of a change (it may be stopped), the total stays too high. */
static void sum(const struct account *a, int at)
{
	struct totals *t = a->totals;
	int high = (int)atomic_load(&t->high);
	bool quiet = false;
	atomic_store(&t->stop, 1);
	for (int tries = 0; !quiet && tries < 1000; tries++) {
		quiet = true;
		for (int i = 0; i < high && i < REGION_SLOTS; i++)
			quiet = quiet && !atomic_load(&t->slots[i].pending[at]);
		if (!quiet)
			sched_yield();
	}
	if (quiet) {
		uint64_t total = 0;
		for (int i = 0; i < high && i < REGION_SLOTS; i++)
			total += region_has(a->region, i, at);
		atomic_store(&t->devices[at].total, total);
		atomic_store(&t->devices[at].dirty, 0);
	}
	atomic_store(&t->stop, 0);
}

static bool looked_just_now(const struct account *a)
{
	return now() - atomic_load(&a->looked) < LOOK_NANOSECONDS;
}

/* Clears the slots of processes that have ended. False: not now. */
static bool look(struct account *a)
{
	if (!enter(a))
		return false;
	if (a->file >= 0) {
		for (int i = 0; i < (int)atomic_load(&a->totals->high) && i < REGION_SLOTS; i++)
			if (atomic_load(&a->totals->slots[i].taken) && !alive(a, i))
				bury(a, i);
		for (int d = 0; d < MOST_DEVICES; d++)
			if (atomic_load(&a->totals->devices[d].dirty))
				sum(a, d);
		atomic_store(&a->looked, now());
	}
	leave(a);
	return true;
}

/* Gives a file its bytes, so that a page for which there is no room is not a SIGBUS later. Signals would interrupt that on some kernels. */
static bool reserve_space(int file, size_t size)
{
	sigset_t all, before;
	int r;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	do
		r = posix_fallocate(file, 0, (off_t)size);
	while (r == EINTR);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return r == 0;
}

/*
 * Makes a file that is whole, and open to all users of the containers, before it has its name. False: it could not be made. Where another process
 * was faster, its file stays.
 */
static bool make(int directory, const char *name, size_t size)
{
	char self[32];
	int file = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
	bool named = file < 0; /* a file system without such files: the file has its name at once */
	if (named)
		file = openat(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
	if (file < 0)
		return errno == EEXIST;
	snprintf(self, sizeof self, "/proc/self/fd/%d", file);
	bool made = fchmod(file, 0666) == 0 && reserve_space(file, size) &&
		    (named || linkat(AT_FDCWD, self, directory, name, AT_SYMLINK_FOLLOW) == 0 || errno == EEXIST);
	close(file);
	return made;
}

/*
 * Maps a file of an account, which is made where it is missing. A file that is too short grows. A longer one stays: a later version made it, and whose
 * file is cut dies. It is opened without O_CREAT, which fs.protected_regular of Linux refuses for another user's file in a sticky directory.
 */
static void *map(int directory, const char *name, size_t size, int *file)
{
	const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	struct stat s;
	*file = openat(directory, name, flags);
	if (*file < 0 && errno == ENOENT && make(directory, name, size))
		*file = openat(directory, name, flags);
	if (*file < 0)
		return NULL;
	/* The system call is made directly: the C library's fstat needs glibc 2.33. */
	if (syscall(SYS_fstat, *file, &s) == 0 && S_ISREG(s.st_mode) && reserve_space(*file, size)) {
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
	uint64_t h = 14695981039346656037u;
	for (int i = 0; i < l->count; i++) {
		const struct limit *d = &l->devices[i];
		for (const char *c = d->uuid; *c; c++)
			h = (h ^ (unsigned char)*c) * 1099511628211u;
		h = (h ^ d->memory) * 1099511628211u;
		h = (h ^ d->elsewhere) * 1099511628211u;
	}
	return h;
}

static void forget_account(struct account *a)
{
	pthread_mutex_init(&a->lock, NULL);
	if (a->file >= 0)
		close(a->file);
	a->file = -1;
	a->held_up = false;
	atomic_store(&a->slot, -1);
	atomic_store(&a->ready, UNOPENED);
}

/* After fork the files and the slots are the parent's. The child must not keep the parent's locks. */
static void forked(void)
{
	forget_account(&own);
	for (int d = 0; d < MOST_DEVICES; d++)
		forget_account(&common[d]);
}

/* HELD: another process keeps the lock on the head. */
enum opened { OPENED, UNUSABLE, HELD };

/* Begins to count in files that no living process uses, whatever a crash of the machine left in them. UNUSABLE: they were made for other limits. */
static enum opened begin_count(struct account *a, const struct limits *l)
{
	bool used = false; /* a living process has a slot */
	if (!take_head(a))
		return HELD;
	for (int i = 0; i < REGION_SLOTS; i++)
		used = used || alive(a, i);
	bool ours = atomic_load(&a->totals->magic) == MAGIC && a->totals->limits == sum_of(l) && region_is(a->region, l);
	if (!used) {
		memset((void *)a->totals, 0, sizeof *a->totals);
		region_make(a->region, l);
		a->totals->limits = sum_of(l);
		atomic_store(&a->totals->magic, MAGIC);
		ours = true;
	}
	set_lock(a, F_OFD_SETLK, F_UNLCK, LOCK_HEAD);
	return ours ? OPENED : UNUSABLE;
}

static enum opened open_files(struct account *a, const char *path, const struct limits *l)
{
	enum opened opened = UNUSABLE;
	int view = -1, directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return UNUSABLE;
	a->totals = map(directory, "gpufabric.account", sizeof *a->totals, &a->file);
	a->region = a->totals ? map(directory, "cudevshr.cache", REGION_FILE, &view) : NULL;
	close(directory);
	if (view >= 0)
		close(view); /* the mapping stays */
	if (a->region)
		opened = begin_count(a, l);
	if (opened == OPENED)
		return OPENED;
	if (a->region)
		munmap(a->region, REGION_FILE);
	if (a->totals) {
		munmap(a->totals, sizeof *a->totals);
		close(a->file);
	}
	a->file = -1;
	return opened;
}

/* Counts this process alone. */
static bool open_alone(struct account *a, const struct limits *l)
{
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	void *totals = mmap(NULL, sizeof *a->totals, PROT_READ | PROT_WRITE, anonymous, -1, 0);
	void *region = mmap(NULL, sizeof *a->region, PROT_READ | PROT_WRITE, anonymous, -1, 0);
	if (totals == MAP_FAILED || region == MAP_FAILED)
		return false; /* out of memory; what was mapped is left to the end of the process */
	a->totals = totals;
	a->region = region;
	region_make(a->region, l);
	atomic_store(&a->slot, 0);
	return true;
}

/* Opens the account of a GPU, which is the container's own or a common one. */
static enum opened open_shared(struct account *a, const struct limits *l, const struct limit *common_of)
{
	char directory[sizeof COMMON_DIRECTORY "/" + UUID_BYTES];
	if (!common_of)
		return open_files(a, ACCOUNT_DIRECTORY, l);
	stpcpy(stpcpy(directory, COMMON_DIRECTORY "/"), common_of->uuid);
	return open_files(a, directory, l);
}

/* Registers forked, once. */
static void follow_forks(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool followed;
	pthread_mutex_lock(&lock);
	if (!followed)
		pthread_atfork(NULL, NULL, forked);
	followed = true;
	pthread_mutex_unlock(&lock);
}

/*
 * Opens an account at its first use. common_of is the limit that it is for; NULL for the container's own. A common one is SHARED or REFUSED. UNOPENED: not
 * now.
 */
static int prepare(struct account *a, const struct limit *common_of)
{
	int ready = atomic_load_explicit(&a->ready, memory_order_acquire);
	if (ready != UNOPENED)
		return ready;
	follow_forks();
	pthread_mutex_lock(&a->lock);
	ready = atomic_load(&a->ready);
	bool opens = ready == UNOPENED, closed = false, held = false;
	if (opens) {
		struct limits l = *limits_get();
		if (common_of) {
			l.count = 1;
			l.devices[0] = *common_of;
		}
		closed = l.closed;
		enum opened opened = open_shared(a, &l, common_of);
		held = opened == HELD;
		if (opened == OPENED)
			ready = SHARED;
		else if (!held)
			ready = !common_of && !closed && open_alone(a, &l) ? ALONE : REFUSED;
		atomic_store_explicit(&a->ready, ready, memory_order_release);
	}
	pthread_mutex_unlock(&a->lock);
	/* Without the lock: nobody may read standard error. */
	if (held)
		say_held_up();
	else if (opens && ready == REFUSED && common_of)
		words_once("the files in " COMMON_DIRECTORY " cannot be used: the container is held to its share by itself");
	else if (opens && ready == REFUSED && closed)
		words_once("the files in " ACCOUNT_DIRECTORY " cannot be used, and the administrator lets nobody allocate on a GPU without them");
	else if (opens && ready == ALONE)
		words_once("the files in " ACCOUNT_DIRECTORY " cannot be used: each process is held to the limits by itself");
	return ready;
}

/* Whether the node mounted a common account for the GPU. What a program makes in its place does not count. */
static bool has_common(const char *uuid)
{
	struct stat here, above;
	char directory[sizeof COMMON_DIRECTORY "/" + UUID_BYTES];
	stpcpy(stpcpy(directory, COMMON_DIRECTORY "/"), uuid);
	/* The system call is made directly: the C library's stat needs glibc 2.33. */
	if (syscall(SYS_newfstatat, AT_FDCWD, directory, &here, 0) != 0 || !S_ISDIR(here.st_mode) ||
	    syscall(SYS_newfstatat, AT_FDCWD, COMMON_DIRECTORY, &above, 0) != 0)
		return false;
#ifdef LIMITS_ANYWHERE
	return true; /* tests mount nothing */
#endif
	return here.st_dev != above.st_dev;
}

/* An account, and a GPU's number in it. account is NULL where nothing can be counted. */
struct place {
	struct account *account;
	int at;
};

/* Where a GPU's memory is counted. */
static struct place place_of(int device)
{
	const struct limit *d = &limits_get()->devices[device];
	int kind = atomic_load_explicit(&kinds[device], memory_order_relaxed);
	if (kind == UNKNOWN) {
		/* Several shares of one GPU are one sum here, which no other container has. */
		kind = !d->several && has_common(d->uuid) ? COMMON : OWN;
		atomic_store(&kinds[device], kind);
	}
	struct account *a = kind == COMMON ? &common[device] : &own;
	int ready = prepare(a, kind == COMMON ? d : NULL);
	if (kind == COMMON && ready == REFUSED) {
		atomic_store(&kinds[device], OWN); /* it cannot be used */
		return place_of(device);
	}
	if (ready == REFUSED || ready == UNOPENED)
		return (struct place){NULL, 0};
	return (struct place){a, a == &own ? device : 0};
}

/* This process's slot; -1 where it cannot have one now. */
static int slot(struct account *a)
{
	int mine = atomic_load_explicit(&a->slot, memory_order_acquire);
	if (mine >= 0 || !enter(a))
		return mine;
	mine = atomic_load(&a->slot);
	for (int i = 0; mine < 0 && i < REGION_SLOTS; i++) {
		struct slot_account *s = &a->totals->slots[i];
		if (!set_lock(a, F_OFD_SETLK, F_WRLCK, LOCK_SLOT(i)))
			continue; /* another's */
		if (atomic_load(&s->taken))
			bury(a, i);
		atomic_store(&s->taken, 1);
		if (atomic_load(&a->totals->high) < (uint32_t)i + 1)
			atomic_store(&a->totals->high, (uint32_t)i + 1);
		region_take(a->region, i, getpid());
		mine = i;
		atomic_store_explicit(&a->slot, mine, memory_order_release);
	}
	leave(a);
	if (mine < 0)
		words_once("more processes use GPUs in this container than can be counted: this one can allocate nothing");
	return mine;
}

/* What this process has in an account, and is about to. */
struct entry {
	struct account *account;
	struct slot_account *changes;
	int slot, at;
};

/* The entry of this process at a place; account is NULL where it can have none. */
static struct entry entry_of(int device)
{
	struct place p = place_of(device);
	int mine = p.account ? slot(p.account) : -1;
	if (mine < 0)
		return (struct entry){NULL, NULL, -1, 0};
	return (struct entry){p.account, &p.account->totals->slots[mine], mine, p.at};
}

/* The entry that this process has already. */
static struct entry standing(int device)
{
	struct place p = place_of(device);
	int mine = p.account ? atomic_load(&p.account->slot) : -1; /* -1 also where it is the parent's, before fork */
	if (mine < 0)
		return (struct entry){NULL, NULL, -1, 0};
	return (struct entry){p.account, &p.account->totals->slots[mine], mine, p.at};
}

/* Announces a change of so many bytes. False: totals are being recounted by a process that does not end with it, and the change was not begun. */
static bool begin(const struct entry *e, uint64_t bytes)
{
	for (;;) {
		atomic_fetch_add(&e->changes->pending[e->at], bytes);
		if (!atomic_load(&e->account->totals->stop))
			return true;
		atomic_fetch_sub(&e->changes->pending[e->at], bytes);
		if (!enter(e->account))
			return false;
		leave(e->account);
	}
}

/* Adds to the total; false: it is above the limit then, or cannot be changed now, and nothing was added. A limit of 0 is none. */
static bool add(const struct entry *e, uint64_t bytes, uint64_t limit)
{
	struct device_account *a = &e->account->totals->devices[e->at];
	if (!begin(e, bytes))
		return false;
	uint64_t total = atomic_load(&a->total);
	do
		if (limit && (bytes > limit || total > limit - bytes)) {
			atomic_fetch_sub(&e->changes->pending[e->at], bytes);
			return false;
		}
	while (!atomic_compare_exchange_weak(&a->total, &total, total + bytes));
	region_add(e->account->region, e->slot, e->at, bytes);
	atomic_fetch_sub(&e->changes->pending[e->at], bytes);
	return true;
}

/* Where the total cannot be changed now, the bytes stay counted until the process ends: too much is counted, and never too little. */
static void take_away(const struct entry *e, uint64_t bytes)
{
	if (!begin(e, bytes))
		return;
	region_take_away(e->account->region, e->slot, e->at, bytes);
	atomic_fetch_sub(&e->account->totals->devices[e->at].total, bytes);
	atomic_fetch_sub(&e->changes->pending[e->at], bytes);
}

bool account_reserve(int device, uint64_t bytes)
{
	struct entry e = entry_of(device);
	if (!e.account)
		return false;
	uint64_t limit = limits_get()->devices[device].memory;
	if (add(&e, bytes, limit))
		return true;
	if (limit && bytes > limit)
		return false;
	if (looked_just_now(e.account) || !look(e.account))
		return false;
	return add(&e, bytes, limit);
}

bool account_charge(int device, uint64_t bytes)
{
	struct entry e = entry_of(device);
	return e.account && add(&e, bytes, 0);
}

void account_release(int device, uint64_t bytes)
{
	struct entry e = standing(device);
	if (e.account)
		take_away(&e, bytes);
}

bool account_overhead(int device, const uint64_t bytes[2])
{
	struct entry e = entry_of(device);
	if (!e.account)
		return false;
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++) {
		uint64_t had = atomic_load(region_overhead(e.account->region, e.slot, e.at, kind));
		if (bytes[kind] > had && !add(&e, bytes[kind] - had, 0))
			return false;
		region_kind(e.account->region, e.slot, e.at, kind, bytes[kind]);
		if (bytes[kind] < had)
			take_away(&e, had - bytes[kind]);
	}
	return true;
}

void account_mine(int device, uint64_t *total, uint64_t overhead[2])
{
	struct entry e = standing(device);
	*total = overhead[0] = overhead[1] = 0;
	if (!e.account)
		return;
	*total = region_has(e.account->region, e.slot, e.at);
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++)
		overhead[kind] = atomic_load(region_overhead(e.account->region, e.slot, e.at, kind));
}

uint64_t account_used(int device)
{
	struct place p = place_of(device);
	if (!p.account)
		return 0;
	if (!looked_just_now(p.account))
		look(p.account);
	return atomic_load(&p.account->totals->devices[p.at].total);
}
