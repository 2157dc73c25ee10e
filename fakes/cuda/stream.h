/* Streams, each of which does one thing after the other. */
#pragma once
#include <stdbool.h>

#include "context.h"
#include "module.h"

/* Runs a kernel in a stream. Where nothing before it waits, it has its time on the GPU at once. */
CUresult streams_run(struct context *c, CUstream s, const struct kernel *k);
CUresult streams_record(struct context *c, CUstream s, struct event *e);

/* Sees what has ended of all that waits. */
void streams_advance(void);

/* Whether a stream, or all: any stream of the context, has something that waits. */
bool streams_wait(struct context *c, CUstream s, bool all);

CUstream streams_new(struct context *c);
struct context *streams_context(CUstream s);

/* An event that was destroyed: nothing records it any more. */
void streams_forget(const struct event *e);
