/*
 * The limit of cores: a process launches on a GPU when its gate lets it (gate.h). Every wait there is bounded.
 *
 * A launch reads a few numbers, and passes without a system call while its container is in its slot and the GPU's queue is short. Otherwise
 * it waits for a bounded time. The library has one thread for each GPU with a limit of cores on which the process launches. Each
 * millisecond it checks events in the streams behind the launches, charges the GPU's progress, and computes the numbers. About one launch a
 * millisecond gets an event. The thread never waits in the driver, and sleeps while the process has no GPU work.
 */
#pragma once
#include <stdbool.h>

#include "cuda.h"

struct lane;
struct stream;

/* A launch in progress; lane is NULL when it is not limited. */
struct launch {
	struct lane *lane;
	CUcontext context;
	CUstream stream; /* as it is known here */
};

/* Waits until the calling thread may launch into a stream on its current device. per_thread: the default stream is the thread's own. */
void cores_begin(struct launch *l, CUstream stream, bool per_thread);

/* Ends a launch with the driver's result, and returns that result. */
CUresult cores_end(const struct launch *l, CUresult r);

/* Calls the driver's function that begins a capture, while the library does not use any stream. */
CUresult cores_capture(CUresult (*begin)(CUstream, int), CUstream stream, int mode);

/* Call before a stream or a context is destroyed. */
void cores_forget_stream(CUstream stream);
void cores_forget_context(CUcontext context);
