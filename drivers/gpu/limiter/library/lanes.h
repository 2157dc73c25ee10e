/* What the limit of cores has for each GPU (cores.h): its gate, and the events behind what was launched. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda.h"
#include "limits.h"
#include "turns.h"

#define MOST_MARKS 64
#define MOST_TAILS 64

/* An event behind launches. */
struct mark {
	CUevent event;
	CUcontext context;
};

/* The launches into a stream since its last event. */
struct tail {
	_Atomic uintptr_t context, stream; /* stream 0: nobody's */
	atomic_uint unmarked;
};

struct lane {
	pthread_mutex_t lock;
	atomic_uint news;    /* a futex: it changes when somebody who waits should look again */
	atomic_bool open;    /* launches may pass */
	atomic_int inside;   /* launches that passed and have not ended */
	atomic_int waiting;  /* threads before the gate */
	atomic_uint batch;   /* launches to an event */
	atomic_int marked;   /* events that are outstanding */
	atomic_int most;     /* events that may be */
	_Atomic int64_t since; /* when the GPU was given something after it had nothing; 0: it has nothing */
	struct mark marks[MOST_MARKS], spare[MOST_MARKS];
	unsigned int first; /* the oldest of the outstanding ones */
	int spares;
	struct tail tails[MOST_TAILS];
	CUcontext watched; /* the thread waits for an event of this context */
	int64_t seen;	   /* when the last event was over; 0: none was since the GPU had nothing */
	int64_t until;	   /* the end of this turn */
	int64_t worked;	   /* how long the GPU worked in this turn, but for what it does now */
	int64_t apart;	   /* the measured time between two events */
	bool running;	   /* the thread was started */
	atomic_bool unlimited; /* it could not be */
	struct turns turns;
};

#pragma GCC visibility push(hidden)
extern struct lane lanes[MOST_DEVICES];
#pragma GCC visibility pop

/* Whether any GPU has a limit of cores. */
bool lanes_any(void);

/* Records an event in a stream of the calling thread's context. The caller has the lock. False: none was recorded. */
bool lanes_mark(struct lane *l, CUcontext context, CUstream stream, struct tail *t);

void lanes_destroy(CUevent e);

/* Waits for news after those that were seen, for so long at most; below 0: for ever. */
void lanes_sleep(struct lane *l, unsigned int seen, int64_t nanoseconds);
