#define _GNU_SOURCE
#include "devices.h"

#include <stdatomic.h>
#include <stdio.h>

#include "hooks.h"

#define MOST_ORDINALS 64
#define UNKNOWN (-2)

/* The limit's number of each device of the process; -1: none. */
static atomic_int ordinals[MOST_ORDINALS] = {[0 ... MOST_ORDINALS - 1] = UNKNOWN};

int limit_of(CUdevice device)
{
	if (!limits_get() || device < 0 || device >= MOST_ORDINALS)
		return -1;
	int known = atomic_load_explicit(&ordinals[device], memory_order_relaxed);
	if (known != UNKNOWN)
		return known;
	CUresult (*uuid)(CUuuid *, CUdevice) = REAL(cuda, cuDeviceGetUuid_v2);
	if (!uuid)
		uuid = REAL(cuda, cuDeviceGetUuid);
	CUuuid u;
	if (!uuid || uuid(&u, device) != CUDA_SUCCESS)
		return -1; /* not initialised: the driver returns the error */
	char text[UUID_BYTES] = "GPU-", *at = text + 4;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", u.bytes[i]);
	}
	bool final = limits_known();
	known = limits_find(text);
	if (final)
		atomic_store_explicit(&ordinals[device], known, memory_order_relaxed);
	return known;
}

int limit_of_current(CUcontext *context)
{
	CUdevice device;
	CUresult (*get_device)(CUdevice *) = REAL(cuda, cuCtxGetDevice);
	CUresult (*get_context)(CUcontext *) = REAL(cuda, cuCtxGetCurrent);
	*context = NULL;
	if (!limits_get() || !get_device || get_device(&device) != CUDA_SUCCESS)
		return -1;
	if (get_context)
		get_context(context);
	return limit_of(device);
}

/* A stream can belong to another context than the current one; with one device that makes no difference. */
int limit_of_stream(CUstream stream, CUdevice *device)
{
	CUresult (*count)(int *) = REAL(cuda, cuDeviceGetCount);
	CUresult (*context_of)(CUstream, CUcontext *) = REAL(cuda, cuStreamGetCtx);
	CUresult (*push)(CUcontext) = REAL(cuda, cuCtxPushCurrent_v2);
	CUresult (*pop)(CUcontext *) = REAL(cuda, cuCtxPopCurrent_v2);
	CUresult (*get_device)(CUdevice *) = REAL(cuda, cuCtxGetDevice);
	CUcontext context, of_stream;
	int devices = 1;
	if (!limits_get() || !get_device || get_device(device) != CUDA_SUCCESS)
		return -1;
	bool named = (uintptr_t)stream > STREAM_PER_THREAD;
	if (named && count && count(&devices) == CUDA_SUCCESS && devices > 1 && context_of && push && pop &&
		context_of(stream, &of_stream) == CUDA_SUCCESS && push(of_stream) == CUDA_SUCCESS) {
		get_device(device);
		pop(&context);
	}
	return limit_of(*device);
}

static int exchange(int mode)
{
	CUresult (*real)(int *) = REAL(cuda, cuThreadExchangeStreamCaptureMode);
	if (real)
		real(&mode);
	return mode;
}

int capture_relax(void)
{
	return exchange(CAPTURE_RELAXED);
}

void capture_restore(int mode)
{
	exchange(mode);
}

void devices_forget(void)
{
	for (int i = 0; i < MOST_ORDINALS; i++)
		atomic_store(&ordinals[i], UNKNOWN);
}
