#define _GNU_SOURCE
#include "stocks.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "account.h"
#include "devices.h"
#include "hooks.h"

/* The driver's granule of physical memory (cuMemGetAllocationGranularity). */
#define GRANULE ((uint64_t)2 << 20)

/* Records are never freed, so that readers need no lock. */
static struct stock *_Atomic first;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

struct stock *stocks_find(enum stock_kind kind, uint64_t key)
{
	for (struct stock *s = atomic_load(&first); s; s = s->next)
		if (atomic_load(&s->kind) == (int)kind && atomic_load(&s->key) == key)
			return s;
	return NULL;
}

struct stock *stocks_of(enum stock_kind kind, uint64_t key, int limit)
{
	struct stock *s = stocks_find(kind, key);
	if (s)
		return s;
	pthread_mutex_lock(&adding);
	s = stocks_find(kind, key);
	for (struct stock *old = atomic_load(&first); !s && old; old = old->next)
		if (!atomic_load(&old->kind))
			s = old;
	if (!s && (s = calloc(1, sizeof *s))) {
		pthread_mutex_init(&s->lock, NULL);
		s->next = atomic_load(&first);
		atomic_store(&first, s);
	}
	if (s && !atomic_load(&s->kind)) {
		s->limit = limit;
		atomic_store(&s->key, key);
		atomic_store(&s->kind, (int)kind);
	}
	pthread_mutex_unlock(&adding);
	return s;
}

/* The driver's reserved bytes of a stock. Returns false when it does not report them. */
static bool reserved(const struct stock *s, uint64_t *bytes)
{
	CUresult (*pool)(CUmemoryPool, int, void *) = REAL(cuda, cuMemPoolGetAttribute);
	CUresult (*graphs)(CUdevice, int, void *) = REAL(cuda, cuDeviceGetGraphMemAttribute);
	unsigned long long value = 0;
	CUresult r = NOT_THERE;
	if (s->gone)
		return false;
	int mode = capture_relax();
	if (s->kind == STOCK_POOL && pool)
		r = pool((CUmemoryPool)(uintptr_t)atomic_load(&s->key), POOL_RESERVED, &value);
	else if (s->kind == STOCK_GRAPHS && graphs)
		r = graphs((CUdevice)atomic_load(&s->key), GRAPHS_RESERVED, &value);
	capture_restore(mode);
	*bytes = value;
	return r == CUDA_SUCCESS;
}

/*
 * Charges the driver's reserved bytes after a call for which promised bytes were reserved. Promises of calls in progress stay charged.
 * Returns false when it exceeds the limit. The caller holds the stock's lock.
 */
static bool settle(struct stock *s, uint64_t promised)
{
	uint64_t has, charged = atomic_load(&s->charged), used = atomic_load(&s->used);
	bool fits = true;
	if (!reserved(s, &has))
		has = used;
	else if (has < used && !s->drawing)
		atomic_store(&s->used, has); /* a device reset has freed more than the program */
	if (s->drawing && has < charged - promised)
		has = charged - promised;
	if (has < charged)
		account_release(s->limit, charged - has);
	if (has > charged && !account_reserve(s->limit, has - charged)) {
		fits = false;
		if (!account_charge(s->limit, has - charged))
			has = charged;
	}
	atomic_store(&s->charged, has);
	return fits;
}

/* The caller holds the lock. */
static bool promise(struct draw *d, uint64_t growth)
{
	if (!account_reserve(d->from->limit, growth))
		return false;
	atomic_fetch_add(&d->from->charged, growth);
	d->promised = growth;
	return true;
}

bool stocks_begin(struct draw *d, struct stock *from, uint64_t bytes)
{
	bool begun = true;
	*d = (struct draw){.from = from, .bytes = bytes};
	pthread_mutex_lock(&from->lock);
	uint64_t needs = atomic_load(&from->used) + bytes, has = atomic_load(&from->charged);
	if (needs > has)
		begun = promise(d, (needs - has + GRANULE - 1) & ~(GRANULE - 1));
	if (begun) {
		from->drawing++;
		from->count++;
		atomic_fetch_add(&from->used, bytes);
	}
	pthread_mutex_unlock(&from->lock);
	return begun;
}

bool stocks_begin_growth(struct draw *d, struct stock *from, uint64_t growth)
{
	*d = (struct draw){.from = from};
	pthread_mutex_lock(&from->lock);
	bool begun = growth == 0 || promise(d, (growth + GRANULE - 1) & ~(GRANULE - 1));
	if (begun)
		from->drawing++;
	pthread_mutex_unlock(&from->lock);
	return begun;
}

