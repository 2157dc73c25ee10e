#include "simulation.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define US 1000ll
#define SLICE (2 * GATE_MILLISECOND)
#define SWITCH (100 * US)
#define STREAMS 3
#define NEVER INT64_MAX
#define MOST_ROUNDS 65536

struct event {
	int64_t at, number;
	void (*run)(struct simulation *s, void *on, int64_t with);
	void *on;
	int64_t with;
};

struct kernel {
	int64_t left, born;
	struct kernel *flag; /* it ends when that one has ended */
	struct sim_gang *gang;
	int step, hop;
	bool here, done;
	struct sim_process *awaited; /* who waits for its end */
	struct kernel *next, *all;
};

struct stream {
	struct kernel *first, *last;
	int64_t progress;  /* as the process saw it */
	int64_t begun;	   /* when the oldest one was launched that the process has not seen the end of */
	int unseen, ended; /* launches of which it has not seen the end; those that have ended of them */
};

/* A process on a GPU. */
struct place {
	struct sim_process *process;
	int gpu;
	struct stream streams[STREAMS];
	struct gate gate;
	int place, out, waiting;
	int64_t since, used, arranged, busy_at, next_tick;
};

struct gpu {
	int number;
	struct place *all[64];
	int count, current;
	int64_t last, start, version;
};

enum program { LOOP, TWO, WAITS, RANK, THREAD };

struct sim_process {
	struct simulation *s;
	struct sim_container *c;
	struct place *places[SIMULATION_GPUS];
	int first_gpu, gpus;
	enum program program;
	int64_t kernel, later;
	int chain, state, step, at;
	struct sim_gang *gang;
	struct kernel *held, *ahead[8], *waits_for[SIMULATION_GPUS];
	int ahead_count;
	/* the launch at the gate */
	struct place *to;
	int stream;
	struct kernel *launch;
	struct gate_wait wait;
	bool gated;
	int64_t began, longest, delay, steps;
	int64_t *rounds;
};

struct sim_container {
	struct simulation *s;
	unsigned int percent;
	int number, ignores, says, processes;
	bool lonely;
	struct gate_page pages[SIMULATION_GPUS];
};

struct sim_gang {
	int ranks, hops, queued;
	int64_t kernel;
	int here[1 << 16]; /* by step and hop, around */
};

struct simulation {
	int64_t now, number;
	struct event *heap;
	int count, room;
	struct gpu gpus[SIMULATION_GPUS];
	int gpu_count, container_count, process_count;
	bool lend, unlimited, in_order;
	struct sim_container *containers[SIMULATION_CONTAINERS];
	struct sim_process *processes[64];
	struct sim_gang *gangs[8];
	int gang_count;
	struct kernel *kernels;
	uint64_t random;
};

static void at(struct simulation *s, int64_t when, void (*run)(struct simulation *, void *, int64_t), void *on, int64_t with)
{
	if (s->count == s->room) {
		s->room = s->room ? 2 * s->room : 256;
		s->heap = realloc(s->heap, (size_t)s->room * sizeof *s->heap);
		CHECK(s->heap, "memory");
	}
	struct event e = {when > s->now ? when : s->now, s->number++, run, on, with};
	int i = s->count++;
	for (; i > 0; i = (i - 1) / 2) {
		struct event *up = &s->heap[(i - 1) / 2];
		if (up->at < e.at || (up->at == e.at && up->number < e.number))
			break;
		s->heap[i] = *up;
	}
	s->heap[i] = e;
}

static struct event earliest(struct simulation *s)
{
	struct event out = s->heap[0], e = s->heap[--s->count];
	int i = 0;
	for (;;) {
		int child = 2 * i + 1;
		if (child >= s->count)
			break;
		struct event *a = &s->heap[child], *b = child + 1 < s->count ? a + 1 : a;
		if (b->at < a->at || (b->at == a->at && b->number < a->number)) {
			a = b;
			child++;
		}
		if (e.at < a->at || (e.at == a->at && e.number < a->number))
			break;
		s->heap[i] = *a;
		i = child;
	}
	s->heap[i] = e;
	return out;
}

