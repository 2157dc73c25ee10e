/* Which limit each of the process's devices has. */
#pragma once
#include "cuda.h"
#include "limits.h"

/* The number of a device's limit, -1 where it has none. */
int limit_of(CUdevice device);

/* The same for the calling thread's current context, which is returned too. */
int limit_of_current(CUcontext *context);

/* The same for the device of a stream, which is returned too. */
int limit_of_stream(CUstream stream, CUdevice *device);

/* After a fork the numbers of devices may mean others. */
void devices_forget(void);
