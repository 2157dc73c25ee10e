#define _GNU_SOURCE
#include "cores.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"
#include "hooks.h"
#include "lanes.h"
#include "words.h"

/* A GPU that did nothing for so long in a turn is given back, in nanoseconds. */
#define IDLE 500000

/* How far ahead of the GPU a process is when its turn ends, and how far apart its events should be, in nanoseconds. Before that it is further ahead, by what is
 * left of its turn: where a busy machine lets the process wait, the GPU goes on. */
#define AHEAD 8000000
#define APART 1000000

#define MOST_BATCH 128
#define PROBES 8

struct lane lanes[MOST_DEVICES] = {[0 ... MOST_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .batch = 1, .most = 2, .turns = {.file = -1}}};
static atomic_int wanted = -1; /* whether any GPU has a limit of cores; -1: not known yet */
static atomic_bool ending;

bool lanes_any(void)
{
	int known = atomic_load_explicit(&wanted, memory_order_relaxed);
	if (known < 0) {
		const struct limits *l = limits_get();
		known = 0;
		for (int i = 0; l && i < l->count; i++)
			known = known || l->devices[i].cores;
		atomic_store(&wanted, known);
	}
	return known;
}

static const struct limit *limit_in(const struct lane *l)
{
	return &limits_get()->devices[l - lanes];
}

void lanes_sleep(struct lane *l, unsigned int seen, int64_t nanoseconds)
{
	struct timespec t = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
	syscall(SYS_futex, &l->news, FUTEX_WAIT_PRIVATE, seen, nanoseconds < 0 ? NULL : &t, NULL, 0);
}