static int64_t random_below(struct simulation *s, int64_t most)
{
	s->random = s->random * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((s->random >> 33) % (uint64_t)most);
}

/* The GPU. */

static int *meeting(struct kernel *k)
{
	return &k->gang->here[(k->step * k->gang->hops + k->hop) & 0xffff];
}

static void schedule(struct simulation *s, void *gpu, int64_t version);

/* Whether a kernel that waits has waited long enough, while its process has the GPU. */
static bool awaited(struct simulation *s, struct kernel *k)
{
	if (k->flag)
		return k->flag->done;
	while (k->hop < k->gang->hops) {
		if (!k->here) {
			k->here = true;
			if (++*meeting(k) == k->gang->ranks)
				for (int i = 0; i < s->gpu_count; i++)
					at(s, s->now, schedule, &s->gpus[i], -1);
		}
		if (*meeting(k) < k->gang->ranks)
			return false;
		k->hop++;
		k->here = false;
	}
	return true;
}

static bool waits(const struct kernel *k)
{
	return k->flag || k->gang;
}

static int working(struct place *p, int64_t *least)
{
	int n = 0;
	for (int i = 0; i < STREAMS; i++)
		if (p->streams[i].first && !waits(p->streams[i].first)) {
			n++;
			*least = p->streams[i].first->left < *least ? p->streams[i].first->left : *least;
		}
	return n;
}

static bool has_work(const struct place *p)
{
	for (int i = 0; i < STREAMS; i++)
		if (p->streams[i].first)
			return true;
	return false;
}

static void advance(struct simulation *s, struct gpu *g)
{
	int64_t passed = s->now - g->last, least = NEVER;
	if (passed <= 0)
		return;
	g->last = s->now;
	if (g->current < 0)
		return;
	struct place *p = g->all[g->current];
	int n = working(p, &least);
	for (int i = 0; i < STREAMS; i++)
		if (p->streams[i].first && !waits(p->streams[i].first))
			p->streams[i].first->left -= passed / n;
	p->used += passed;
}

static void step(struct simulation *s, void *process, int64_t unused);
static void tick(struct simulation *s, void *place, int64_t number);

static bool finish(struct simulation *s, struct place *p)
{
	bool some = false;
	for (int i = 0; i < STREAMS; i++) {
		struct kernel *k = p->streams[i].first;
		if (!k || !(waits(k) ? awaited(s, k) : k->left <= 0))
			continue;
		p->streams[i].first = k->next;
		p->streams[i].ended++;
		k->done = some = true;
		if (k->awaited)
			at(s, s->now + 20 * US, step, k->awaited, 0);
	}
	return some;
}

/* The place whose next kernel was launched first; -1: none has one. */
static int oldest(const struct gpu *g)
{
	int found = -1;
	int64_t born = NEVER;
	for (int i = 0; i < g->count; i++)
		for (int j = 0; j < STREAMS; j++) {
			const struct kernel *k = g->all[i]->streams[j].first;
			if (k && k->born < born) {
				born = k->born;
				found = i;
			}
		}
	return found;
}

/* A GPU that does one kernel after the other: the oldest one is the one that runs. */
static void in_order(struct simulation *s, struct gpu *g)
{
	if (g->current >= 0)
		while (finish(s, g->all[g->current]))
			;
	int64_t least = NEVER;
	g->current = oldest(g);
	g->last = s->now;
	if (g->current >= 0 && working(g->all[g->current], &least))
		at(s, s->now + (least > 0 ? least : 0), schedule, g, g->version);
}

