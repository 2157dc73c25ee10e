/* The gate (gate.h) in simulations: what each container has of a GPU, that jobs on several GPUs do not stop each other, and that no launch
 * waits for ever. */
#include "gate_test.h"

#include "check.h"
#include "simulation.h"

#define MS GATE_MILLISECOND
#define SECOND (1000 * MS)

static double apart(double difference)
{
	return difference < 0 ? -difference : difference;
}

static double percent(const struct sim_process *p, int64_t of)
{
	return 100.0 * (double)simulation_used(p) / (double)of;
}

static void a_container_has_its_place_in_the_order(void)
{
	static const struct {
		struct gate_member all[3];
		bool lend;
		double start, length, rate; /* of the second one, in percent */
	} cases[] = {
		{{{25, true, false, 1}, {50, false, false, 0}, {25, true, false, 2}}, true, 25, 50, 0.5},
		{{{25, false, false, 0}, {50, false, false, 0}, {25, true, false, 2}}, true, 0, 66.667, 0.66667},
		{{{25, true, true, 1}, {50, false, false, 0}, {25, false, false, 0}}, true, 0, 100, 1},
		{{{25, false, false, 0}, {50, false, false, 0}, {0, true, false, 0}}, true, 0, 100, 1},
		{{{25, false, false, 0}, {50, false, false, 0}, {25, false, false, 0}}, false, 25, 50, 0.5},
		{{{10, false, false, 0}, {30, false, false, 0}, {10, false, false, 0}}, false, 10, 30, 0.3},
		{{{100, false, false, 0}, {50, false, false, 0}, {50, false, false, 0}}, false, 50, 25, 0.5},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct gate_slot s;
		gate_arrange(cases[i].all, 3, 1, cases[i].lend, &s);
		CHECK(apart((double)s.start - cases[i].start / 100 * GATE_PERIOD) < 1000 &&
				  apart((double)s.length - cases[i].length / 100 * GATE_PERIOD) < 1000 && apart(s.rate - cases[i].rate) < 0.001,
			"case %zu: %lld, %lld, %f", i, (long long)s.start, (long long)s.length, s.rate);
		CHECK(s.others == cases[i].all[0].busy + cases[i].all[2].busy, "case %zu: %d others are busy", i, s.others);
	}
	struct gate_slot s = {.start = 10 * MS, .length = 20 * MS};
	int64_t next;
	CHECK(gate_left(&s, 400 * GATE_PERIOD + 12 * MS, &next) == 18 * MS && next == 38 * MS, "inside");
	CHECK(gate_left(&s, 400 * GATE_PERIOD + 35 * MS, &next) == -5 * MS && next == 15 * MS, "behind");
	CHECK(gate_left(&s, 400 * GATE_PERIOD + 2 * MS, &next) < 0 && next == 8 * MS, "before");
	CHECK(gate_overlap(0, 20, 10, 20) && !gate_overlap(0, 20, 11, 20) && gate_overlap(5, 2, 0, 30) &&
			  gate_overlap(0, 10, INT64_MAX, INT64_MAX),
		"overlap");
}

/* Without lending: each percentage, by kernels of each length, within this many points. */
static void a_container_alone_has_its_percentage(void)
{
	static const struct {
		int64_t kernel, seconds;
		double points;
	} kernels[] = {{MS / 10, 30, 1}, {MS, 30, 2}, {10 * MS, 30, 2}, {100 * MS, 60, 2}, {2000 * MS, 1000, 2}};
	static const unsigned int percents[] = {10, 25, 50, 75};
	for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
		for (int j = 0; j < 4; j++) {
			struct simulation *s = simulation_new(1, false, false);
			struct sim_process *p = simulation_loop(simulation_container(s, percents[j]), 0, kernels[i].kernel);
			simulation_run(s, kernels[i].seconds * SECOND);
			double had = percent(p, kernels[i].seconds * SECOND);
			CHECK(apart(had - percents[j]) <= kernels[i].points, "kernels of %lld us: %.1f %%, want %u",
				(long long)kernels[i].kernel / 1000, had, percents[j]);
			/* At 10 % a kernel of 2 s waits 18 s by arithmetic; launches ahead make it more. */
			CHECK(simulation_delay(p) <= 1100 * MS + 40 * kernels[i].kernel, "kernels of %lld us at %u %%: a launch waited %lld ms",
			      (long long)kernels[i].kernel / 1000, percents[j], (long long)(simulation_delay(p) / MS));
			simulation_free(s);
		}
}

