#define _GNU_SOURCE
#include "account.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "holders.h"
#include "ledger.h"
#include "mounts.h"
#include "process.h"
#include "region.h"
#include "words.h"

/* The minimum time between two searches for slots of ended processes while allocations are denied. */
#define LOOK_NANOSECONDS 100000

/* An account as this process sees it. */
struct account {
	pthread_mutex_t lock; /* excludes other threads; the lock on the head excludes other processes */
	_Atomic enum { UNOPENED, SHARED, ALONE, REFUSED } ready; /* REFUSED: every allocation is denied */
	struct ledger ledger;
	struct region *region; /* read by monitors, or NULL */
	_Atomic uint64_t overhead[MOST_DEVICES][2];
	_Atomic int64_t looked; /* nanoseconds */
	bool held_up;		/* the lock on the head timed out; do not wait for it until it succeeds */
};

#define NEW_ACCOUNT {.lock = PTHREAD_MUTEX_INITIALIZER}

/* The container's own account, and, by GPU number, the accounts that all containers of a claim's share have in common. */
static struct account own = NEW_ACCOUNT, common[MOST_DEVICES] = {[0 ... MOST_DEVICES - 1] = NEW_ACCOUNT};

/* The account in which a GPU's memory is counted. */
static _Atomic enum { UNKNOWN, OWN, COMMON } kinds[MOST_DEVICES];

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Call without the lock: writing to standard error may block. */
static void say_held_up(void)
{
	words_once("the lock on what is counted cannot be had (a process that has it may be stopped, or no descriptor is left): "
		   "until it can, allocations may be refused, and what is freed may stay counted");
}

/* Returns false when the lock on the head is not available. */
static bool enter(struct account *a)
{
	pthread_mutex_lock(&a->lock);
	if (atomic_load(&a->ready) == ALONE)
		return true;
	bool had = ledger_enter(&a->ledger, !a->held_up);
	a->held_up = !had;
	if (had)
		return true;
	pthread_mutex_unlock(&a->lock);
	say_held_up();
	return false;
}

static void leave(struct account *a)
{
	if (atomic_load(&a->ready) != ALONE)
		ledger_leave(&a->ledger);
	pthread_mutex_unlock(&a->lock);
}

/* Clears the slot of a process that has ended. */
static void bury(struct totals *t, int slot)
{
	struct ledger_slot *s = &t->slots[slot];
	for (int d = 0; d < MOST_DEVICES; d++) {
		if (atomic_load(&s->pending[d]) || atomic_load(&s->has[d]))
			atomic_store(&t->devices[d].dirty, 1);
		atomic_store(&s->pending[d], 0);
		atomic_store(&s->has[d], 0);
	}
	holders_bury(t, slot);
	atomic_store(&s->taken, 0);
}

static int high(const struct totals *t)
{
	uint32_t h = atomic_load(&t->high);
	return h < LEDGER_SLOTS ? (int)h : LEDGER_SLOTS;
}

/* Computes a total again from the live processes. If one of them is stopped in the middle of a change, the total stays too high. */
static void sum(struct totals *t, int at)
{
	bool quiet = false;
	atomic_store(&t->stop, 1);
	for (int tries = 0; !quiet && tries < 1000; tries++) {
		quiet = true;
		for (int i = 0; i < high(t); i++)
			quiet = quiet && !atomic_load(&t->slots[i].pending[at]);
		if (!quiet)
			sched_yield();
	}
	if (quiet) {
		uint64_t total = 0;
		for (int i = 0; i < high(t); i++)
			total += atomic_load(&t->slots[i].has[at]);
		atomic_store(&t->devices[at].total, total);
		atomic_store(&t->devices[at].dirty, 0);
	}
	atomic_store(&t->stop, 0);
}

static bool looked_just_now(const struct account *a)
{
	return now() - atomic_load(&a->looked) < LOOK_NANOSECONDS;
}

/* Clears the slots of ended processes. Returns false when that is not possible now. */
static bool look(struct account *a)
{
	struct totals *t = a->ledger.totals;
	if (!enter(a))
		return false;
	if (atomic_load(&a->ready) == SHARED) {
		for (int i = 0; i < high(t); i++)
			if (atomic_load(&t->slots[i].taken) && !ledger_alive(&a->ledger, i)) {
				bury(t, i);
				if (a->region)
					region_clear(a->region, i);
			}
		for (int d = 0; d < MOST_DEVICES; d++)
			if (atomic_load(&t->devices[d].dirty))
				sum(t, d);
		atomic_store(&a->looked, now());
	}
	leave(a);
	return true;
}

