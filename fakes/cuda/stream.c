/*
 * Streams with kernels that end on more than their time (module.c). CUDA promises no order between streams, and a kernel that spins on
 * memory until another one, of the same process or of another GPU, has written there is what NCCL's are; here they spin on flags that all
 * processes of the node have in common, in ROOT/state/flags. A kernel that spins takes none of the GPU's time from others here, which a
 * real one does.
 *
 * Nothing runs by itself: waiting work is looked at whenever the process asks how far a stream, an event or a context is, or launches.
 */
#define _GNU_SOURCE
#include "stream.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "event.h"
#include "state.h"
#include "stock.h"

/* An entry of a stream: a kernel, or an event. */
struct work {
	struct kernel kernel;
	struct event *event; /* NULL: it is a kernel */
	bool ran;	     /* the kernel had its time, and is left to wait */
	unsigned long long value;
	struct work *next;
};

struct stream {
	struct context *context;
	bool legacy;
	unsigned long long until; /* microseconds since the epoch */
	struct work *first, *last;
	struct stream *next;
};

/* The flags of the node. */
static struct flag {
	_Atomic unsigned long long set, waited, arrived;
} *flags;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static int waiting; /* streams with work that waits */

static void open_flags(void)
{
	static struct flag own[KERNEL_FLAGS];
	char path[PATH_MAX + 16];
	void *at = MAP_FAILED;
	if (flags)
		return;
	if (ff_state_root(path)) {
		strcat(path, "/state/flags");
		int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
		if (file >= 0 && ftruncate(file, sizeof own) == 0)
			at = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (file >= 0)
			close(file);
	}
	flags = at == MAP_FAILED ? own : at; /* this process alone has them where it may not write there */
}

/* The stream of a name; that of the legacy stream, and of a thread's own, is the context's. The caller has the lock. */
static struct stream *find(struct context *c, CUstream name)
{
	struct stream *s;
	if ((uintptr_t)name > 2)
		return name;
	for (s = streams; s; s = s->next)
		if (s->legacy && s->context == c)
			return s;
	if ((s = calloc(1, sizeof *s))) {
		*s = (struct stream){.context = c, .legacy = true, .next = streams};
		streams = s;
	}
	return s;
}

/* Has a kernel run, and returns what of it is left: whether it waits. */
static bool begin(struct stream *s, struct work *w, CUresult *r)
{
	struct flag *f = &flags[w->kernel.flag];
	unsigned long long before = s->context->busy_until;
	*r = launch_run(s->context, w->kernel.microseconds);
	if (*r != CUDA_SUCCESS)
		return false;
	s->until = s->context->busy_until > before ? s->context->busy_until : launch_now();
	w->ran = true;
	if (w->kernel.waits == KERNEL_WAITS)
		w->value = atomic_fetch_add(&f->waited, 1) + 1;
	return w->kernel.waits != KERNEL_ENDS;
}

/* Whether a kernel that had its time ends now. */
static bool ends(struct stream *s, struct work *w)
{
	struct flag *f = &flags[w->kernel.flag];
	if (launch_now() < s->until)
		return false;
	switch (w->kernel.waits) {
	case KERNEL_WAITS:
		return atomic_load(&f->set) >= w->value;
	case KERNEL_MEETS:
		if (!w->value)
			w->value = (atomic_fetch_add(&f->arrived, 1) / w->kernel.parties + 1) * w->kernel.parties;
		return atomic_load(&f->arrived) >= w->value;
	case KERNEL_SETS:
		atomic_fetch_add(&f->set, 1);
		return true;
	default:
		return true;
	}
}

static void advance(struct stream *s)
{
	CUresult r;
	while (s->first) {
		struct work *w = s->first;
		if (w->event) {
			w->event->at = s->until > launch_now() ? s->until : launch_now();
			w->event->waits = false;
		} else if (!w->ran && begin(s, w, &r)) {
			continue;
		} else if (w->ran && w->kernel.waits != KERNEL_ENDS) {
			if (!ends(s, w))
				return;
			s->until = launch_now();
		}
		s->first = w->next;
		free(w);
	}
	s->last = NULL;
	waiting--;
}

static void advance_all(void)
{
	for (struct stream *s = streams; waiting && s; s = s->next)
		if (s->first)
			advance(s);
}

void streams_advance(void)
{
	pthread_mutex_lock(&lock);
	advance_all();
	pthread_mutex_unlock(&lock);
}

static CUresult push(struct stream *s, const struct work *what)
{
	struct work *w = malloc(sizeof *w);
	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*w = *what;
	waiting += !s->first;
	if (s->first)
		s->last->next = w;
	else
		s->first = w;
	s->last = w;
	return CUDA_SUCCESS;
}

CUresult streams_run(struct context *c, CUstream name, const struct kernel *k)
{
	pthread_mutex_lock(&lock);
	open_flags();
	advance_all();
	struct stream *s = find(c, name);
	struct work w = {.kernel = *k};
	CUresult r = s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (s && (s->first || begin(s, &w, &r)))
		r = push(s, &w);
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult streams_record(struct context *c, CUstream name, struct event *e)
{
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	advance_all();
	struct stream *s = find(c, name);
	if (s && s->first) {
		e->waits = true;
		r = push(s, &(struct work){.event = e});
	} else {
		unsigned long long now = launch_now(), end = c->busy_until;
		e->waits = false;
		e->at = end > now ? end : now; /* the GPU does what has its time in the order of the launches */
	}
	pthread_mutex_unlock(&lock);
	return r;
}

bool streams_wait(struct context *c, CUstream name, bool all)
{
	pthread_mutex_lock(&lock);
	advance_all();
	struct stream *one = find(c, name);
	bool some = one && one->first;
	for (struct stream *s = streams; all && s; s = s->next)
		some = some || (s->context == c && s->first);
	pthread_mutex_unlock(&lock);
	return some;
}

CUstream streams_new(struct context *c)
{
	struct stream *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	pthread_mutex_lock(&lock);
	*s = (struct stream){.context = c, .next = streams};
	streams = s;
	pthread_mutex_unlock(&lock);
	return s;
}

struct context *streams_context(CUstream s)
{
	return s->context;
}

void streams_forget(const struct event *e)
{
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s; s = s->next)
		for (struct work **w = &s->first; *w;) {
			struct work *gone = *w;
			if (gone->event != e || !e) {
				w = &gone->next;
				continue;
			}
			*w = gone->next;
			free(gone);
		}
	for (struct stream *s = streams; s; s = s->next) {
		waiting -= s->last && !s->first;
		s->last = s->first;
		while (s->last && s->last->next)
			s->last = s->last->next;
	}
	pthread_mutex_unlock(&lock);
}