/* The caller holds the lock. */
static void take_used(struct stock *s, uint64_t bytes)
{
	uint64_t used = atomic_load(&s->used);
	atomic_store(&s->used, used > bytes ? used - bytes : 0);
}

bool stocks_end(struct draw *d, bool taken)
{
	struct stock *s = d->from;
	pthread_mutex_lock(&s->lock);
	s->drawing--;
	if (!taken && d->bytes) {
		s->count--;
		take_used(s, d->bytes);
	}
	bool fits = settle(s, d->promised);
	pthread_mutex_unlock(&s->lock);
	return fits;
}

/* Frees the record of a pool that is destroyed with all its allocations. The caller holds the lock. */
static void end(struct stock *s)
{
	if (!s->gone || s->count)
		return;
	account_release(s->limit, atomic_load(&s->charged));
	atomic_store(&s->charged, 0);
	atomic_store(&s->used, 0);
	s->gone = false;
	atomic_store(&s->kind, 0);
}

void stocks_freed(struct stock *s, uint64_t bytes)
{
	pthread_mutex_lock(&s->lock);
	s->count--;
	take_used(s, bytes);
	end(s);
	pthread_mutex_unlock(&s->lock);
}

void stocks_destroyed(struct stock *s)
{
	pthread_mutex_lock(&s->lock);
	s->gone = true;
	atomic_store(&s->key, 0); /* the driver may give the handle to another pool at once */
	end(s);
	pthread_mutex_unlock(&s->lock);
}

void stocks_kept(struct stock *s, uint64_t key)
{
	pthread_mutex_lock(&s->lock);
	if (s->gone) { /* otherwise it had no allocations, and its record is free: the next allocation makes another */
		s->gone = false;
		atomic_store(&s->key, key);
	}
	pthread_mutex_unlock(&s->lock);
}

void stocks_settle(struct stock *s)
{
	pthread_mutex_lock(&s->lock);
	if (atomic_load(&s->kind) && !s->gone)
		settle(s, 0);
	pthread_mutex_unlock(&s->lock);
}

/* Reports whether a stock may shrink, or, for graphs, grow: the driver maps their memory at any time. */
static bool may_change(const struct stock *s)
{
	return atomic_load(&s->kind) == STOCK_GRAPHS || atomic_load(&s->charged) > atomic_load(&s->used);
}

void stocks_settle_all(void)
{
	for (struct stock *s = atomic_load(&first); s; s = s->next)
		if (may_change(s))
			stocks_settle(s);
}

void stocks_reset(void)
{
	for (struct stock *s = atomic_load(&first); s; s = s->next)
		stocks_settle(s);
}

void stocks_trim(struct stock *s)
{
	CUresult (*pool)(CUmemoryPool, size_t) = REAL(cuda, cuMemPoolTrimTo);
	CUresult (*graphs)(CUdevice) = REAL(cuda, cuDeviceGraphMemTrim);
	int mode = capture_relax();
	pthread_mutex_lock(&s->lock);
	if (s->kind == STOCK_POOL && !s->gone && pool)
		pool((CUmemoryPool)(uintptr_t)atomic_load(&s->key), 0);
	if (s->kind == STOCK_GRAPHS && graphs) {
		graphs((CUdevice)atomic_load(&s->key));
		atomic_fetch_add(&s->trims, 1);
	}
	if (s->kind && !s->gone)
		settle(s, 0);
	pthread_mutex_unlock(&s->lock);
	capture_restore(mode);
}

void stocks_trimmed(struct stock *s)
{
	atomic_fetch_add(&s->trims, 1);
	stocks_settle(s);
}

bool stocks_reclaim(int limit)
{
	bool some = false;
	for (struct stock *s = atomic_load(&first); s; s = s->next) {
		uint64_t had = atomic_load(&s->charged);
		if (s->limit != limit || !had || !may_change(s))
			continue;
		stocks_trim(s);
		some = some || atomic_load(&s->charged) < had;
	}
	return some;
}

bool stocks_reserve(int limit, uint64_t bytes)
{
	return account_reserve(limit, bytes) || (stocks_reclaim(limit) && account_reserve(limit, bytes));
}

void stocks_forget(void)
{
	pthread_mutex_init(&adding, NULL);
	atomic_store(&first, NULL); /* the child leaks the records, once for each fork */
}