static void forget_account(struct account *a)
{
	if (a->ledger.file >= 0 && atomic_load(&a->ready) != UNOPENED)
		close(a->ledger.file); /* another thread of the parent was about to change a total */
	memset((void *)a, 0, sizeof *a);
	pthread_mutex_init(&a->lock, NULL);
}

/* A child has no mappings, and the slots belong to the parent. */
static void forget_accounts(void)
{
	forget_account(&own);
	for (int d = 0; d < MOST_DEVICES; d++)
		forget_account(&common[d]);
}

FORGET_IN_CHILD(forget_accounts);

/* Opens the region for monitors, which other programs may have removed or replaced. */
static void open_region(struct account *a, const struct limits *l)
{
	int file;
	a->region = ledger_map(REGION_DIRECTORY "/cudevshr.cache", REGION_FILE, true, &file);
	if (!a->region)
		return;
	close(file); /* the mapping stays */
	if (!region_is(a->region, l))
		region_make(a->region, l);
	region_take(a->region, a->ledger.slot, getpid());
}

/* Candidate paths of the container's own account. The node mounts the first one as a file, and the directory of the second. */
static const struct {
	const char *path;
	bool make;
} places[] = {{ACCOUNT_FILE, false}, {OWN_DIRECTORY "/account", true}, {REGION_DIRECTORY "/gpufabric.account", true}};

static enum ledger_opened open_own(struct account *a, const struct limits *l)
{
	enum ledger_opened opened = LEDGER_UNUSABLE;
	for (size_t i = 0; opened == LEDGER_UNUSABLE && i < sizeof places / sizeof places[0]; i++)
		opened = ledger_open(&a->ledger, places[i].path, places[i].make, l, !a->held_up, bury);
	if (opened == LEDGER_OPENED)
		open_region(a, l);
	return opened;
}

