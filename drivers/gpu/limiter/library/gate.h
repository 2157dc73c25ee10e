/*
 * Decides whether a process may launch on a GPU now, from a time, the container's page and its place among the containers of the GPU. It
 * reads no clock, makes no system call and calls no driver: cores.c does, and so does the simulation in the tests.
 *
 * A container with p percent has a slot in each period of the node's clock (CLOCK_MONOTONIC), and a budget.
 *
 *   S       p + the percentages of the other containers that want the GPU and are not in debt (lending), or 1 (no lending)
 *   slot    from PERIOD * (percentages before it in the node's order) / S, PERIOD * p / S long; the whole period if S = p
 *   budget  grows by r = p / S, up to BURST, and falls by 1 / k for each of its processes with work on the GPU, where k processes have work
 *   debt    from level <= -DEBT until a time that is fixed then: -level / r later
 *
 * A launch passes if one of these holds, with n outstanding launches of m each:
 *
 *   1. it is not in debt, is in its slot, and (n + 1) m fits into the rest of the slot plus the saved budget, and into AHEAD; below two
 *      outstanding launches AHEAD does not count; a kernel longer than the slot starts in its first half, alone;
 *   2. its own stream has drained, and a stream of the process, on any GPU, has work without a completion for STALL: a kernel there may
 *      wait for this launch. In debt, that time doubles with each such launch, up to a second;
 *   3. it came before a debt that has ended: it passes once, before the budget is checked again;
 *   4. completions kept it from its slot for COMPLETIONS;
 *   5. it has waited for five periods, not in debt: slots move when S changes. With launches outstanding, COMPLETIONS longer.
 *
 * A charge outside the slot is refunded when a kernel that was launched earlier ends shortly after the slot began: it waited for another
 * process.
 *
 * Why every chain of waits is finite: a launch waits for a phase of a clock (5: at most five periods), for an end that was fixed when the
 * budget closed and that never moves later for those who wait (3: the debt / r, at most ten minutes), and for completions of launches ahead
 * of it (4, 5: bounded). It does not wait for another process, another process's lock, a message, or a kernel without bound. So each launch
 * reaches the driver in finite time, whatever is stopped, and a chain of kernels that wait for launches behind kernels ends after finitely
 * many finite waits. Inside a process, rule 2 limits each link to STALL, in debt to a second. A launch behind work of its own stream is not
 * needed before that work has ended, so rule 2 excludes it: otherwise two streams of long kernels would escape the limit. But the launching
 * thread may be the one that lets that work continue (cuStreamWaitValue, a host function), so after BLOCKED without a completion rule 2
 * holds for it too.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_MILLISECOND 1000000ll
#define GATE_PERIOD (40 * GATE_MILLISECOND)
#define GATE_ALWAYS INT64_MAX

/* The lifetime of a process's promise that it wants the GPU or has work there. A dead process needs no other cleaning up. */
#define GATE_LEASE (100 * GATE_MILLISECOND)
/* A process still wants a GPU for this long after its last work there. */
#define GATE_LINGER (10 * GATE_MILLISECOND)

#define GATE_PAGE 4096
#define GATE_MAGIC 0x53504647u
#define GATE_VERSION 1u
#define GATE_NAME 16
#define GATE_PROCESSES 60

/* A process's promises in its container's page. */
struct gate_process {
	_Atomic int64_t owner; /* the owner's ID; 0: free */
	_Atomic int64_t wants_until, busy_until;
	int64_t unused[5];
};

/*
 * A container's page for a GPU. Its processes write it; processes of the GPU's other containers read its first 128 bytes. Times are
 * CLOCK_MONOTONIC in nanoseconds. gpufabric.io/drivers/gpu/cores creates it.
 */
struct gate_page {
	uint32_t magic, version;
	char name[GATE_NAME]; /* the container's number in the order */
	int64_t unused[5];
	_Atomic int64_t wants_until, busy_until; /* of any process */
	_Atomic int64_t busy;			 /* processes with work there, valid until busy_until */
	_Atomic int64_t shut_until;		 /* in debt until then; 0: not in debt */
	int64_t unused_too[4];
	_Atomic int64_t level, at;     /* the budget, and the time up to which it has grown; 0: never */
	_Atomic int64_t shut_at;       /* when the debt began */
	_Atomic int64_t charged;       /* everything ever taken from the budget */
	_Atomic int64_t start, length; /* of the slot, for the container's processes on other GPUs; length 0: unknown */
	int64_t unused_end[10];
	struct gate_process processes[GATE_PROCESSES];
};

