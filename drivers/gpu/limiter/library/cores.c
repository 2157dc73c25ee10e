#define _GNU_SOURCE
#include "cores.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"
#include "hooks.h"
#include "lanes.h"
#include "process.h"
#include "words.h"

/* The interval between events, and the maximum number of launches behind one event. */
#define APART GATE_MILLISECOND
#define MOST_BATCH 128

/* The thread's interval while a launch waits and while none does; and the lifetime of the numbers that it computed. */
#define OFTEN (GATE_MILLISECOND / 2)
#define SELDOM GATE_MILLISECOND
#define VALID (5 * GATE_MILLISECOND)

/* A waiting launch checks again after this time even without a wake-up. */
#define AGAIN (5 * GATE_MILLISECOND)

static struct lane *_Atomic lanes[MOST_DEVICES];
static atomic_int wanted = -1; /* whether any GPU has a limit of cores; -1: unknown */
static atomic_bool ending;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

bool lanes_any(void)
{
	int known = atomic_load_explicit(&wanted, memory_order_relaxed);
	if (known < 0) {
		bool final = limits_known();
		const struct limits *l = limits_get();
		known = 0;
		for (int i = 0; l && i < l->count; i++)
			known = known || l->devices[i].cores;
		if (final)
			atomic_store(&wanted, known);
	}
	return known;
}

struct lane *lanes_get(int limit)
{
	return atomic_load_explicit(&lanes[limit], memory_order_acquire);
}

/* NULL: out of memory, so the process is not limited. */
static struct lane *make(int limit)
{
	pthread_mutex_lock(&making);
	struct lane *l = lanes_get(limit);
	struct seat *seat = l ? NULL : seats_of(limit);
	if (!l && seat && (l = calloc(1, sizeof *l))) {
		pthread_mutex_init(&l->lock, NULL);
		l->seat = seat;
		l->gate.mean = GATE_FIRST_MEAN;
		atomic_store(&l->mean, GATE_FIRST_MEAN);
		atomic_store(&l->batch, 1);
		for (int i = 0; i < MOST_MARKS; i++)
			l->marks[i].next = i + 1 < MOST_MARKS ? i + 1 : NO_MARK;
		atomic_store_explicit(&lanes[limit], l, memory_order_release);
	}
	pthread_mutex_unlock(&making);
	return l;
}

static void await(atomic_uint *futex, unsigned int seen, int64_t nanoseconds)
{
	struct timespec t = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
	syscall(SYS_futex, futex, FUTEX_WAIT_PRIVATE, seen, nanoseconds < 0 ? NULL : &t, NULL, 0);
}