/* Counts only this process. */
static bool open_alone(struct account *a)
{
	void *totals = mmap(NULL, sizeof *a->ledger.totals, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (totals == MAP_FAILED)
		return false;
	a->ledger.totals = totals;
	a->ledger.slot = 0;
	return true;
}

/* Opens the account of a GPU, which is the container's own or a common one. */
static enum ledger_opened open_shared(struct account *a, const struct limits *l, const struct limit *common_of)
{
	char path[sizeof COMMON_DIRECTORY "/" + UUID_BYTES];
	if (!common_of)
		return open_own(a, l);
	stpcpy(stpcpy(path, COMMON_DIRECTORY "/"), common_of->uuid);
	return ledger_open(&a->ledger, path, false, l, !a->held_up, bury);
}

/*
 * Opens an account at its first use. common_of is the limit of a common account, or NULL for the container's own. A common one is SHARED or
 * REFUSED. UNOPENED: try again later.
 */
static int prepare(struct account *a, const struct limit *common_of)
{
	int ready = atomic_load_explicit(&a->ready, memory_order_acquire);
	if (ready != UNOPENED)
		return ready;
	pthread_mutex_lock(&a->lock);
	ready = atomic_load(&a->ready);
	bool opens = ready == UNOPENED, closed = false;
	enum ledger_opened opened = LEDGER_OPENED;
	if (opens) {
		struct limits l = *limits_get();
		if (common_of) {
			l.count = 1;
			l.devices[0] = *common_of;
		}
		closed = l.closed;
		opened = open_shared(a, &l, common_of);
		a->held_up = opened == LEDGER_BUSY;
		if (opened == LEDGER_OPENED)
			ready = SHARED;
		else if (opened == LEDGER_UNUSABLE)
			ready = !common_of && !closed && open_alone(a) ? ALONE : REFUSED;
		atomic_store_explicit(&a->ready, ready, memory_order_release);
	}
	pthread_mutex_unlock(&a->lock);
	/* Call without the lock: writing to standard error may block. */
	if (opened == LEDGER_BUSY)
		say_held_up();
	else if (opened == LEDGER_FULL)
		words_once("more processes use GPUs in this container than can be counted: this one can allocate nothing");
	else if (opens && ready == REFUSED && common_of)
		words_once("the files in " COMMON_DIRECTORY " cannot be used: the container is held to its share by itself");
	else if (opens && ready == REFUSED && closed)
		words_once("the file " ACCOUNT_FILE " cannot be used, and the administrator lets nobody allocate on a GPU without it");
	else if (opens && ready == ALONE)
		words_once("the file " ACCOUNT_FILE " cannot be used: each process is held to the limits by itself");
	return ready;
}

/* Reports whether the node mounted a common account for the GPU. A file that a program put in its place is ignored. */
static bool has_common(const char *uuid)
{
	struct stat above;
	char path[sizeof COMMON_DIRECTORY "/" + UUID_BYTES];
	stpcpy(stpcpy(path, COMMON_DIRECTORY "/"), uuid);
#ifdef LIMITS_ANYWHERE
	return access(path, F_OK) == 0; /* tests mount nothing */
#endif
	/* Direct system call: the C library's stat needs glibc 2.33. */
	return syscall(SYS_newfstatat, AT_FDCWD, COMMON_DIRECTORY, &above, 0) == 0 && mounts_has(AT_FDCWD, path, above.st_dev);
}

/* An account, and a GPU's number in it. account is NULL when counting is not possible. */
struct place {
	struct account *account;
	int at;
};

/* The account of a GPU's memory. */
static struct place place_of(int device)
{
	process_check();
	const struct limit *d = &limits_get()->devices[device];
	int kind = atomic_load_explicit(&kinds[device], memory_order_relaxed);
	if (kind == UNKNOWN) {
		/* Several shares of one GPU are one sum in this container's own account. */
		kind = !d->several && has_common(d->uuid) ? COMMON : OWN;
		atomic_store(&kinds[device], kind);
	}
	struct account *a = kind == COMMON ? &common[device] : &own;
	int ready = prepare(a, kind == COMMON ? d : NULL);
	if (kind == COMMON && ready == REFUSED) {
		atomic_store(&kinds[device], OWN); /* not usable */
		return place_of(device);
	}
	if (ready == REFUSED || ready == UNOPENED)
		return (struct place){NULL, 0};
	return (struct place){a, a == &own ? device : 0};
}

/* The GPU memory of this process in its account; account is NULL when counting is not possible now. */
struct entry {
	struct account *account;
	struct ledger_device *device;
	struct ledger_slot *mine;
	int at;
};

static struct entry entry_of(int device)
{
	struct place p = place_of(device);
	if (!p.account)
		return (struct entry){0};
	struct totals *t = p.account->ledger.totals;
	return (struct entry){p.account, &t->devices[p.at], &t->slots[p.account->ledger.slot], p.at};
}

/*
 * Announces a change by this many bytes. Returns false, without a change, while another process computes the totals again and does not
 * finish.
 */
static bool begin(const struct entry *e, uint64_t bytes)
{
	for (;;) {
		atomic_fetch_add(&e->mine->pending[e->at], bytes);
		if (!atomic_load(&e->account->ledger.totals->stop))
			return true;
		atomic_fetch_sub(&e->mine->pending[e->at], bytes);
		if (!enter(e->account))
			return false;
		leave(e->account);
	}
}

static void end(const struct entry *e, uint64_t bytes)
{
	atomic_fetch_sub(&e->mine->pending[e->at], bytes);
}

/* Copies this process's amounts to the region for monitors. */
static void show(const struct entry *e)
{
	struct account *a = e->account;
	uint64_t has;
	if (!a->region)
		return;
	do {
		has = atomic_load(&e->mine->has[e->at]);
		region_show(a->region, a->ledger.slot, e->at, has, atomic_load(&a->overhead[e->at][0]), atomic_load(&a->overhead[e->at][1]));
	} while (has != atomic_load(&e->mine->has[e->at])); /* another thread's copy may have been overwritten */
}

/* Adds to the total. Returns false, without adding, when it would exceed the limit or cannot be changed now. A limit of 0 is unlimited. */
static bool add(const struct entry *e, uint64_t bytes, uint64_t limit)
{
	if (!begin(e, bytes))
		return false;
	uint64_t total = atomic_load(&e->device->total);
	do
		if (limit && (bytes > limit || total > limit - bytes)) {
			end(e, bytes);
			return false;
		}
	while (!atomic_compare_exchange_weak(&e->device->total, &total, total + bytes));
	atomic_fetch_add(&e->mine->has[e->at], bytes);
	end(e, bytes);
	show(e);
	return true;
}

/* If the total cannot be changed now, the bytes stay counted until the process ends: the count may be too high, never too low. */
static void take_away(const struct entry *e, uint64_t bytes)
{
	if (!begin(e, bytes))
		return;
	atomic_fetch_sub(&e->mine->has[e->at], bytes);
	atomic_fetch_sub(&e->device->total, bytes);
	end(e, bytes);
	show(e);
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
	struct entry e = entry_of(device);
	if (e.account)
		take_away(&e, bytes);
}

bool account_overhead(int device, const uint64_t bytes[2])
{
	struct entry e = entry_of(device);
	if (!e.account)
		return false;
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++) {
		_Atomic uint64_t *of = &e.account->overhead[e.at][kind];
		uint64_t had = atomic_load(of);
		if (bytes[kind] > had && !add(&e, bytes[kind] - had, 0))
			return false;
		atomic_store(of, bytes[kind]);
		if (bytes[kind] < had)
			take_away(&e, had - bytes[kind]);
	}
	show(&e);
	return true;
}

