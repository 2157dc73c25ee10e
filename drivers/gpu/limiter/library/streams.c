/* The streams of launches, the events behind them, and what happens to both when streams and contexts end or a stream is captured. */
#define _GNU_SOURCE
#include <string.h>

#include "cores.h"
#include "devices.h"
#include "hooks.h"
#include "lanes.h"

#define PROBES 8

/* Reports whether a stream is captured. If unknown, it counts as captured: an event there could end a capture. */
static bool capturing(CUstream s)
{
	CUresult (*ask)(CUstream, int *) = REAL(cuda, cuStreamIsCapturing);
	int status = 0;
	return ask && (ask(s, &status) != CUDA_SUCCESS || status != 0);
}

static void destroy(CUevent e)
{
	CUresult (*real)(CUevent) = REAL(cuda, cuEventDestroy_v2);
	if (e && real)
		real(e);
}

/* A thread's own stream is one of many: no other thread can name it. */
#define NAMELESS 32

CUstream streams_name(CUstream stream, bool per_thread)
{
	uintptr_t name = stream ? (uintptr_t)stream : per_thread ? STREAM_PER_THREAD : STREAM_LEGACY;
	if (name == STREAM_PER_THREAD)
		name = (uintptr_t)0xff << 56 | ((uintptr_t)pthread_self() >> 12) % NAMELESS;
	return (CUstream)name;
}

bool streams_nameless(CUstream name)
{
	return (uintptr_t)name >> 56 == 0xff;
}

static unsigned int hash(CUcontext context, uintptr_t stream)
{
	return (unsigned int)(((stream ^ (uint64_t)(uintptr_t)context << 7) * 0x9e3779b97f4a7c15u) >> 56);
}

struct stream *streams_find(struct lane *l, CUcontext context, CUstream stream)
{
	for (unsigned int i = hash(context, (uintptr_t)stream), end = i + PROBES; i < end; i++) {
		struct stream *s = &l->streams[i % MOST_STREAMS];
		if (atomic_load_explicit(&s->context, memory_order_acquire) == (uintptr_t)context &&
		    atomic_load_explicit(&s->stream, memory_order_acquire) == (uintptr_t)stream)
			return s;
	}
	return NULL;
}

struct stream *streams_make(struct lane *l, CUcontext context, CUstream stream)
{
	struct stream *s = streams_find(l, context, stream);
	for (unsigned int i = hash(context, (uintptr_t)stream), end = i + PROBES; !s && i < end; i++)
		if (!atomic_load(&l->streams[i % MOST_STREAMS].stream)) {
			s = &l->streams[i % MOST_STREAMS];
			s->first = s->last = NO_MARK;
			s->begun = s->progress = 0;
			atomic_store(&s->context, (uintptr_t)context);
			atomic_store(&s->stream, (uintptr_t)stream);
		}
	return s;
}

/* Takes a free mark of a context, with an event; NO_MARK: none. */
static int take(struct lane *l, CUcontext context)
{
	CUresult (*create)(CUevent *, unsigned int) = REAL(cuda, cuEventCreate);
	int *from = &l->free;
	/* Prefer free ones of this context, if one of the first few is. */
	for (int i = 0, *at = &l->free; i < 8 && *at != NO_MARK; i++, at = &l->marks[*at].next)
		if (l->marks[*at].context == context) {
			from = at;
			break;
		}
	int found = *from;
	if (found == NO_MARK)
		return NO_MARK;
	struct mark *m = &l->marks[found];
	*from = m->next;
	if (m->event && m->context != context) {
		destroy(m->event);
		m->event = NULL;
	}
	m->context = context;
	if (!m->event) {
		int mode = capture_relax();
		if (!create || create(&m->event, EVENT_WITHOUT_TIME) != CUDA_SUCCESS)
			m->event = NULL;
		capture_restore(mode);
	}
	return found;
}

static void put(struct lane *l, int mark)
{
	l->marks[mark].next = l->free;
	l->free = mark;
}

/* Launches that cannot be observed further. */
static void forget_launches(struct lane *l, struct stream *s, int launches)
{
	atomic_fetch_sub(&s->unmarked, launches);
	atomic_fetch_sub(&s->outstanding, launches);
	atomic_fetch_sub(&l->out, launches);
}

void streams_mark(struct lane *l, struct stream *s, int64_t now)
{
	CUresult (*record)(CUevent, CUstream) = REAL(cuda, cuEventRecord);
	uintptr_t stream = atomic_load(&s->stream);
	CUstream named = streams_nameless((CUstream)stream) ? (CUstream)STREAM_PER_THREAD : (CUstream)stream;
	int launches = atomic_load(&s->unmarked);
	if (!launches)
		return;
	if (!record || capturing(named)) {
		forget_launches(l, s, launches);
		return;
	}
	int i = take(l, (CUcontext)atomic_load(&s->context));
	if (i == NO_MARK) {
		if (streams_nameless((CUstream)stream)) /* its thread may not come back */
			forget_launches(l, s, launches);
		return;
	}
	struct mark *m = &l->marks[i];
	if (!m->event || record(m->event, named) != CUDA_SUCCESS) {
		put(l, i);
		forget_launches(l, s, launches);
		return;
	}
	atomic_fetch_sub(&s->unmarked, launches);
	m->launches = launches;
	m->born = now;
	m->next = NO_MARK;
	if (s->first == NO_MARK) {
		s->first = i;
		s->begun = now;
	} else {
		l->marks[s->last].next = i;
	}
	s->last = i;
}

