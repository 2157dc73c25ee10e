/* Graphs that allocate memory. A launch maps the memory of their nodes, so the launch is refused when that does not fit. */
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

/* Before a launch or an upload. Returns false when its memory does not fit. per_thread: stream 0 is the thread's own. */
bool graphs_begin(struct graph_draw *d, CUgraphExec graph, CUstream stream, bool per_thread);

/* After it; returns the driver's result. */
CUresult graphs_end(struct graph_draw *d, CUresult r);

/* Forgets a stream that ends. */
void graphs_forget_stream(CUstream stream);

/* Forgets all graphs: after a fork they belong to the parent. */
void graphs_forget(void);
