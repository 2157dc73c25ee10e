/* Graphs, as graph.c builds and graph_memory.c launches them. */
#pragma once
#include <pthread.h>

#include "stock.h"

struct node {
	int type;
	unsigned long long microseconds;
	CUdevice device;
	size_t bytes;
	CUdeviceptr address;
	const struct graph *owner, *freed_in; /* of an allocation */
	struct node *next;
};

struct graph {
	bool invalid;
	bool capturing;	  /* a stream's capture into it has not ended */
	int mode;	  /* of the capture */
	pthread_t thread; /* which began it */
	size_t count;
	struct node *nodes;
	struct executable *instantiated;
	struct graph *next;
};

struct item {
	CUdeviceptr address;
	CUdevice device;
	size_t bytes; /* 0: it frees what another graph has allocated */
	bool freed;   /* by the graph itself */
};

struct executable {
	unsigned long long microseconds, flags;
	struct graph *of; /* NULL: it was destroyed */
	size_t count;
	struct item *items;
};

/* Guards all of this. */
extern pthread_mutex_t graphs_lock;
extern struct graph *graphs;

/* Whether a number is a mode of capture. */
bool capture_mode(int mode);
