/* The state of the limit of cores for each GPU on which the process launches (cores.h): its gate, and the events behind launches. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda.h"
#include "gate.h"
#include "limits.h"
#include "seats.h"

#define MOST_MARKS 256
#define MOST_STREAMS 256
#define NO_MARK (-1)

/* An event behind launches of a stream. */
struct mark {
	CUevent event;
	CUcontext context;
	int launches; /* since the previous event */
	int64_t born; /* when it was recorded */
	int next;     /* in the stream, or in the list of free ones */
};

/* A stream with launches. */
struct stream {
	_Atomic uintptr_t context, stream; /* stream 0: nobody's */
	atomic_int unmarked;		   /* launches since the last event */
	atomic_int outstanding;		   /* launches whose end was not seen */
	int first, last;		   /* its marks */
	int64_t begun, progress;	   /* when the oldest of them was recorded, and when the last end was seen */
};

struct lane {
	pthread_mutex_t lock;
	struct seat *seat;
	atomic_uint news;	/* a futex: it changes when a waiting launch should check again */
	atomic_uint call;	/* a futex: it changes when the thread should check */
	atomic_bool asleep;	/* the thread waits only for a call */
	atomic_int out;		/* launches that passed and whose end was not seen */
	atomic_int waiting;	/* launches that wait */
	_Atomic int64_t since;	/* when the first launch passed after none was outstanding; 0: none yet */
	_Atomic int64_t active; /* when a launch was last outstanding or waiting */
	_Atomic int64_t stalled; /* the last progress of the stream without progress for the longest time; 0: none has work */

	/* Until then a launch passes without the lock if the GPU's queue has room. */
	_Atomic int64_t open_until;
	_Atomic int64_t slot_end, credit, mean;
	atomic_int batch; /* launches to an event */

	struct gate gate;
	struct mark marks[MOST_MARKS];
	int free;
	struct stream streams[MOST_STREAMS];
	bool running;	       /* the thread was started */
	atomic_bool unlimited; /* the thread could not be started */
};

#pragma GCC visibility push(hidden)

/* The lane of a limit; NULL: the process has not launched there. */
struct lane *lanes_get(int limit);

/* Reports whether any GPU has a limit of cores. */
bool lanes_any(void);

/* The launches that have ended since the last look. */
struct ended {
	int launches;
	int64_t born; /* the oldest of them */
};

/* The library's name of a stream: the default streams by their handles, a thread's own by one that streams_nameless recognises. */
CUstream streams_name(CUstream stream, bool per_thread);
bool streams_nameless(CUstream name);

/* Assigns a place to a launch's stream; NULL: none is left. The caller holds the lock. */
struct stream *streams_make(struct lane *l, CUcontext context, CUstream stream);

/* Its place; NULL: none. */
struct stream *streams_find(struct lane *l, CUcontext context, CUstream stream);

/*
 * Records an event behind the launches of a stream of the calling thread's context. The caller holds the lock. If that is not possible, as
 * in a capture, the launches are forgotten. Without a free mark they wait for the next one.
 */
void streams_mark(struct lane *l, struct stream *s, int64_t now);

/* Collects ended launches, and records events where launches have none. The caller holds the lock, and may set contexts. */
struct ended streams_look(struct lane *l, int64_t now);

#pragma GCC visibility pop