static void containers_that_compete_have_their_percentages(void)
{
	static const struct {
		int64_t kernels[2];
		double points;
	} mixes[] = {
		{{MS, MS}, 3}, {{2 * MS, 2 * MS}, 3}, {{MS / 10, 10 * MS}, 3}, {{10 * MS, MS / 10}, 6}, {{100 * MS, MS}, 5}, {{MS, 100 * MS}, 5}};
	static const unsigned int percents[][2] = {{10, 90}, {25, 75}, {50, 50}};
	for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
		for (int j = 0; j < 3; j++) {
			struct simulation *s = simulation_new(1, true, false);
			struct sim_process *p[2];
			for (int k = 0; k < 2; k++)
				p[k] = simulation_loop(simulation_container(s, percents[j][k]), 0, mixes[i].kernels[k]);
			simulation_run(s, 30 * SECOND);
			/* A GPU that changes between them has less than 100. */
			double had = percent(p[0], 30 * SECOND), other = percent(p[1], 30 * SECOND);
			double part = 100 * had / (had + other);
			CHECK(apart(part - percents[j][0]) <= mixes[i].points && had + other >= 92, "mix %zu, %u %%: %.1f and %.1f", i, percents[j][0],
				had, other);
			simulation_free(s);
		}
}

/* A GPU that does kernels in the order of their launches, as the CUDA stand-in: a small share waits in its slot for what a large one has
 * ahead. */
static void a_gpu_that_goes_in_order_is_shared_too(void)
{
	static const int64_t kernels[] = {MS / 10, MS, 2 * MS, 5 * MS, 10 * MS};
	static const unsigned int percents[][2] = {{25, 75}, {50, 50}};
	for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
		for (int j = 0; j < 2; j++) {
			struct simulation *s = simulation_new(1, true, false);
			struct sim_process *p[2];
			simulation_in_order(s);
			for (int k = 0; k < 2; k++)
				p[k] = simulation_loop(simulation_container(s, percents[j][k]), 0, kernels[i]);
			simulation_run(s, 30 * SECOND);
			double had = percent(p[0], 30 * SECOND);
			CHECK(apart(had - percents[j][0]) <= 2, "kernels of %lld us: %.1f %%, want %u", (long long)kernels[i] / 1000, had, percents[j][0]);
			simulation_free(s);
		}
}

static void what_nobody_wants_is_lent(void)
{
	struct simulation *s = simulation_new(1, true, false);
	struct sim_process *p = simulation_loop(simulation_container(s, 10), 0, MS);
	simulation_container(s, 90);
	simulation_run(s, 5 * SECOND);
	CHECK(percent(p, 5 * SECOND) > 99, "%.1f %% of a GPU that nobody else wants", percent(p, 5 * SECOND));
	simulation_free(s);
}

static int64_t steps_of(int ranks, int hops, int queued, bool lend, bool unlimited, int jobs, int64_t *least, int64_t *longest)
{
	struct simulation *s = simulation_new(ranks, lend, unlimited);
	struct sim_process *first[2] = {NULL, NULL};
	for (int j = 0; j < jobs; j++) {
		struct sim_container *c = simulation_container(s, 50);
		struct sim_gang *g = simulation_gang(s, ranks, 2 * MS, hops, queued);
		for (int i = 0; i < ranks; i++) {
			struct sim_process *p = simulation_rank(c, g, i);
			first[j] = i ? first[j] : p;
		}
	}
	simulation_run(s, 5 * SECOND);
	int64_t a = simulation_steps(first[0]), b = jobs > 1 ? simulation_steps(first[1]) : a;
	*longest = 0;
	for (int j = 0; j < jobs; j++)
		*longest = simulation_longest(first[j]) > *longest ? simulation_longest(first[j]) : *longest;
	*least = a < b ? a : b;
	simulation_free(s);
	return a;
}

