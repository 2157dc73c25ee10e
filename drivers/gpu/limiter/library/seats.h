/*
 * The seats of this container on its shared GPUs: for each GPU a writable page of its own, and the GPU's read-only directory with the pages
 * of all containers and their order. gpufabric.io/drivers/gpu/cores creates them, and writes the order when a container comes or goes.
 */
#pragma once
#include "gate.h"
#include "limits.h"

/* GPU-.../order and GPU-.../NAME for each container. */
#ifndef CORES_DIRECTORY
#define CORES_DIRECTORY "/usr/local/vgpu/cores"
#endif

/* GPU-...: the page of this container. */
#ifndef CORES_OWN
#define CORES_OWN "/usr/local/vgpu/cores.own"
#endif

#define ORDER_MAGIC 0x4f504647u
#define ORDER_MOST 128

/* The file of the order. sum is FNV-1a of the entries and of the fields between it and them. */
struct order {
	uint32_t magic, version;
	uint64_t sum, generation;
	int64_t stamp; /* CLOCK_MONOTONIC at its writing */
	uint32_t count, lend;
	uint64_t unused[3];
	struct order_entry {
		char name[GATE_NAME];
		uint32_t percent, unused;
	} entries[ORDER_MOST];
};

/* The container's seat on one GPU. The lane that holds the lock owns the fields. */
struct seat {
	const struct limit *limit;
	struct gate_page *page;	   /* the own page; private to this process if there is none */
	const struct order *order; /* NULL: there is none */
	struct order known;	   /* the last complete order */
	int self;		   /* number in it; -1: not in it */
	int64_t owner;		   /* the process's place in the page */
	int place;		   /* number of that place; -1: none */
	int64_t arranged;	   /* when the slot was computed */
};

/* The node's clock in nanoseconds: CLOCK_MONOTONIC, without the offset of a time namespace. */
int64_t seats_now(void);

/* The seat of a limit of cores, by its number; never NULL. The first call opens those of all GPUs. */
struct seat *seats_of(int limit);

/* Reads the neighbours' pages, at most each 2 ms, and computes the slot. */
void seats_arrange(struct seat *s, int64_t now, struct gate_slot *out);

/*
 * Writes into the page whether the process wants the GPU, and has work there. A process without a renewal may have lost its place, and gets
 * another one.
 */
void seats_promise(struct seat *s, int64_t now, bool wants, bool busy);

/* The container's account over all its GPUs. */
struct gate_account seats_account(int64_t now);

/* Forgets all, in a child. */
void seats_forget(void);