/* A container on the GPU, in the node's order. */
struct gate_member {
	unsigned int percent;
	bool wants, debt;
	int busy; /* processes with work there */
};

/* A container's slot in the period, its part of the time, and the number of busy processes of other containers. */
struct gate_slot {
	int64_t start, length;
	double rate;
	int others;
};

/* A process on a GPU. Zeroed, with mean set, it has not launched yet. */
struct gate {
	struct gate_slot slot;
	int64_t mean;	  /* time of a launch */
	int64_t ended;	  /* the last completion */
	int64_t settled;  /* the budget was charged up to this time */
	int64_t opened;	  /* beginning of the current slot */
	int64_t outside;  /* charged outside the slot since it ended */
	bool inside;	  /* in the slot at the last check */
	bool indebted;	  /* in debt at the last check */
	int passes;	  /* launches that passed by rule 2 in this debt */
	int64_t passed;	  /* time of the last of them */
};

/* A waiting launch. drained: its own stream has no work. */
struct gate_wait {
	int64_t came;
	int64_t promise; /* end of the debt in which it came; 0: none */
	int64_t free;	 /* since when it is not in debt; 0: in debt */
	bool drained;
};

/*
 * The budget of a container over all its GPUs, which pause together: otherwise ranks that wait for each other would pause one after
 * another.
 */
struct gate_account {
	int64_t paid;	/* in debt on any of them until then; 0: not in debt */
	int64_t credit; /* the smallest saved budget that launches may use past the end of the slot */
};

#define GATE_FIRST_MEAN GATE_MILLISECOND

/* Computes the place of one of the GPU's containers. */
void gate_arrange(const struct gate_member *all, int count, int self, bool lend, struct gate_slot *out);

/* The place of a container without a known order: no slot, and its percentage. */
void gate_alone(unsigned int percent, struct gate_slot *out);

/* Reports whether two slots overlap by at least half of the shorter one. */
bool gate_overlap(int64_t start, int64_t length, int64_t other_start, int64_t other_length);

/*
 * Returns the rest of the slot; GATE_ALWAYS: no end; negative: the time since its end. until_next is the time until the next slot begins.
 */
int64_t gate_left(const struct gate_slot *s, int64_t now, int64_t *until_next);

/*
 * Takes the launches seen since the last call: done of them ended, the oldest of these was made at born, and out are left. since is when
 * the first launch was made after none was outstanding; 0: none yet. Lets the budget grow, charges the process, and begins a debt.
 */
void gate_tick(struct gate *g, struct gate_page *page, int64_t now, int64_t since, int done, int64_t born, int out);

/* Finds a place for a process among those of its container; -1: all are taken. */
int gate_place(struct gate_page *page, int64_t owner, int64_t now);

/* Renews a process's promises that it wants the GPU, and that it has work there. */
void gate_promise(struct gate_page *page, int place, int64_t now, bool wants, bool busy);

/* Decodes a neighbour from the first bytes of its page. A page of another version counts as empty, and so does an expired promise. */
void gate_read(const struct gate_page *page, int64_t now, struct gate_member *out);

/* Adds a page of the container to its account, which starts as GATE_NO_ACCOUNT. */
#define GATE_NO_ACCOUNT {.credit = GATE_ALWAYS}
void gate_add(struct gate_account *a, const struct gate_page *page, int64_t now);

/*
 * Reports whether a waiting launch passes. out: outstanding launches; stalled: the last progress of the process's stream without progress
 * for the longest time; 0: no stream has work.
 */
bool gate_look(struct gate *g, int64_t now, int out, const struct gate_account *account, int64_t stalled, struct gate_wait *w);

/* The nanoseconds of launches that may be queued ahead of the GPU. */
#define GATE_AHEAD (8 * GATE_MILLISECOND)