static void schedule(struct simulation *s, void *gpu, int64_t version)
{
	struct gpu *g = gpu;
	if (version >= 0 && version != g->version)
		return;
	g->version++;
	advance(s, g);
	if (s->in_order) {
		in_order(s, g);
		return;
	}
	for (;;) {
		struct place *p = g->current >= 0 ? g->all[g->current] : NULL;
		if (p && s->now >= g->last)
			while (finish(s, p))
				;
		int next = -1;
		for (int i = 1; i <= g->count && next < 0; i++) {
			int n = (g->current + i + g->count) % g->count;
			if (n != g->current && has_work(g->all[n]))
				next = n;
		}
		bool idle = !p || !has_work(p);
		if (!idle && (next < 0 || s->now < g->start + SLICE))
			break;
		if (next < 0) {
			g->current = -1;
			return;
		}
		g->last = s->now + (p ? SWITCH : 0);
		g->start = g->last;
		g->current = next;
		if (g->last > s->now)
			break;
	}
	struct place *p = g->all[g->current];
	int64_t least = NEVER, from = g->last > s->now ? g->last : s->now, when = NEVER;
	int n = working(p, &least);
	if (n)
		when = from + (least > 0 ? least : 0) * n;
	for (int i = 0; i < g->count; i++)
		if (i != g->current && has_work(g->all[i])) {
			while (s->now >= g->start + SLICE)
				g->start += SLICE;
			when = when < g->start + SLICE ? when : g->start + SLICE;
		}
	if (g->last > s->now)
		when = when < g->last ? when : g->last;
	if (when != NEVER)
		at(s, when, schedule, g, g->version);
}

/* The process at the gate. */

static void arrange(struct simulation *s, struct place *p)
{
	struct sim_container *c = p->process->c;
	struct gate_member all[SIMULATION_CONTAINERS];
	if (p->arranged && s->now - p->arranged < 2 * GATE_MILLISECOND)
		return;
	p->arranged = s->now;
	for (int i = 0; i < s->container_count; i++) {
		struct sim_container *o = s->containers[i];
		gate_read(&o->pages[p->gpu], s->now, &all[i]);
		all[i].percent = o->percent;
		if (o != c && (c->lonely || o->lonely || o->says < 0))
			all[i].wants = false, all[i].busy = 0;
		if (o->says > 0)
			all[i].wants = true;
	}
	gate_arrange(all, s->container_count, c->number, s->lend, &p->gate.slot);
}

/* The last sign of life of the stream that has been silent for the longest time. */
static int64_t stalled(const struct sim_process *p)
{
	int64_t oldest = 0;
	for (int i = 0; i < p->s->gpu_count; i++)
		for (int j = 0; p->places[i] && j < STREAMS; j++) {
			const struct stream *st = &p->places[i]->streams[j];
			int64_t since = st->progress > st->begun ? st->progress : st->begun;
			if (st->unseen && (!oldest || since < oldest))
				oldest = since;
		}
	return oldest;
}

static void pass(struct simulation *s, struct sim_process *p)
{
	struct place *to = p->to;
	struct stream *st = &to->streams[p->stream];
	struct kernel *k = p->launch;
	struct gpu *g = &s->gpus[to->gpu];
	int64_t waited = s->now - p->wait.came;
	p->delay = waited > p->delay ? waited : p->delay;
	p->gated = false;
	k->born = s->now;
	if (!st->unseen++)
		st->begun = s->now;
	if (to->out++ == 0)
		to->since = s->now;
	bool first = !st->first;
	if (first)
		st->first = k;
	else
		st->last->next = k;
	st->last = k;
	if (g->current < 0 || first)
		schedule(s, g, -1);
	if (to->next_tick <= s->now)
		at(s, s->now, tick, to, to->next_tick = s->now + 1);
	at(s, s->now + 5 * US, step, p, 0);
}

static void look(struct simulation *s, struct sim_process *p)
{
	struct sim_container *c = p->c;
	struct place *to = p->to;
	arrange(s, to);
	if (s->unlimited || c->ignores) {
		if (to->out < 64)
			pass(s, p);
		return;
	}
	struct gate_account account = GATE_NO_ACCOUNT;
	for (int i = 0; i < s->gpu_count; i++)
		gate_add(&account, &c->pages[i], s->now);
	p->wait.drained = to->streams[p->stream].unseen == 0;
	if (gate_look(&to->gate, s->now, to->out, &account, stalled(p), &p->wait)) {
		to->waiting = 0;
		pass(s, p);
	}
}

