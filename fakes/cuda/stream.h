/* Streams, each of which does one thing after the other. */
#pragma once
#include <stdbool.h>

#include "context.h"
#include "module.h"

/* What launch.c gives a stream. Without anything that waits before it, it has its time on the GPU at once. */
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
