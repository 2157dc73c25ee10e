/* Streams and contexts that go, and streams that are captured: what was launched into them is still waited for, and nothing else is done to them. */
#define _GNU_SOURCE
#include "cores.h"
#include "lanes.h"

/* Records an event behind a stream's launches, where the tail is the stream's. The caller has the lock. */
static void mark_tail(struct lane *l, struct tail *t, CUstream stream)
{
	if (atomic_load(&t->stream) == (uintptr_t)stream && atomic_load(&t->unmarked))
		lanes_mark(l, (CUcontext)atomic_load(&t->context), stream, t);
}

CUresult cores_capture(CUresult (*begin)(CUstream, int), CUstream stream, int mode)
{
	if (!lanes_any())
		return begin(stream, mode);
	for (int i = 0; i < MOST_DEVICES; i++)
		pthread_mutex_lock(&lanes[i].lock);
	/* What was launched before the capture is still to be waited for. */
	for (int i = 0; i < MOST_DEVICES; i++)
		for (int j = 0; j < MOST_TAILS; j++)
			mark_tail(&lanes[i], &lanes[i].tails[j], stream);
	CUresult r = begin(stream, mode);
	for (int i = MOST_DEVICES - 1; i >= 0; i--)
		pthread_mutex_unlock(&lanes[i].lock);
	return r;
}

static void clear(struct tail *t)
{
	atomic_store(&t->stream, 0);
	atomic_store(&t->context, 0);
	atomic_store(&t->unmarked, 0);
}

void cores_forget_stream(CUstream stream)
{
	if (!lanes_any())
		return;
	for (int i = 0; i < MOST_DEVICES; i++) {
		struct lane *l = &lanes[i];
		pthread_mutex_lock(&l->lock);
		for (int j = 0; j < MOST_TAILS; j++)
			if (atomic_load(&l->tails[j].stream) == (uintptr_t)stream) {
				mark_tail(l, &l->tails[j], stream);
				clear(&l->tails[j]);
			}
		pthread_mutex_unlock(&l->lock);
	}
}

/* Removes the events of a context from a ring or a heap of so many; returns how many stay. */
static int without(struct mark *marks, unsigned int first, int count, CUcontext context)
{
	int stay = 0;
	for (int i = 0; i < count; i++) {
		struct mark m = marks[(first + (unsigned int)i) % MOST_MARKS];
		if (m.context == context)
			lanes_destroy(m.event);
		else
			marks[(first + (unsigned int)stay++) % MOST_MARKS] = m;
	}
	return stay;
}

void cores_forget_context(CUcontext context)
{
	if (!context || !lanes_any())
		return;
	for (int i = 0; i < MOST_DEVICES; i++) {
		struct lane *l = &lanes[i];
		pthread_mutex_lock(&l->lock);
		while (l->watched == context) {
			unsigned int seen = atomic_load(&l->news);
			pthread_mutex_unlock(&l->lock);
			lanes_sleep(l, seen, 1000000);
			pthread_mutex_lock(&l->lock);
		}
		for (int j = 0; j < MOST_TAILS; j++)
			if (atomic_load(&l->tails[j].context) == (uintptr_t)context)
				clear(&l->tails[j]);
		atomic_store(&l->marked, without(l->marks, l->first, atomic_load(&l->marked), context));
		l->spares = without(l->spare, 0, l->spares, context);
		pthread_mutex_unlock(&l->lock);
	}
}