static void tell(struct lane *l)
{
	atomic_fetch_add(&l->news, 1);
	syscall(SYS_futex, &l->news, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

/* Whether a stream only records what it is given. Unknown counts as such: an event there could end somebody's capture. */
static bool capturing(CUstream s)
{
	CUresult (*ask)(CUstream, int *) = REAL(cuda, cuStreamIsCapturing);
	int status = 0;
	return ask && (ask(s, &status) != CUDA_SUCCESS || status != 0);
}

static CUevent event_for(struct lane *l, CUcontext context)
{
	CUresult (*create)(CUevent *, unsigned int) = REAL(cuda, cuEventCreate);
	CUevent e = NULL;
	for (int i = l->spares - 1; i >= 0; i--)
		if (l->spare[i].context == context) {
			e = l->spare[i].event;
			l->spare[i] = l->spare[--l->spares];
			return e;
		}
	return create && create(&e, EVENT_BLOCKING_WITHOUT_TIME) == CUDA_SUCCESS ? e : NULL;
}

void lanes_destroy(CUevent e)
{
	CUresult (*real)(CUevent) = REAL(cuda, cuEventDestroy_v2);
	if (real)
		real(e);
}

static void keep(struct lane *l, struct mark m)
{
	if (l->spares < MOST_MARKS)
		l->spare[l->spares++] = m;
	else
		lanes_destroy(m.event);
}

bool lanes_mark(struct lane *l, CUcontext context, CUstream stream, struct tail *t)
{
	CUresult (*record)(CUevent, CUstream) = REAL(cuda, cuEventRecord);
	int marked = atomic_load(&l->marked);
	if (marked == MOST_MARKS)
		return false; /* it is counted on */
	if (t)
		atomic_store(&t->unmarked, 0);
	if (!record || capturing(stream))
		return false;
	struct mark m = {event_for(l, context), context};
	if (!m.event)
		return false;
	if (record(m.event, stream) != CUDA_SUCCESS) {
		keep(l, m);
		return false;
	}
	l->marks[(l->first + (unsigned int)marked) % MOST_MARKS] = m;
	atomic_store(&l->marked, marked + 1);
	return true;
}

static unsigned int place(CUcontext context, CUstream stream)
{
	return (unsigned int)((((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 7) * 0x9e3779b97f4a7c15u) >> 56);
}

/* The tail of a stream, NULL where it has none. */
static struct tail *tail_of(struct lane *l, CUcontext context, CUstream stream)
{
	for (unsigned int i = place(context, stream), end = i + PROBES; i < end; i++) {
		struct tail *t = &l->tails[i % MOST_TAILS];
		if (atomic_load_explicit(&t->context, memory_order_acquire) == (uintptr_t)context &&
		    atomic_load_explicit(&t->stream, memory_order_acquire) == (uintptr_t)stream)
			return t;
	}
	return NULL;
}

/* Gives a stream a tail. NULL: there is no room, and each launch gets an event. The caller has the lock. */
static struct tail *new_tail(struct lane *l, CUcontext context, CUstream stream)
{
	struct tail *t = tail_of(l, context, stream);
	for (unsigned int i = place(context, stream), end = i + PROBES; !t && i < end; i++)
		if (!atomic_load(&l->tails[i % MOST_TAILS].stream)) {
			t = &l->tails[i % MOST_TAILS];
			atomic_store(&t->unmarked, 0);
			atomic_store(&t->context, (uintptr_t)context);
			atomic_store(&t->stream, (uintptr_t)stream);
		}
	return t;
}

/* Another thread's own stream cannot be named: each launch into one gets its event at once. */
static bool nameless(CUstream s)
{
	return s == (CUstream)STREAM_PER_THREAD;
}

static void count(struct lane *l, CUcontext context, CUstream stream)
{
	struct tail *t = nameless(stream) ? NULL : tail_of(l, context, stream);
	if (t && atomic_fetch_add(&t->unmarked, 1) + 1 < atomic_load_explicit(&l->batch, memory_order_relaxed))
		return;
	pthread_mutex_lock(&l->lock);
	bool first = atomic_load(&l->marked) == 0;
	if (!t && !nameless(stream) && (t = new_tail(l, context, stream)))
		atomic_fetch_add(&t->unmarked, 1);
	bool done = lanes_mark(l, context, stream, t);
	pthread_mutex_unlock(&l->lock);
	if (done && first)
		tell(l);
}

/* Waits for the oldest event. False: there is none. */
static bool reap(struct lane *l)
{
	CUresult (*current)(CUcontext) = REAL(cuda, cuCtxSetCurrent);
	CUresult (*synchronize)(CUevent) = REAL(cuda, cuEventSynchronize);
	pthread_mutex_lock(&l->lock);
	bool some = atomic_load(&l->marked) > 0;
	struct mark m = l->marks[l->first];
	l->watched = some ? m.context : NULL;
	pthread_mutex_unlock(&l->lock);
	if (!some)
		return false;
	if (current && synchronize && current(m.context) == CUDA_SUCCESS)
		synchronize(m.event); /* a context with an error answers at once, and has nothing to wait for */
	int64_t now = turns_now();
	pthread_mutex_lock(&l->lock);
	l->watched = NULL;
	l->first = (l->first + 1) % MOST_MARKS;
	atomic_fetch_sub(&l->marked, 1);
	keep(l, m);
	pthread_mutex_unlock(&l->lock);
	if (l->seen) {
		l->apart = l->apart ? (l->apart * 3 + now - l->seen) / 4 : now - l->seen;
		unsigned int batch = atomic_load(&l->batch);
		if (l->apart < APART / 2 && batch < MOST_BATCH) {
			atomic_store(&l->batch, batch * 2);
			l->apart *= 2;
		} else if (l->apart > 2 * APART && batch > 1) {
			atomic_store(&l->batch, batch / 2);
			l->apart /= 2;
		}
		int64_t most = (AHEAD + (l->until > now ? l->until - now : 0)) / (l->apart ? l->apart : 1);
		atomic_store(&l->most, (int)(most < 2 ? 2 : most > MOST_MARKS / 2 ? MOST_MARKS / 2 : most));
	}
	l->seen = now;
	tell(l);
	return true;
}

/* Records events behind all launches that have none. False: there were no such launches. */
static bool mark_tails(struct lane *l)
{
	CUresult (*current)(CUcontext) = REAL(cuda, cuCtxSetCurrent);
	bool some = false;
	pthread_mutex_lock(&l->lock);
	for (int i = 0; i < MOST_TAILS; i++) {
		struct tail *t = &l->tails[i];
		if (!atomic_load(&t->unmarked))
			continue;
		if (current && current((CUcontext)atomic_load(&t->context)) == CUDA_SUCCESS)
			some = lanes_mark(l, (CUcontext)atomic_load(&t->context), (CUstream)atomic_load(&t->stream), t) || some;
		else
			atomic_store(&t->unmarked, 0);
	}
	pthread_mutex_unlock(&l->lock);
	return some;
}

/* Counts what the GPU did until the last event, after which it has nothing. What is launched in the very moment is not counted, unless more follows. */
static void rest(struct lane *l)
{
	int64_t since = atomic_exchange(&l->since, 0);
	if (since && l->seen > since)
		l->worked += l->seen - since;
}

/* Lets launches pass for a turn, and returns when the turn is over and the GPU has done them. */
static void hold(struct lane *l, int64_t length)
{
	int64_t now = turns_now(), quiet = now;
	l->until = now + length;
	l->seen = l->worked = 0;
	atomic_store(&l->since, 0);
	atomic_store(&l->open, true);
	tell(l);
	while (!atomic_load(&ending)) {
		unsigned int seen = atomic_load(&l->news);
		now = turns_now();
		if (now >= l->until) {
			length = turns_more(&l->turns, limit_in(l));
			if (length <= 0)
				break;
			l->until = now + length;
		}
		if (reap(l)) {
			quiet = turns_now();
			continue;
		}
		if (mark_tails(l))
			continue;
		if (atomic_load(&l->inside))
			quiet = now; /* the GPU may have something already */
		else
			rest(l);
		l->seen = 0; /* what comes next is no time between two events */
		if (now - quiet >= IDLE)
			break;
		lanes_sleep(l, seen, (l->until < quiet + IDLE ? l->until : quiet + IDLE) - now);
	}
	atomic_store(&l->open, false);
	for (;;) {
		unsigned int seen = atomic_load(&l->news);
		if (!atomic_load(&l->inside))
			break;
		lanes_sleep(l, seen, -1);
	}
	while (!atomic_load(&ending) && (reap(l) || mark_tails(l)))
		;
	rest(l);
}

static void *take_turns(void *argument)
{
	CUresult (*exchange)(int *) = REAL(cuda, cuThreadExchangeStreamCaptureMode);
	struct lane *l = argument;
	int mode = CAPTURE_RELAXED;
	if (exchange)
		exchange(&mode); /* so that this thread's calls end nobody's capture */
	while (!atomic_load(&ending)) {
		unsigned int seen = atomic_load(&l->news);
		if (!atomic_load(&l->waiting)) {
			lanes_sleep(l, seen, -1);
			continue;
		}
		hold(l, turns_take(&l->turns, limit_in(l)));
		turns_give(&l->turns, limit_in(l), l->worked);
	}
	return NULL;
}

/* The library must not need pthread_create to be loaded: before glibc 2.34 only programs with threads have it. */
static int create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *argument)
{
#ifdef UNIT
	return pthread_create(t, a, run, argument);
#else
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = real_thread();
	return real ? real(t, a, run, argument) : ENOSYS;
#endif
}

/* The driver's own end must not meet calls of ours. */
static void end(void)
{
	atomic_store(&ending, true);
	for (int i = 0; i < MOST_DEVICES; i++)
		tell(&lanes[i]);
}

static void start(struct lane *l)
{
	static atomic_flag once = ATOMIC_FLAG_INIT;
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, had;
	pthread_mutex_lock(&l->lock);
	if (!l->running && !atomic_load(&l->unlimited)) {
		if (!atomic_flag_test_and_set(&once))
			atexit(end); /* after the driver was loaded, so before its own */
		sigfillset(&all);
		sigprocmask(SIG_SETMASK, &all, &had); /* the program's signals are for its own threads */
		pthread_attr_init(&attributes);
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		l->running = create(&thread, &attributes, take_turns, l) == 0;
		sigprocmask(SIG_SETMASK, &had, NULL);
		if (!l->running) {
			words_once("no thread could be started: this process is not held to its percentage of the cores");
			atomic_store(&l->unlimited, true);
		}
	}
	pthread_mutex_unlock(&l->lock);
}

static bool passes(struct lane *l)
{
	return atomic_load(&l->open) && atomic_load_explicit(&l->marked, memory_order_relaxed) <= atomic_load_explicit(&l->most, memory_order_relaxed);
}

static void step_out(struct lane *l)
{
	if (atomic_fetch_sub(&l->inside, 1) == 1 && !atomic_load(&l->open))
		tell(l);
}

/* Waits before the gate. False: nothing limits the process. */
static bool queue(struct lane *l)
{
	atomic_fetch_add(&l->waiting, 1);
	start(l);
	tell(l);
	while (!atomic_load(&ending) && !atomic_load(&l->unlimited)) {
		unsigned int seen = atomic_load(&l->news);
		if (passes(l))
			break;
		lanes_sleep(l, seen, -1);
	}
	atomic_fetch_sub(&l->waiting, 1);
	return !atomic_load(&ending) && !atomic_load(&l->unlimited);
}

void cores_begin(struct launch *l)
{
	l->lane = NULL;
	if (!lanes_any())
		return;
	int limit = limit_of_current(&l->context);
	if (limit < 0 || !limits_get()->devices[limit].cores)
		return;
	struct lane *lane = &lanes[limit];
	for (;;) {
		atomic_fetch_add(&lane->inside, 1);
		if (passes(lane)) {
			if (!atomic_load_explicit(&lane->since, memory_order_relaxed))
				atomic_store(&lane->since, turns_now());
			l->lane = lane;
			return;
		}
		step_out(lane);
		if (!queue(lane))
			return;
	}
}

CUresult cores_end(const struct launch *l, CUstream stream, bool per_thread, CUresult r)
{
	if (!l->lane)
		return r;
	if (!stream)
		stream = (CUstream)(uintptr_t)(per_thread ? STREAM_PER_THREAD : STREAM_LEGACY);
	if (r == CUDA_SUCCESS)
		count(l->lane, l->context, stream);
	step_out(l->lane);
	return r;
}

/* The child has no turn, and none of the parent's threads. */
static void forked(void)
{
	for (int i = 0; i < MOST_DEVICES; i++) {
		struct turns had = lanes[i].turns;
		turns_forget(&had);
		memset((void *)&lanes[i], 0, sizeof lanes[i]);
		pthread_mutex_init(&lanes[i].lock, NULL);
		lanes[i].turns = had;
		atomic_store(&lanes[i].batch, 1);
		atomic_store(&lanes[i].most, 2);
	}
}

__attribute__((constructor)) static void prepare(void)
{
	pthread_atfork(NULL, NULL, forked);
}