void account_mine(int device, uint64_t *total, uint64_t overhead[2])
{
	struct entry e = entry_of(device);
	*total = overhead[0] = overhead[1] = 0;
	if (!e.account)
		return;
	*total = atomic_load(&e.mine->has[e.at]);
	for (enum overhead kind = OVERHEAD_CONTEXT; kind <= OVERHEAD_MODULE; kind++)
		overhead[kind] = atomic_load(&e.account->overhead[e.at][kind]);
}

uint64_t account_used(int device)
{
	struct place p = place_of(device);
	if (!p.account)
		return 0;
	if (!looked_just_now(p.account))
		look(p.account);
	return atomic_load(&p.account->ledger.totals->devices[p.at].total);
}

/* Locks the account in which a GPU's memory is counted; e->account is NULL when that is not possible now. */
static struct entry enter_entry(int device)
{
	struct entry e = entry_of(device);
	if (e.account && !enter(e.account))
		e.account = NULL;
	return e;
}

bool account_exported(int device, uint64_t key, uint64_t bytes)
{
	struct entry e = enter_entry(device);
	if (!e.account)
		return false;
	struct ledger *l = &e.account->ledger;
	bool added = holders_add(l->totals, &(struct ledger_holder){key, bytes, (uint32_t)l->slot, 1, (uint32_t)e.at, 1});
	leave(e.account);
	return added;
}

bool account_imported(int device, uint64_t key, uint64_t *bytes)
{
	struct entry e = enter_entry(device);
	if (!e.account)
		return false;
	struct ledger *l = &e.account->ledger;
	struct ledger_holder *other = holders_any(l->totals, key), *mine = holders_find(l->totals, key, l->slot);
	bool known = other && other->device == (uint32_t)e.at;
	if (known)
		*bytes = other->bytes;
	if (known && mine)
		mine->uses++;
	else if (known)
		known = holders_add(l->totals, &(struct ledger_holder){key, other->bytes, (uint32_t)l->slot, 1, (uint32_t)e.at, 0});
	leave(e.account);
	return known;
}

void account_let_go(int device, uint64_t key)
{
	struct entry e = enter_entry(device);
	if (!e.account)
		return; /* counted for this process until it ends */
	struct ledger *l = &e.account->ledger;
	struct ledger_holder *mine = holders_find(l->totals, key, l->slot);
	bool last = mine && --mine->uses == 0;
	uint64_t bytes = last && mine->pays ? mine->bytes : 0;
	const struct ledger_holder *heir = last ? holders_remove(l->totals, mine) : NULL;
	if (heir)
		atomic_fetch_sub(&e.mine->has[e.at], bytes); /* the heir takes them over: the total does not change */
	leave(e.account);
	if (bytes && !heir)
		take_away(&e, bytes);
	else
		show(&e);
}