/* The periodic work of a thread of the library. */
static void tick(struct simulation *s, void *place, int64_t number)
{
	struct place *p = place;
	struct sim_process *process = p->process;
	if (number != p->next_tick)
		return;
	int done = 0;
	int64_t born = NEVER;
	for (int i = 0; i < STREAMS; i++) {
		struct stream *st = &p->streams[i];
		if (!st->ended)
			continue;
		done += st->ended;
		st->unseen -= st->ended;
		st->ended = 0;
		st->progress = s->now;
		born = st->begun < born ? st->begun : born;
		if (st->first)
			st->begun = st->first->born;
	}
	p->out -= done;
	arrange(s, p);
	gate_tick(&p->gate, &process->c->pages[p->gpu], s->now, p->since, done, born, p->out);
	if (p->out == 0)
		p->since = 0;
	else
		p->busy_at = s->now;
	gate_promise(&process->c->pages[p->gpu], p->place, s->now, p->out || p->waiting, p->out > 0);
	if (process->gated && process->to == p)
		look(s, process);
	if (p->out || p->waiting || s->now - p->busy_at < 2 * GATE_LINGER) {
		p->next_tick = s->now + (p->waiting ? 500 * US : GATE_MILLISECOND) + random_below(s, 150 * US); /* a timer is late */
		at(s, p->next_tick, tick, p, p->next_tick);
	}
}

static struct kernel *kernel(struct simulation *s, int64_t length)
{
	struct kernel *k = calloc(1, sizeof *k);
	CHECK(k, "memory");
	k->left = length;
	k->all = s->kernels;
	s->kernels = k;
	return k;
}

static struct kernel *launch(struct sim_process *p, int gpu, int stream, struct kernel *k)
{
	p->to = p->places[gpu];
	p->stream = stream;
	p->launch = k;
	p->wait = (struct gate_wait){.came = p->s->now};
	p->gated = true;
	p->to->waiting = 1;
	look(p->s, p);
	if (p->gated && p->to->next_tick <= p->s->now)
		at(p->s, p->s->now, tick, p->to, p->to->next_tick = p->s->now + 1);
	return k;
}

/* True: it has ended already. */
static bool await(struct sim_process *p, struct kernel *k)
{
	if (!k->done)
		k->awaited = p;
	return k->done;
}

static void round_done(struct sim_process *p)
{
	int64_t took = p->s->now - p->began;
	p->longest = took > p->longest ? took : p->longest;
	if (p->steps < MOST_ROUNDS)
		p->rounds[p->steps] = took;
	p->steps++;
	p->began = p->s->now;
}

static struct kernel *collective(struct sim_process *p)
{
	struct kernel *k = kernel(p->s, 0);
	k->gang = p->gang;
	k->step = p->step;
	for (int i = 0; i < p->gang->hops; i++) /* those of long ago are not needed any more */
		p->gang->here[((p->step + 1000) * p->gang->hops + i) & 0xffff] = 0;
	return k;
}

static void rank(struct sim_process *p)
{
	struct simulation *s = p->s;
	switch (p->state) {
	case 0:
		p->state = 1;
		launch(p, p->first_gpu, 0, kernel(s, p->gang->kernel * (95 + random_below(s, 11)) / 100));
		return;
	case 1:
		p->state = 2;
		p->ahead[p->ahead_count++] = launch(p, p->first_gpu, 0, collective(p));
		return;
	default:
		if (p->ahead_count > p->gang->queued && !await(p, p->ahead[0]))
			return;
		if (p->ahead_count > p->gang->queued) {
			memmove(p->ahead, p->ahead + 1, sizeof p->ahead - sizeof p->ahead[0]);
			p->ahead_count--;
		}
		p->step++;
		round_done(p);
		p->state = 0;
		at(s, s->now + 1 * US, step, p, 0);
	}
}

