#include "gate.h"

#define BURST (30 * GATE_MILLISECOND)
#define DEBT (100 * GATE_MILLISECOND)
#define STALL (20 * GATE_MILLISECOND)
#define LONGEST_STALL (1000 * GATE_MILLISECOND)
/* The same for a launch behind work of its own stream: longer than kernels usually run. */
#define BLOCKED (10000 * GATE_MILLISECOND)
#define COMPLETIONS (250 * GATE_MILLISECOND)
#define LONG_WAIT (5 * GATE_PERIOD)

/* A kernel that ends this soon after the slot began was waiting for another process; and the part that it is charged anyway. */
#define SOON (10 * GATE_MILLISECOND)
#define KEPT (1 * GATE_MILLISECOND)

/* The maximum kernel time that enters the mean, and the maximum time for which the budget grows at once after a pause. */
#define LONGEST (5000 * GATE_MILLISECOND)

/* The maximum length of a debt, whatever the page contains. */
#define LONGEST_DEBT (600000 * GATE_MILLISECOND)

void gate_arrange(const struct gate_member *all, int count, int self, bool lend, struct gate_slot *out)
{
	double own = all[self].percent / 100.0, sum = 0, before = 0;
	out->others = 0;
	for (int i = 0; i < count; i++) {
		if (i != self)
			out->others += all[i].busy;
		if (lend && i != self && (!all[i].wants || all[i].debt))
			continue;
		sum += all[i].percent / 100.0;
		if (i < self)
			before += all[i].percent / 100.0;
	}
	if (!lend && sum < 1)
		sum = 1;
	out->rate = lend ? own / sum : own;
	out->start = (int64_t)(GATE_PERIOD * before / sum);
	out->length = (int64_t)(GATE_PERIOD * own / sum);
	if (out->length >= GATE_PERIOD - 1) {
		out->start = 0;
		out->length = GATE_PERIOD;
	}
}

void gate_alone(unsigned int percent, struct gate_slot *out)
{
	*out = (struct gate_slot){.length = GATE_PERIOD, .rate = percent / 100.0};
}

bool gate_overlap(int64_t start, int64_t length, int64_t other_start, int64_t other_length)
{
	if (other_start < 0 || other_start > GATE_PERIOD || other_length > GATE_PERIOD)
		return true; /* the page's values are impossible */
	int64_t from = start > other_start ? start : other_start;
	int64_t end = start + length, other_end = other_start + other_length, to = end < other_end ? end : other_end;
	return 2 * (to - from) >= (length < other_length ? length : other_length);
}

int64_t gate_left(const struct gate_slot *s, int64_t now, int64_t *until_next)
{
	*until_next = 0;
	if (s->length >= GATE_PERIOD)
		return GATE_ALWAYS;
	int64_t since = now % GATE_PERIOD - s->start;
	if (since < 0)
		since += GATE_PERIOD;
	*until_next = GATE_PERIOD - since;
	return s->length - since;
}

/* Detects the beginning and end of the slot. Returns the rest of the slot. */
static int64_t turn(struct gate *g, int64_t now)
{
	int64_t next, left = gate_left(&g->slot, now, &next);
	bool inside = left > 0;
	if (inside && !g->inside)
		g->opened = left == GATE_ALWAYS ? now : now - (g->slot.length - left);
	if (!inside && g->inside)
		g->outside = 0;
	g->inside = inside;
	return left;
}

static void give(struct gate_page *page, int64_t more)
{
	int64_t level = atomic_load(&page->level), next;
	do
		next = level < BURST - more ? level + more : BURST;
	while (level < BURST && !atomic_compare_exchange_weak(&page->level, &level, next));
}

static void grow(struct gate_page *page, int64_t now, double rate)
{
	int64_t at = atomic_load(&page->at);
	if (at < 0 || at > now + LONGEST) /* from before a boot, or written by the container */
		atomic_compare_exchange_strong(&page->at, &at, now);
	int64_t more = at < 0 || at > now ? 0 : now - at;
	if (more <= 0 || !atomic_compare_exchange_strong(&page->at, &at, now) || at == 0)
		return; /* another process did it, or none has begun */
	give(page, (int64_t)(rate * (double)(more < LONGEST_DEBT ? more : LONGEST_DEBT)));
}


/* The length of a debt. */
static int64_t pause_of(int64_t level, double rate)
{
	double pause = -(double)level / rate;
	return pause < (double)LONGEST_DEBT ? (int64_t)pause : LONGEST_DEBT;
}

