#define _GNU_SOURCE
#include "seats.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "words.h"

/* The maximum age of data about neighbours. */
#define FRESH (2 * GATE_MILLISECOND)

_Static_assert(sizeof(struct gate_page) == GATE_PAGE, "a page of the container");
_Static_assert(sizeof(struct order) == 64 + 24 * ORDER_MOST && sizeof(struct order) <= GATE_PAGE, "the order fits into a page");

static struct seat *_Atomic seats; /* MOST_DEVICES of them */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t offset = INT64_MIN; /* of the time namespace; INT64_MIN: unread */

/*
 * The offset of a time namespace to the node's clock. A process whose children have another one cannot see its own: its slots are then
 * shifted.
 */
static int64_t read_offset(void)
{
	char text[256];
	long long seconds = 0, nanoseconds = 0;
	int file = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
	ssize_t n = file >= 0 ? read(file, text, sizeof text - 1) : -1;
	if (file >= 0)
		close(file);
	if (n <= 0)
		return 0; /* the kernel has no time namespaces */
	text[n] = '\0';
	return sscanf(text, "monotonic %lld %lld", &seconds, &nanoseconds) == 2 ? seconds * 1000000000ll + nanoseconds : 0;
}

int64_t seats_now(void)
{
	struct timespec t;
	int64_t off = atomic_load_explicit(&offset, memory_order_relaxed);
	if (off == INT64_MIN)
		atomic_store(&offset, off = read_offset());
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec - off;
}

