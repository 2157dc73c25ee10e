/*
 * A simulation of GPUs that divide their time among processes, and of processes that launch through the gate (gate.h), with a clock of its
 * own: what it shows does not depend on the machine. A GPU runs the kernels of one process at a time, in slices, and goes round; a kernel
 * that waits uses its slices. A process sees what has ended when it looks: each half of a millisecond while it waits, else each
 * millisecond, as cores.c does.
 */
#pragma once
#include "gate.h"

#define SIMULATION_GPUS 8
#define SIMULATION_CONTAINERS 4

struct simulation;
struct sim_container;
struct sim_process;
struct sim_gang;

struct simulation *simulation_new(int gpus, bool lend, bool unlimited);
void simulation_free(struct simulation *s);

/* A container of so many percent, on all GPUs. lies: it passes the gate at once; says: and says that it never (-1) or always (1) wants a
 * GPU, or nothing (0). */
struct sim_container *simulation_container(struct simulation *s, unsigned int percent);
void simulation_ignores(struct sim_container *c, int says);

/* Has the container never see its neighbours, nor they it. */
void simulation_lonely(struct sim_container *c);

/* Has the GPUs do the kernels of all processes in the order of their launches, as the CUDA stand-in does, instead of dividing their time.
 */
void simulation_in_order(struct simulation *s);

/* Processes. Each returns at once, and begins when the simulation runs. Times are nanoseconds. */
struct sim_process *simulation_loop(struct sim_container *c, int gpu, int64_t kernel);
struct sim_process *simulation_two_streams(struct sim_container *c, int gpu, int64_t kernel);
/* Rounds: a kernel on one stream waits for the last of a chain on another, which are launched later. */
struct sim_process *simulation_waits(struct sim_container *c, int gpu, int64_t later, int64_t kernel, int chain);

/* Ranks that meet in each step after so much work, hops times. With queued, each has so many steps ahead. */
struct sim_gang *simulation_gang(struct simulation *s, int ranks, int64_t kernel, int hops, int queued);
struct sim_process *simulation_rank(struct sim_container *c, struct sim_gang *g, int gpu);
/* One thread that has a rank on each of the first GPUs. */
struct sim_process *simulation_thread(struct sim_container *c, struct sim_gang *g);

void simulation_run(struct simulation *s, int64_t nanoseconds);

/*
 * A process's result: rounds or steps, the longest of them, the GPU time of its kernels in nanoseconds, and the longest wait of a launch.
 */
int64_t simulation_steps(const struct sim_process *p);
int64_t simulation_longest(const struct sim_process *p);
int64_t simulation_used(const struct sim_process *p);
int64_t simulation_delay(const struct sim_process *p);
/* The 90th percentile of its rounds. */
int64_t simulation_p90(struct sim_process *p);