/* Jobs of ranks that wait for each other in each step. Turns that exclude others give the two of them nothing. */
static void jobs_on_the_same_gpus_each_have_their_part(void)
{
	static const int shapes[][3] = {{2, 1, 0}, {2, 6, 0}, {4, 1, 0}, {4, 6, 0}, {8, 1, 0}, {8, 14, 0}, {4, 6, 4}, {8, 14, 4}};
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		int ranks = shapes[i][0], hops = shapes[i][1], queued = shapes[i][2];
		int64_t least, longest, bare;
		int64_t alone = steps_of(ranks, hops, queued, true, true, 1, &least, &longest);
		steps_of(ranks, hops, queued, true, true, 2, &bare, &longest);
		for (int lend = 0; lend < 2; lend++) {
			steps_of(ranks, hops, queued, lend, false, 2, &least, &longest);
			double part = (double)least / (double)alone, hardware = (double)bare / (double)alone;
			CHECK(queued ? part >= hardware : part >= 0.40, "%d ranks, %d hops, %d queued, lent %d: %.2f of one alone; without limits %.2f",
				ranks, hops, queued, lend, part, hardware);
			CHECK(longest < 300 * MS, "%d ranks, %d hops: a step took %lld ms", ranks, hops, (long long)(longest / MS));
			steps_of(ranks, hops, queued, lend, false, 1, &least, &longest);
			part = (double)least / (double)alone;
			CHECK(part >= (lend ? 0.97 : queued ? 0.40 : 0.45), "%d ranks, %d hops, alone, lent %d: %.2f", ranks, hops, lend, part);
		}
	}
}

static void a_thread_that_drives_two_gpus_goes_on(void)
{
	struct simulation *s = simulation_new(2, true, false);
	struct sim_process *p[2];
	for (int j = 0; j < 2; j++)
		p[j] = simulation_thread(simulation_container(s, 50), simulation_gang(s, 2, 2 * MS, 1, 0));
	simulation_run(s, 5 * SECOND);
	for (int j = 0; j < 2; j++)
		CHECK(simulation_steps(p[j]) > 800 && simulation_longest(p[j]) < 200 * MS, "%lld steps, the longest of %lld ms",
			(long long)simulation_steps(p[j]), (long long)(simulation_longest(p[j]) / MS));
	simulation_free(s);
}

/* A kernel that ends only after a later launch of its process: at any percentage, alone and beside others, each round ends, and soon where
 * the container has its slot. */
static void a_kernel_that_waits_for_a_later_launch_ends(void)
{
	static const int64_t laters[] = {MS / 10, MS, 30 * MS};
	static const unsigned int percents[] = {1, 10, 25, 50, 75, 100};
	for (int chain = 1; chain <= 5; chain += 4)
		for (size_t i = 0; i < sizeof laters / sizeof laters[0]; i++)
			for (size_t j = 0; j < sizeof percents / sizeof percents[0]; j++)
				for (int beside = 0; beside < 3; beside++) {
					struct simulation *s = simulation_new(1, beside > 0, false);
					struct sim_process *p = simulation_waits(simulation_container(s, percents[j]), 0, laters[i], MS, chain);
					for (int k = 1; k < beside; k++)
						simulation_loop(simulation_container(s, 50), 0, MS);
					simulation_run(s, 20 * SECOND);
					int64_t bare = laters[i] + (chain + 1) * MS, p90 = simulation_p90(p);
					/* In debt each link waits for a second at most, and at 1 % a debt of 100 ms lasts for 10. */
					CHECK(simulation_longest(p) < (2 * (chain + 1) + (percents[j] == 1 ? 12 : 0)) * SECOND,
						"%u %%, %lld us later, chain %d, beside %d: a round of %lld ms", percents[j], (long long)(laters[i] / 1000), chain,
						beside, (long long)(simulation_longest(p) / MS));
					CHECK(beside != 1 || p90 <= 3 * bare, "%u %%, %lld us later, chain %d, lent: p90 %lld us, without limits %lld", percents[j],
					      (long long)(laters[i] / 1000), chain, (long long)(p90 / 1000), (long long)(bare / 1000));
					simulation_free(s);
				}
}