static void thread(struct sim_process *p)
{
	struct simulation *s = p->s;
	if (p->state == 0) {
		launch(p, p->at, 0, kernel(s, p->gang->kernel));
	} else if (p->state == 1) {
		p->waits_for[p->at] = launch(p, p->at, 0, collective(p));
	} else if (!await(p, p->waits_for[p->at])) {
		return; /* it comes again, and then it has ended */
	} else {
		at(s, s->now + 1 * US, step, p, 0);
	}
	if (++p->at < p->gpus)
		return;
	p->at = 0;
	if (p->state++ < 2)
		return;
	p->state = 0;
	p->step++;
	round_done(p);
}

static void awaits(struct sim_process *p)
{
	struct simulation *s = p->s;
	if (p->state == 0) {
		struct kernel *k = kernel(s, 0);
		k->flag = p->held = kernel(s, p->kernel);
		p->waits_for[0] = launch(p, p->first_gpu, 1, k);
		p->state = 1;
	} else if (p->state == 1) {
		p->state = 2;
		at(s, s->now + p->later, step, p, 0);
	} else if (p->state <= p->chain) {
		p->state++;
		launch(p, p->first_gpu, 2, kernel(s, p->kernel));
	} else if (p->state == p->chain + 1) {
		p->state++;
		launch(p, p->first_gpu, 2, p->held);
	} else if (await(p, p->waits_for[0])) {
		round_done(p);
		p->state = 0;
		at(s, s->now + 1 * US, step, p, 0);
	}
}

static void step(struct simulation *s, void *process, int64_t unused)
{
	struct sim_process *p = process;
	(void)unused;
	switch (p->program) {
	case LOOP:
		launch(p, p->first_gpu, 0, kernel(s, p->kernel));
		return;
	case TWO:
		p->state ^= 1;
		launch(p, p->first_gpu, p->state, kernel(s, p->kernel));
		return;
	case WAITS:
		awaits(p);
		return;
	case RANK:
		rank(p);
		return;
	case THREAD:
		thread(p);
	}
}

/* The world. */

struct simulation *simulation_new(int gpus, bool lend, bool unlimited)
{
	struct simulation *s = calloc(1, sizeof *s);
	CHECK(s, "memory");
	s->now = 1000000 * GATE_MILLISECOND;
	s->gpu_count = gpus;
	s->lend = lend;
	s->unlimited = unlimited;
	s->random = 1;
	for (int i = 0; i < gpus; i++)
		s->gpus[i] = (struct gpu){.number = i, .current = -1, .last = s->now};
	return s;
}

void simulation_free(struct simulation *s)
{
	for (struct kernel *k = s->kernels, *next; k; k = next) {
		next = k->all;
		free(k);
	}
	for (int i = 0; i < s->process_count; i++) {
		for (int j = 0; j < SIMULATION_GPUS; j++)
			free(s->processes[i]->places[j]);
		free(s->processes[i]->rounds);
		free(s->processes[i]);
	}
	for (int i = 0; i < s->container_count; i++)
		free(s->containers[i]);
	for (int i = 0; i < s->gang_count; i++)
		free(s->gangs[i]);
	free(s->heap);
	free(s);
}

struct sim_container *simulation_container(struct simulation *s, unsigned int percent)
{
	struct sim_container *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
	CHECK(c && s->container_count < SIMULATION_CONTAINERS, "memory");
	memset(c, 0, sizeof *c);
	c->s = s;
	c->percent = percent;
	c->number = s->container_count;
	for (int i = 0; i < SIMULATION_GPUS; i++) {
		c->pages[i].magic = GATE_MAGIC;
		c->pages[i].version = GATE_VERSION;
	}
	return s->containers[s->container_count++] = c;
}

void simulation_ignores(struct sim_container *c, int says)
{
	c->ignores = 1;
	c->says = says;
}

void simulation_lonely(struct sim_container *c)
{
	c->lonely = true;
}

void simulation_in_order(struct simulation *s)
{
	s->in_order = true;
}