static void wake(atomic_uint *futex)
{
	atomic_fetch_add(futex, 1);
	syscall(SYS_futex, futex, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

/* Computes the slot again when it is old, and the numbers by which launches pass without the lock. The caller holds the lock. */
static void arrange(struct lane *l, int64_t now, const struct gate_account *account)
{
	int64_t next;
	seats_arrange(l->seat, now, &l->gate.slot);
	int64_t left = gate_left(&l->gate.slot, now, &next), valid = now + VALID;
	bool debt = account->paid > now && l->gate.slot.rate < 1;
	atomic_store(&l->mean, l->gate.mean);
	atomic_store(&l->credit, left == GATE_ALWAYS ? 0 : account->credit);
	atomic_store(&l->slot_end, left == GATE_ALWAYS ? GATE_ALWAYS / 2 : now + left);
	atomic_store(&l->open_until, debt || left <= 0 ? 0 : left < VALID ? now + left : valid);
	int64_t batch = APART / l->gate.mean;
	atomic_store(&l->batch, (int)(batch < 1 ? 1 : batch > MOST_BATCH ? MOST_BATCH : batch));
}

/* Reads the GPU's progress and charges it. The caller holds the lock. Returns true when a waiting launch should check again. */
static bool tick(struct lane *l)
{
	int64_t now = seats_now(), since = atomic_load(&l->since), opened = l->gate.opened, had = atomic_load(&l->stalled);
	struct ended ended = streams_look(l, now);
	int out = atomic_load(&l->out);
	bool waiting = atomic_load(&l->waiting) > 0;
	seats_arrange(l->seat, now, &l->gate.slot);
	gate_tick(&l->gate, l->seat->page, now, since, ended.launches, ended.born, out);
	if (out <= 0)
		atomic_compare_exchange_strong(&l->since, &since, 0);
	if (out > 0 || waiting)
		atomic_store(&l->active, now);
	seats_promise(l->seat, now, out > 0 || waiting, out > 0);
	struct gate_account account = seats_account(now);
	arrange(l, now, &account);
	return waiting && (ended.launches > 0 || l->gate.opened != opened || (had && now - had >= GATE_PERIOD / 2));
}

/* The thread. */
static void *attend(void *argument)
{
	struct lane *l = argument;
	capture_relax(); /* for good */
	while (!atomic_load(&ending)) {
		unsigned int seen = atomic_load(&l->call);
		pthread_mutex_lock(&l->lock);
		bool news = tick(l);
		pthread_mutex_unlock(&l->lock);
		if (news)
			wake(&l->news);
		bool waiting = atomic_load(&l->waiting) > 0;
		if (atomic_load(&l->out) > 0 || waiting || seats_now() - atomic_load(&l->active) < GATE_LINGER) {
			await(&l->call, seen, waiting ? OFTEN : SELDOM);
			continue;
		}
		atomic_store(&l->asleep, true);
		if (atomic_load(&l->out) <= 0 && !atomic_load(&l->waiting) && !atomic_load(&ending))
			await(&l->call, seen, -1);
		atomic_store(&l->asleep, false);
	}
	return NULL;
}

/* The library must load without pthread_create: before glibc 2.34 only programs with threads have it. */
static int create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *argument)
{
#ifdef UNIT
	return pthread_create(t, a, run, argument);
#else
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = real_thread();
	return real ? real(t, a, run, argument) : ENOSYS;
#endif
}

/* Our calls must not run while the driver shuts down. */
static void end(void)
{
	struct lane *l;
	atomic_store(&ending, true);
	for (int i = 0; i < MOST_DEVICES; i++)
		if ((l = lanes_get(i))) {
			wake(&l->call);
			wake(&l->news);
		}
}

/* Starts the thread. The caller holds the lock. */
static void start(struct lane *l)
{
	static atomic_flag once = ATOMIC_FLAG_INIT;
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, had;
	if (l->running || atomic_load(&l->unlimited))
		return;
	if (!atomic_flag_test_and_set(&once))
		atexit(end); /* registered after the driver was loaded, so it runs before the driver's handler */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &had); /* signals are for the program's own threads */
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	l->running = create(&thread, &attributes, attend, l) == 0;
	sigprocmask(SIG_SETMASK, &had, NULL);
	if (!l->running) {
		words_once("no thread could be started: this process is not held to its percentage of the cores");
		atomic_store(&l->unlimited, true);
	}
}

/* The last progress, on any GPU, of the stream without progress for the longest time. */
static int64_t stalled(void)
{
	int64_t oldest = 0;
	for (int i = 0; i < MOST_DEVICES; i++) {
		struct lane *l = lanes_get(i);
		int64_t one = l ? atomic_load(&l->stalled) : 0;
		if (one && (!oldest || one < oldest))
			oldest = one;
	}
	return oldest;
}

/* Counts a launch that passes. */
static void enter(struct lane *l, int64_t now)
{
	if (atomic_fetch_add(&l->out, 1) <= 0)
		atomic_store(&l->since, now);
}