/* Maps a file of one page, not for children of a fork. */
static void *map(const char *directory, const char *uuid, const char *name, bool writable)
{
	char path[512];
	struct stat st;
	void *at = MAP_FAILED;
	snprintf(path, sizeof path, "%s/%s%s", directory, uuid, name);
	int file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
	if (file < 0)
		return NULL;
	/* Direct system call: the C library's fstat needs glibc 2.33. */
	if (syscall(SYS_fstat, file, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= GATE_PAGE)
		at = mmap(NULL, GATE_PAGE, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (at == MAP_FAILED)
		return NULL;
	madvise(at, GATE_PAGE, MADV_DONTFORK);
	return at;
}

static void open_seat(struct seat *s)
{
	s->self = s->place = -1;
	if (!s->limit->cores)
		return;
	s->page = map(CORES_OWN, s->limit->uuid, "", true);
	if (s->page && (s->page->magic != GATE_MAGIC || s->page->version != GATE_VERSION)) {
		munmap(s->page, GATE_PAGE);
		s->page = NULL;
	}
	if (!s->page) {
		words_once("this container has no page for its share of a GPU's time: each process holds itself to the percentage");
		s->page = calloc(1, sizeof *s->page);
		if (!s->page)
			return;
	} else {
		s->order = map(CORES_DIRECTORY, s->limit->uuid, "/order", false);
	}
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	s->owner = ((int64_t)getpid() << 32 ^ t.tv_sec << 20 ^ t.tv_nsec) | 1;
	s->place = gate_place(s->page, s->owner, seats_now());
}

void seats_promise(struct seat *s, int64_t now, bool wants, bool busy)
{
	if (s->place < 0 || atomic_load(&s->page->processes[s->place].owner) != s->owner)
		s->place = gate_place(s->page, s->owner, now);
	gate_promise(s->page, s->place, now, wants, busy);
}

struct seat *seats_of(int limit)
{
	struct seat *all = atomic_load_explicit(&seats, memory_order_acquire);
	if (all)
		return &all[limit];
	pthread_mutex_lock(&lock);
	all = atomic_load(&seats);
	const struct limits *l = limits_get();
	if (!all && (all = calloc(MOST_DEVICES, sizeof *all))) {
		for (int i = 0; i < l->count; i++) {
			all[i].limit = &l->devices[i];
			open_seat(&all[i]);
		}
		atomic_store_explicit(&seats, all, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return all && all[limit].page ? &all[limit] : NULL;
}

static uint64_t sum_of(const struct order *o)
{
	uint64_t sum = 0xcbf29ce484222325u;
	const unsigned char *at = (const unsigned char *)&o->generation, *end = (const unsigned char *)&o->entries[o->count];
	for (; at < end; at++)
		sum = (sum ^ *at) * 0x100000001b3u;
	return sum;
}

/* Uses a new order if it is complete. The node's plugin may be writing it, or may have died meanwhile: then the last one stays. */
static void read_order(struct seat *s)
{
	struct order now;
	if (!s->order || *(const volatile uint64_t *)&s->order->generation == s->known.generation)
		return;
	memcpy(&now, s->order, sizeof now);
	if (now.magic != ORDER_MAGIC || now.version != GATE_VERSION || now.count > ORDER_MOST || sum_of(&now) != now.sum)
		return;
	s->known = now;
	s->self = -1;
	for (uint32_t i = 0; i < now.count; i++)
		if (memcmp(now.entries[i].name, s->page->name, GATE_NAME) == 0)
			s->self = (int)i;
}

/*
 * Reads a neighbour's page. It is not mapped, because the neighbour can truncate it, which must not end this process. A missing or
 * truncated file counts as empty.
 */
static void ask(const struct seat *s, const struct order_entry *e, int64_t now, struct gate_member *out)
{
	char path[512];
	struct gate_page page = {.magic = 0};
	*out = (struct gate_member){.percent = e->percent};
	for (int i = 0; i < GATE_NAME; i++)
		if (!e->name[i] || e->name[i] == '/' || e->name[i] == '.')
			return;
	snprintf(path, sizeof path, CORES_DIRECTORY "/%s/%.*s", s->limit->uuid, GATE_NAME, e->name);
	int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	if (file < 0)
		return;
	if (pread(file, &page, offsetof(struct gate_page, level), 0) == offsetof(struct gate_page, level))
		gate_read(&page, now, out);
	close(file);
}

/* Reports whether the container's processes on other GPUs launch in this slot too. */
static bool together(const struct seat *s, int64_t now, const struct gate_slot *slot)
{
	struct seat *all = atomic_load(&seats);
	for (int i = 0; all && i < MOST_DEVICES; i++) {
		const struct gate_page *other = all[i].page;
		if (!other || &all[i] == s || atomic_load(&other->wants_until) <= now)
			continue;
		int64_t length = atomic_load(&other->length);
		if (length > 0 && !gate_overlap(slot->start, slot->length, atomic_load(&other->start), length))
			return false;
	}
	return true;
}

void seats_arrange(struct seat *s, int64_t now, struct gate_slot *out)
{
	struct gate_member all[ORDER_MOST];
	if (s->arranged && now - s->arranged < FRESH && now >= s->arranged)
		return;
	s->arranged = now;
	read_order(s);
	/* A clock behind the order's is not the node's. */
	if (s->self < 0 || now < s->known.stamp) {
		gate_alone(s->limit->cores, out);
		return;
	}
	for (uint32_t i = 0; i < s->known.count; i++)
		if ((int)i == s->self)
			all[i] = (struct gate_member){.percent = s->known.entries[i].percent};
		else
			ask(s, &s->known.entries[i], now, &all[i]);
	gate_arrange(all, (int)s->known.count, s->self, s->known.lend != 0, out);
	atomic_store(&s->page->start, out->start);
	atomic_store(&s->page->length, out->length);
	if (out->length < GATE_PERIOD && !together(s, now, out)) {
		out->start = 0;
		out->length = GATE_PERIOD;
	}
}

struct gate_account seats_account(int64_t now)
{
	struct gate_account a = GATE_NO_ACCOUNT;
	struct seat *all = atomic_load(&seats);
	for (int i = 0; all && i < MOST_DEVICES; i++)
		if (all[i].page)
			gate_add(&a, all[i].page, now);
	return a;
}

void seats_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	atomic_store(&seats, NULL); /* the child does not have its pages */
}