static void add_place(struct sim_process *p, int gpu)
{
	struct place *at_gpu = calloc(1, sizeof *at_gpu);
	struct gpu *g = &p->s->gpus[gpu];
	CHECK(at_gpu, "memory");
	at_gpu->process = p;
	at_gpu->gpu = gpu;
	at_gpu->gate.mean = GATE_FIRST_MEAN;
	at_gpu->place = gate_place(&p->c->pages[gpu], p->s->process_count, p->s->now);
	p->places[gpu] = g->all[g->count++] = at_gpu;
}

static struct sim_process *process(struct sim_container *c, enum program program, int gpu, int gpus)
{
	struct sim_process *p = calloc(1, sizeof *p);
	struct simulation *s = c->s;
	CHECK(p && s->process_count < 64, "memory");
	s->processes[s->process_count++] = p;
	*p = (struct sim_process){
		.s = s, .c = c, .program = program, .first_gpu = gpu, .gpus = gpus, .rounds = malloc(MOST_ROUNDS * sizeof(int64_t))};
	CHECK(p->rounds, "memory");
	for (int i = 0; i < gpus; i++)
		add_place(p, gpu + i);
	p->began = s->now + random_below(s, 500 * US);
	at(s, p->began, step, p, 0);
	return p;
}

struct sim_process *simulation_loop(struct sim_container *c, int gpu, int64_t kernel_length)
{
	struct sim_process *p = process(c, LOOP, gpu, 1);
	p->kernel = kernel_length;
	return p;
}

struct sim_process *simulation_two_streams(struct sim_container *c, int gpu, int64_t kernel_length)
{
	struct sim_process *p = process(c, TWO, gpu, 1);
	p->kernel = kernel_length;
	return p;
}

struct sim_process *simulation_waits(struct sim_container *c, int gpu, int64_t later, int64_t kernel_length, int chain)
{
	struct sim_process *p = process(c, WAITS, gpu, 1);
	p->kernel = kernel_length;
	p->later = later;
	p->chain = chain;
	return p;
}

struct sim_gang *simulation_gang(struct simulation *s, int ranks, int64_t kernel_length, int hops, int queued)
{
	struct sim_gang *g = calloc(1, sizeof *g);
	CHECK(g && s->gang_count < 8, "memory");
	*g = (struct sim_gang){.ranks = ranks, .hops = hops, .queued = queued, .kernel = kernel_length};
	return s->gangs[s->gang_count++] = g;
}

struct sim_process *simulation_rank(struct sim_container *c, struct sim_gang *g, int gpu)
{
	struct sim_process *p = process(c, RANK, gpu, 1);
	p->gang = g;
	return p;
}

struct sim_process *simulation_thread(struct sim_container *c, struct sim_gang *g)
{
	struct sim_process *p = process(c, THREAD, 0, g->ranks);
	p->gang = g;
	return p;
}

void simulation_run(struct simulation *s, int64_t nanoseconds)
{
	int64_t end = s->now + nanoseconds;
	while (s->count && s->heap[0].at <= end) {
		struct event e = earliest(s);
		s->now = e.at;
		e.run(s, e.on, e.with);
	}
	s->now = end;
}

int64_t simulation_steps(const struct sim_process *p)
{
	return p->steps;
}

int64_t simulation_longest(const struct sim_process *p)
{
	int64_t now = p->s->now - p->began;
	return now > p->longest ? now : p->longest;
}

int64_t simulation_used(const struct sim_process *p)
{
	int64_t used = 0;
	for (int i = 0; i < SIMULATION_GPUS; i++)
		used += p->places[i] ? p->places[i]->used : 0;
	return used;
}

int64_t simulation_delay(const struct sim_process *p)
{
	int64_t now = p->gated ? p->s->now - p->wait.came : 0;
	return now > p->delay ? now : p->delay;
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

int64_t simulation_p90(struct sim_process *p)
{
	int64_t n = p->steps < MOST_ROUNDS ? p->steps : MOST_ROUNDS;
	qsort(p->rounds, (size_t)n, sizeof *p->rounds, compare);
	return n ? p->rounds[n * 9 / 10] : 0;
}