/* Begins a debt when the budget is used up, once for all processes. */
static void close_gate(struct gate *g, struct gate_page *page, int64_t now)
{
	int64_t until = atomic_load(&page->shut_until), level = atomic_load(&page->level);
	if (level > -DEBT || until > now || g->slot.rate >= 1 || g->slot.rate <= 0)
		return;
	if (atomic_compare_exchange_strong(&page->shut_until, &until, now + pause_of(level, g->slot.rate)))
		atomic_store(&page->shut_at, now);
}

static void settle(struct gate *g, struct gate_page *page, int64_t now, int64_t worked)
{
	turn(g, now);
	int64_t until = atomic_load(&page->shut_until);
	if (until > now + LONGEST_DEBT && atomic_compare_exchange_strong(&page->shut_until, &until, 0))
		until = 0;
	bool debt = until > now;
	if (g->indebted && !debt) {
		g->outside = 0;
		g->passes = 0;
	}
	g->indebted = debt;
	grow(page, now, g->slot.rate);
	g->settled = now;
	if (worked > 0) {
		int64_t own = atomic_load(&page->busy), all = g->slot.others + (own > 0 && own <= GATE_PROCESSES ? own : 1);
		int64_t use = worked / all;
		atomic_fetch_sub(&page->level, use);
		atomic_fetch_add(&page->charged, use);
		if (!g->inside || debt)
			g->outside += use;
	}
	if (g->slot.rate >= 1 && debt)
		atomic_store(&page->shut_until, 0); /* no other container wants the GPU */
	close_gate(g, page, now);
}

/* Refunds what was charged for a wait, and shortens a debt accordingly. */
static void refund(struct gate *g, struct gate_page *page, int64_t now)
{
	int64_t until = atomic_load(&page->shut_until);
	if (g->outside > KEPT)
		give(page, g->outside - KEPT);
	g->outside = 0;
	if (until <= now)
		return;
	int64_t level = atomic_load(&page->level), end = 0;
	if (level <= -DEBT)
		end = atomic_load(&page->shut_at) + pause_of(level, g->slot.rate);
	if (end < until)
		atomic_compare_exchange_strong(&page->shut_until, &until, end);
}

static void completed(struct gate *g, struct gate_page *page, int64_t now, int launches, int64_t born)
{
	turn(g, now);
	/* With long kernels of others, kernels end then by chance. */
	if (g->inside && now - g->opened <= SOON && born < g->opened && 2 * g->mean <= g->slot.length)
		refund(g, page, now);
	int64_t since = g->ended > born ? g->ended : born, took = now - since < LONGEST ? now - since : LONGEST;
	took /= launches > 0 ? launches : 1;
	/*
	 * While other processes are busy, a kernel also waits for theirs. Such a time raises the mean only by the process's own part; otherwise
	 * too few launches would pass in each slot.
	 */
	if (took > g->mean && g->slot.others > 0)
		took = took / (1 + g->slot.others) > g->mean ? took / (1 + g->slot.others) : g->mean;
	/* A kernel that waits for another one is a poor estimate of the next: raise the mean slowly. */
	for (int i = 0; i < launches && i < 16; i++)
		g->mean += (int64_t)((double)(took - g->mean) * (took < g->mean ? 0.3 : 0.05));
	g->mean = g->mean > 100 ? g->mean : 100;
	g->ended = now;
}

void gate_tick(struct gate *g, struct gate_page *page, int64_t now, int64_t since, int done, int64_t born, int out)
{
	int64_t from = g->settled > since ? g->settled : since, worked = since && now > from ? now - from : 0;
	settle(g, page, now, out > 0 ? worked : worked / 2); /* it ended in between, at an unknown time */
	if (done > 0)
		completed(g, page, now, done, born);
}

int gate_place(struct gate_page *page, int64_t owner, int64_t now)
{
	for (int i = 0; i < GATE_PROCESSES; i++) {
		struct gate_process *p = &page->processes[i];
		int64_t had = atomic_load(&p->owner);
		bool left = atomic_load(&p->wants_until) + GATE_LEASE < now && atomic_load(&p->busy_until) + GATE_LEASE < now;
		if (had != owner && (had == 0 || left) && atomic_compare_exchange_strong(&p->owner, &had, owner))
			had = owner;
		if (had == owner)
			return i;
	}
	return -1;
}

