/* The part of the unit tests' driver that keeps memory in stock: a pool for each of its two GPUs, pools that are made, and the memory of
 * graphs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

extern _Atomic uint64_t warehouse_step;	     /* pools grow by so much at a time */
extern _Atomic uint64_t warehouse_threshold; /* pools keep so much at a synchronization */
extern _Atomic int warehouse_scattered;	     /* nothing that was freed is used again */

/* A graph with a node that allocates so many bytes of a GPU, and one that frees them; or without that. */
CUgraph warehouse_graph(int device, uint64_t bytes, bool frees);

/* Frees what was allocated from a pool. False: it was not. */
bool warehouse_frees(CUdeviceptr address);

/* The driver's function of a name, NULL where this part has none. */
void *warehouse_function(const char *name);
