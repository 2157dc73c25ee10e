/* The limit of each device of the process. */
#pragma once
#include "cuda.h"
#include "limits.h"

/* The number of a device's limit; -1: none. */
int limit_of(CUdevice device);

/* The same for the calling thread's current context, which it returns too. */
int limit_of_current(CUcontext *context);

/* The same for a stream's device, which it returns too. */
int limit_of_stream(CUstream stream, CUdevice *device);

/*
 * While a stream is captured the driver refuses calls that it deems unsafe, on the thread that began the capture, and with the mode
 * "global" on every thread; and the capture is over (CUDA's driver API, cuThreadExchangeStreamCaptureMode). The library's own calls between
 * these two end nobody's capture.
 */
int capture_relax(void);
void capture_restore(int mode);

/* Call after a fork: device numbers may have changed. */
void devices_forget(void);