void gate_promise(struct gate_page *page, int place, int64_t now, bool wants, bool busy)
{
	int64_t wants_until = now + (wants ? GATE_LEASE : GATE_LINGER), busy_until = busy ? now + GATE_LEASE : 0, count = 0;
	if (place >= 0) {
		struct gate_process *own = &page->processes[place];
		int64_t had = atomic_load(&own->wants_until);
		if (wants || had > wants_until)
			atomic_store(&own->wants_until, wants_until);
		atomic_store(&own->busy_until, busy_until);
		wants_until = busy_until = 0;
		for (int i = 0; i < GATE_PROCESSES; i++) {
			int64_t one = atomic_load(&page->processes[i].wants_until), works = atomic_load(&page->processes[i].busy_until);
			wants_until = one > wants_until ? one : wants_until;
			busy_until = works > busy_until ? works : busy_until;
			count += works > now;
		}
	} else {
		int64_t had = atomic_load(&page->wants_until), worked = atomic_load(&page->busy_until);
		wants_until = had > now || !wants ? had : wants_until;
		busy_until = worked > busy_until ? worked : busy_until;
		count = atomic_load(&page->busy);
	}
	atomic_store(&page->wants_until, wants_until);
	atomic_store(&page->busy_until, busy_until);
	atomic_store(&page->busy, count);
}

void gate_read(const struct gate_page *page, int64_t now, struct gate_member *out)
{
	int64_t wants = atomic_load(&page->wants_until), busy = atomic_load(&page->busy_until), count = atomic_load(&page->busy);
	bool valid = page->magic == GATE_MAGIC && page->version == GATE_VERSION;
	out->wants = valid && wants > now && wants <= now + 2 * GATE_LEASE;
	out->debt = valid && atomic_load(&page->shut_until) > now;
	out->busy = 0;
	if (valid && busy > now && busy <= now + 2 * GATE_LEASE && count > 0)
		out->busy = (int)(count < GATE_PROCESSES ? count : GATE_PROCESSES);
}

void gate_add(struct gate_account *a, const struct gate_page *page, int64_t now)
{
	int64_t level = atomic_load(&page->level), until = atomic_load(&page->shut_until);
	if (until > now + LONGEST_DEBT)
		until = 0;
	int64_t credit = level > BURST ? BURST - KEPT : level > KEPT ? level - KEPT : 0;
	a->credit = credit < a->credit ? credit : a->credit;
	a->paid = until > a->paid ? until : a->paid;
}

/* Rule 2. */
static bool may_be_awaited(struct gate *g, int64_t now, bool debt, int64_t stalled, const struct gate_wait *w)
{
	if (!stalled || (!w->drained && now - stalled < BLOCKED))
		return false;
	int n = debt ? g->passes : 0;
	int64_t stall = n < 6 ? STALL << n : LONGEST_STALL, since = n && g->passed > stalled ? g->passed : stalled;
	if (now - since < (stall < LONGEST_STALL ? stall : LONGEST_STALL))
		return false;
	g->passes = debt ? n + 1 : 0;
	g->passed = now;
	return true;
}

/* Rule 1. */
static bool fits(const struct gate *g, int64_t credit, int out, int64_t left)
{
	int64_t ahead = (int64_t)(out + 1) * g->mean;
	if (left == GATE_ALWAYS)
		return ahead <= GATE_AHEAD || out < 2;
	if (left <= 0)
		return false;
	int64_t most = left + credit;
	return (ahead <= most && (ahead <= GATE_AHEAD || out < 2)) || (out == 0 && 2 * left >= g->slot.length && ahead > g->slot.length);
}

bool gate_look(struct gate *g, int64_t now, int out, const struct gate_account *account, int64_t stalled, struct gate_wait *w)
{
	int64_t paid = account->paid;
	int64_t left = turn(g, now);
	bool debt = paid > now && g->slot.rate < 1;
	if (may_be_awaited(g, now, debt, stalled, w))
		return true;
	if (debt && !w->promise)
		w->promise = paid;
	if (debt && paid < w->promise)
		w->promise = paid; /* a part was refunded */
	if (debt && now < w->promise) {
		w->free = 0;
		return false;
	}
	if (!w->free)
		w->free = now;
	if (fits(g, account->credit, out, left))
		return true;
	if (out > 0 && left > 0 && now - w->came > COMPLETIONS)
		return true;
	return now - w->free > LONG_WAIT + (out > 0 ? COMPLETIONS : 0);
}