/* Waits at the gate. Returns false when the process is not limited. */
static bool queue(struct lane *l, CUcontext context, CUstream stream)
{
	struct gate_wait w = {.came = seats_now()};
	atomic_fetch_add(&l->waiting, 1);
	pthread_mutex_lock(&l->lock);
	start(l);
	for (bool first = true;; first = false) {
		if (atomic_load(&ending) || atomic_load(&l->unlimited))
			break;
		int64_t now = seats_now(), next;
		struct gate_account account = seats_account(now);
		struct stream *s = streams_find(l, context, stream);
		arrange(l, now, &account);
		w.drained = !s || atomic_load(&s->outstanding) <= 0;
		if (gate_look(&l->gate, now, atomic_load(&l->out), &account, stalled(), &w)) {
			enter(l, now);
			atomic_fetch_sub(&l->waiting, 1);
			pthread_mutex_unlock(&l->lock);
			return true;
		}
		int64_t left = gate_left(&l->gate.slot, now, &next), sleep = left <= 0 && next < AGAIN ? next : AGAIN;
		unsigned int seen = atomic_load(&l->news);
		pthread_mutex_unlock(&l->lock);
		if (first)
			wake(&l->call); /* a kernel may have ended */
		await(&l->news, seen, sleep);
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	atomic_fetch_sub(&l->waiting, 1);
	return false;
}

/* Reports whether a launch passes by the numbers of the last check. */
static bool passes(struct lane *l, int64_t now)
{
	int64_t ahead = (int64_t)(atomic_load_explicit(&l->out, memory_order_relaxed) + 1) * atomic_load_explicit(&l->mean, memory_order_relaxed);
	return now < atomic_load_explicit(&l->open_until, memory_order_relaxed) && ahead <= GATE_AHEAD &&
	       ahead <= atomic_load_explicit(&l->slot_end, memory_order_relaxed) - now + atomic_load_explicit(&l->credit, memory_order_relaxed);
}

/* Counts a launch of a stream. Returns the number of launches without an event. */
static int count(struct stream *s)
{
	atomic_fetch_add(&s->outstanding, 1);
	return atomic_fetch_add(&s->unmarked, 1) + 1;
}

void cores_begin(struct launch *l, CUstream stream, bool per_thread)
{
	l->lane = NULL;
	if (!lanes_any())
		return;
	int limit = limit_of_current(&l->context);
	if (limit < 0 || !limits_get()->devices[limit].cores)
		return;
	struct lane *lane = lanes_get(limit);
	if (!lane && !(lane = make(limit)))
		return;
	int64_t now = seats_now();
	l->stream = streams_name(stream, per_thread);
	if (passes(lane, now))
		enter(lane, now);
	else if (!queue(lane, l->context, l->stream))
		return;
	l->lane = lane;
}

CUresult cores_end(const struct launch *launch, CUresult r)
{
	struct lane *l = launch->lane;
	if (!l)
		return r;
	if (r != CUDA_SUCCESS) {
		atomic_fetch_sub(&l->out, 1);
		return r;
	}
	/* Only this thread can record an event in its own stream, so it does so now. */
	int batch = streams_nameless(launch->stream) ? 1 : atomic_load_explicit(&l->batch, memory_order_relaxed);
	struct stream *s = streams_find(l, launch->context, launch->stream);
	if (!s || count(s) >= batch) {
		pthread_mutex_lock(&l->lock);
		if (!s && (s = streams_make(l, launch->context, launch->stream)))
			count(s);
		if (s)
			streams_mark(l, s, seats_now());
		else
			atomic_fetch_sub(&l->out, 1); /* too many streams: it is not charged */
		pthread_mutex_unlock(&l->lock);
	}
	if (atomic_load(&l->asleep))
		wake(&l->call);
	return r;
}

/* The child has no GPU work and none of the parent's threads. */
static void forget_cores(void)
{
	for (int i = 0; i < MOST_DEVICES; i++)
		atomic_store(&lanes[i], NULL);
	pthread_mutex_init(&making, NULL);
	atomic_store(&wanted, -1);
	seats_forget();
}
FORGET_IN_CHILD(forget_cores);