/* Removes ended launches from a stream. The thread's context becomes that of the stream. */
static void reap(struct lane *l, struct stream *s, int64_t now, CUcontext *current, struct ended *out)
{
	CUresult (*set)(CUcontext) = REAL(cuda, cuCtxSetCurrent);
	CUresult (*query)(CUevent) = REAL(cuda, cuEventQuery);
	CUcontext context = (CUcontext)atomic_load(&s->context);
	if (*current != context && (!set || set(context) != CUDA_SUCCESS))
		query = NULL; /* the context is gone, with its work */
	*current = context;
	while (s->first != NO_MARK) {
		struct mark *m = &l->marks[s->first];
		int i = s->first;
		if (query && query(m->event) == CUDA_ERROR_NOT_READY)
			break; /* any other error is one of the context, which has no work to wait for */
		s->first = m->next;
		s->progress = now;
		s->begun = s->first == NO_MARK ? 0 : l->marks[s->first].born;
		out->born = !out->launches || m->born < out->born ? m->born : out->born;
		out->launches += m->launches;
		atomic_fetch_sub(&s->outstanding, m->launches);
		atomic_fetch_sub(&l->out, m->launches);
		put(l, i);
	}
}

/*
 * Reports whether the thread may record an event in a stream. In the legacy default stream it would be a barrier between the work of other
 * streams, which the program did not request: kernels of two streams that wait for each other would hang.
 */
static bool recordable(struct lane *l, struct stream *s)
{
	uintptr_t name = atomic_load(&s->stream);
	return !streams_nameless((CUstream)name) && (name != STREAM_LEGACY || atomic_load(&l->out) <= atomic_load(&s->outstanding));
}

struct ended streams_look(struct lane *l, int64_t now)
{
	struct ended out = {0};
	CUcontext current = NULL;
	int64_t oldest = 0;
	for (int i = 0; i < MOST_STREAMS && atomic_load(&l->out) > 0; i++) {
		struct stream *s = &l->streams[i];
		if (atomic_load_explicit(&s->outstanding, memory_order_relaxed) <= 0)
			continue;
		reap(l, s, now, &current, &out);
		if (s->first == NO_MARK && recordable(l, s))
			streams_mark(l, s, now);
		int64_t life = s->progress > s->begun ? s->progress : s->begun;
		if (s->first != NO_MARK && (!oldest || life < oldest))
			oldest = life;
	}
	atomic_store(&l->stalled, oldest);
	return out;
}

CUresult cores_capture(CUresult (*begin)(CUstream, int), CUstream stream, int mode)
{
	struct lane *l;
	bool held[MOST_DEVICES] = {false};
	if (!lanes_any())
		return begin(stream, mode);
	int64_t now = seats_now();
	for (int i = 0; i < MOST_DEVICES; i++)
		if ((l = lanes_get(i))) {
			pthread_mutex_lock(&l->lock);
			held[i] = true;
		}
	/* Launches before the capture are still awaited. */
	for (int i = 0; i < MOST_DEVICES; i++)
		for (int j = 0; held[i] && j < MOST_STREAMS; j++)
			if (atomic_load(&lanes_get(i)->streams[j].stream) == (uintptr_t)stream)
				streams_mark(lanes_get(i), &lanes_get(i)->streams[j], now);
	CUresult r = begin(stream, mode);
	for (int i = MOST_DEVICES - 1; i >= 0; i--)
		if (held[i])
			pthread_mutex_unlock(&lanes_get(i)->lock);
	return r;
}

/* Forgets a stream and its launches. */
static void clear(struct lane *l, struct stream *s)
{
	while (s->first != NO_MARK) {
		int i = s->first;
		s->first = l->marks[i].next;
		put(l, i);
	}
	atomic_fetch_sub(&l->out, atomic_exchange(&s->outstanding, 0));
	atomic_store(&s->unmarked, 0);
	atomic_store(&s->stream, 0);
	atomic_store(&s->context, 0);
}

/* A destroyed stream finishes its work. Another one may get its handle: its launches then come behind these. */
void cores_forget_stream(CUstream stream)
{
	struct lane *l;
	if (!lanes_any())
		return;
	int64_t now = seats_now();
	for (int i = 0; i < MOST_DEVICES; i++) {
		if (!(l = lanes_get(i)))
			continue;
		pthread_mutex_lock(&l->lock);
		for (int j = 0; j < MOST_STREAMS; j++) {
			struct stream *s = &l->streams[j];
			if (!stream || atomic_load(&s->stream) != (uintptr_t)stream)
				continue;
			if (!atomic_load(&s->outstanding)) {
				clear(l, s);
				continue;
			}
			streams_mark(l, s, now);
			forget_launches(l, s, atomic_load(&s->unmarked)); /* no event can be recorded for them later */
		}
		pthread_mutex_unlock(&l->lock);
	}
}

void cores_forget_context(CUcontext context)
{
	struct lane *l;
	if (!context || !lanes_any())
		return;
	for (int i = 0; i < MOST_DEVICES; i++) {
		if (!(l = lanes_get(i)))
			continue;
		pthread_mutex_lock(&l->lock);
		for (int j = 0; j < MOST_STREAMS; j++)
			if (atomic_load(&l->streams[j].stream) && atomic_load(&l->streams[j].context) == (uintptr_t)context)
				clear(l, &l->streams[j]);
		for (int j = 0; j < MOST_MARKS; j++)
			if (l->marks[j].event && l->marks[j].context == context) {
				destroy(l->marks[j].event);
				l->marks[j].event = NULL;
			}
		pthread_mutex_unlock(&l->lock);
	}
}
