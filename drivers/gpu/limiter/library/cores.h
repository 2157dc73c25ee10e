/*
 * The limit of cores: a process launches on a GPU only in its turn, and gives the turn back when the GPU has done what was launched.
 *
 * A launch passes a gate, which is open during a turn. A thread of the library, one for each GPU with a limit of cores that the process launches on, takes the
 * turns, opens the gate and closes it. It sees by events, recorded in the streams behind the launches, what the GPU has done. Not every launch gets one: the time
 * between two of them is measured, and their number follows from it. So many of them may be outstanding that the GPU has work for some milliseconds.
 */
#pragma once
#include <stdbool.h>

#include "cuda.h"

struct lane;

/* A launch between its beginning and its end; lane is NULL where nothing limits it. */
struct launch {
	struct lane *lane;
	CUcontext context;
};

/* Waits until the calling thread may launch on its current device. */
void cores_begin(struct launch *l);

/* Ends a launch into a stream, with the driver's result. Returns that. */
CUresult cores_end(const struct launch *l, CUstream stream, bool per_thread, CUresult r);

/* Calls the driver's function that begins a capture, while the library does nothing to any stream. */
CUresult cores_capture(CUresult (*begin)(CUstream, int), CUstream stream, int mode);

/* Must be called before a stream, or a context, is destroyed. */
void cores_forget_stream(CUstream stream);
void cores_forget_context(CUcontext context);