/* Two streams do not escape: those of long kernels alone may have some points more. */
static void two_streams_have_one_share(void)
{
	static const struct {
		int64_t kernel;
		double most;
	} cases[] = {{MS, 27}, {10 * MS, 28}, {100 * MS, 33}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct simulation *s = simulation_new(1, false, false);
		struct sim_process *p = simulation_two_streams(simulation_container(s, 25), 0, cases[i].kernel);
		simulation_run(s, 30 * SECOND);
		CHECK(percent(p, 30 * SECOND) > 22 && percent(p, 30 * SECOND) <= cases[i].most, "kernels of %lld us: %.1f %%",
			(long long)cases[i].kernel / 1000, percent(p, 30 * SECOND));
		simulation_free(s);
	}
}

/* Pages of neighbours that are missing or lie change what a container has, and never whether it goes on. */
static void a_neighbour_stops_nobody(void)
{
	for (int fault = 0; fault < 4; fault++) {
		struct simulation *s = simulation_new(1, true, false);
		struct sim_container *good = simulation_container(s, 50), *bad = simulation_container(s, 50);
		struct sim_process *p = simulation_loop(good, 0, MS), *q = simulation_loop(bad, 0, MS);
		if (fault == 0)
			simulation_lonely(bad);
		else
			simulation_ignores(bad, fault - 2);
		simulation_run(s, 10 * SECOND);
		double had = percent(p, 10 * SECOND), other = percent(q, 10 * SECOND);
		CHECK(had >= 35, "fault %d: %.1f %%, the other one %.1f", fault, had, other);
		CHECK(simulation_delay(p) < SECOND, "fault %d: a launch waited %lld ms", fault, (long long)(simulation_delay(p) / MS));
		simulation_free(s);
	}
}

/* Whatever a page holds, and whatever happens meanwhile, a launch passes in the end: what limits its wait is a number. */
static void no_page_makes_a_launch_wait_for_ever(void)
{
	static const int64_t values[] = {0, 1, -1, INT64_MAX, INT64_MIN, 1000000 * MS, -100000 * MS, 5 * MS};
	static _Alignas(64) struct gate_page page;
	uint64_t random = 7;
	int64_t longest = 0;
	for (int round = 0; round < 3000; round++) {
		int64_t now = 1000000 * MS, words[6];
		for (int i = 0; i < 6; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			words[i] = values[random >> 33 & 7];
		}
		memset(&page, 0, sizeof page);
		page.level = words[0];
		page.at = words[1];
		page.shut_until = words[2];
		page.shut_at = words[3];
		page.busy = words[4];
		page.processes[0].busy_until = words[5];
		struct gate g = {.mean = round % 3 ? MS : 3000 * MS};
		struct gate_wait w = {.came = now};
		int out = round % 5;
		for (bool passed = false; !passed; now += MS) {
			struct gate_member all[2] = {{1 + random % 100, true, false, 1}, {100, now / (37 * MS) % 2, false, 100}};
			struct gate_account account = GATE_NO_ACCOUNT;
			gate_arrange(all, 2, 0, round & 1, &g.slot);
			gate_tick(&g, &page, now, out ? now - MS : 0, 0, 0, out);
			gate_add(&account, &page, now);
			passed = gate_look(&g, now, out, &account, 0, &w);
			CHECK(now < 1000000 * MS + 700000 * MS, "round %d: a launch waits for more than 700 s", round);
			longest = now - w.came > longest ? now - w.came : longest;
		}
	}
	CHECK(longest > 100 * MS, "no launch waited at all");
}

void test_gate(void)
{
	a_container_has_its_place_in_the_order();
	a_container_alone_has_its_percentage();
	containers_that_compete_have_their_percentages();
	a_gpu_that_goes_in_order_is_shared_too();
	what_nobody_wants_is_lent();
	jobs_on_the_same_gpus_each_have_their_part();
	a_thread_that_drives_two_gpus_goes_on();
	a_kernel_that_waits_for_a_later_launch_ends();
	two_streams_have_one_share();
	a_neighbour_stops_nobody();
	no_page_makes_a_launch_wait_for_ever();
}
