/* Graphs that allocate memory. A launch maps what their nodes need, so it is the launch that is refused where that does not fit. */
#pragma once
#include <stdbool.h>

#include "cuda.h"
#include "limits.h"
#include "stocks.h"

struct graph_draw {
	int count;
	CUgraphExec graph;
	CUstream stream;
	struct draw draws[MOST_DEVICES];
};

/* Before a launch, or an upload. False: its memory does not fit. per_thread: stream 0 is the thread's own. */
bool graphs_begin(struct graph_draw *d, CUgraphExec graph, CUstream stream, bool per_thread);

/* After it; returns the driver's answer. */
CUresult graphs_end(struct graph_draw *d, CUresult r);

/* Forgets what is known of a stream that ends. */
void graphs_forget_stream(CUstream stream);

/* Forgets all graphs, which after a fork are the parent's. */
void graphs_forget(void);
