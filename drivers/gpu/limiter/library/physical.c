/*
 * Physical memory (cuMemCreate) exists as long as a handle, mapping or multicast object of it; programs often release the handle after
 * mapping. Exported memory exists as long as any process holds it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"
#include "memory.h"
#include "overhead.h"

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* Releases memory after its last handle and mapping in this process. */
static void gone(const struct holding *h)
{
	if (h->kind != PHYSICAL || h->device < 0)
		return; /* a multicast object has no memory of its own */
	if (h->other)
		account_let_go(h->device, h->other);
	else
		account_release(h->device, h->bytes);
}

static void last_use(CUhandle handle);

static bool bound_to(const struct holding *h, uint64_t multicast)
{
	return h->kind == BINDING && h->bytes == multicast;
}

static void unbind(const struct holding *h)
{
	last_use(h->other);
}

static void last_use(CUhandle handle)
{
	struct holding h;
	if (!holdings_use(handle, -1, &h))
		return;
	gone(&h);
	if (h.device < 0)
		holdings_take_all(bound_to, handle, unbind);
}

EXPORT CUresult cuMemCreate(CUhandle *out, size_t size, const CUallocation *what, unsigned long long flags)
{
	CUresult (*real)(CUhandle *, size_t, const CUallocation *, unsigned long long) = REAL(cuda, cuMemCreate);
	int limit = -1;
	uint64_t bytes = memory_rounded(size);
	NEED(real);
	if (what && what->location.type == LOCATION_DEVICE)
		limit = memory_limit(limit_of(what->location.id));
	if (limit >= 0 ? !stocks_reserve(limit, bytes) : memory_refused())
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(out, size, what, flags);
	if (limit >= 0 && r != CUDA_SUCCESS)
		account_release(limit, bytes);
	else if (limit >= 0)
		holdings_put(&(struct holding){.kind = PHYSICAL, .key = *out, .bytes = bytes, .device = limit, .uses = 1});
	return r;
}

/* Remove the record first: the driver may give the handle to another thread at once. */
EXPORT CUresult cuMemRelease(CUhandle handle)
{
	CUresult (*real)(CUhandle) = REAL(cuda, cuMemRelease);
	struct holding h = {.kind = 0};
	NEED(real);
	bool last = limits_get() && holdings_use(handle, -1, &h);
	CUresult r = real(handle);
	if (r != CUDA_SUCCESS && last) {
		h.uses = 1;
		holdings_put(&h);
	} else if (r != CUDA_SUCCESS && h.kind) {
		holdings_use(handle, 1, &h);
	} else if (last) {
		gone(&h);
		if (h.device < 0)
			holdings_take_all(bound_to, handle, unbind);
	}
	return r;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *out, void *address)
{
	CUresult (*real)(CUhandle *, void *) = REAL(cuda, cuMemRetainAllocationHandle);
	struct holding h;
	NEED(real);
	CUresult r = real(out, address);
	if (r == CUDA_SUCCESS && limits_get())
		holdings_use(*out, 1, &h);
	return r;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
	CUresult (*real)(CUdeviceptr, size_t, size_t, CUhandle, unsigned long long) = REAL(cuda, cuMemMap);
	struct holding h;
	NEED(real);
	CUresult r = real(at, size, offset, handle, flags);
	if (r == CUDA_SUCCESS && limits_get() && holdings_put(&(struct holding){.kind = MAPPING, .key = at, .bytes = size, .other = handle}))
		holdings_use(handle, 1, &h);
	return r;
}

/* A range consists of whole mappings, one after another (cuMemUnmap's documentation). */
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	CUresult (*real)(CUdeviceptr, size_t) = REAL(cuda, cuMemUnmap);
	struct holding h;
	NEED(real);
	CUresult r = real(at, size);
	CUdeviceptr end = at + size;
	while (r == CUDA_SUCCESS && limits_get() && at < end && holdings_take(MAPPING, at, &h)) {
		last_use(h.other);
		at += h.bytes;
	}
	return r;
}

/*
 * An exported descriptor carries its memory's key as a read lock of its open file description, which every process has: the lock is on the
 * byte with that number and does not exclude others. /proc/self/fdinfo lists a descriptor's locks.
 */
static bool name_descriptor(int file, uint64_t key)
{
	struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)key, .l_len = 1};
	return fcntl(file, F_OFD_SETLK, &l) == 0;
}

/* The key of a descriptor's memory; 0: none. */
static uint64_t key_of_descriptor(int file)
{
	char path[48], text[1024];
	uint64_t key = 0;
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
	int info = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = info < 0 ? -1 : read(info, text, sizeof text - 1);
	if (info >= 0)
		close(info);
	if (length <= 0)
		return 0;
	text[length] = 0;
	/* lock: 1: OFDLCK ADVISORY READ -1 00:06:345 START END */
	const char *at = strstr(text, "OFDLCK");
	for (int field = 0; at && field < 5; field++) {
		while (*at && *at != ' ')
			at++;
		while (*at == ' ')
			at++;
	}
	for (; at && *at >= '0' && *at <= '9'; at++)
		key = key * 10 + (uint64_t)(*at - '0');
	return key;
}

/* A unique key: 62 random bits, or bits of the clock if there are none. */
static uint64_t new_key(void)
{
	uint64_t key = 0;
	struct timespec t;
	if (syscall(SYS_getrandom, &key, sizeof key, 0) != (long)sizeof key) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		key = ((uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec ^ (uintptr_t)&key) * 0x9e3779b97f4a7c15u;
	}
	return (key >> 2) | 1;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUhandle handle, int type, unsigned long long flags)
{
	CUresult (*real)(void *, CUhandle, int, unsigned long long) = REAL(cuda, cuMemExportToShareableHandle);
	struct holding h = {.kind = 0};
	NEED(real);
	CUresult r = real(out, handle, type, flags);
	if (r != CUDA_SUCCESS || type != HANDLE_DESCRIPTOR || !limits_get() || holdings_use(handle, 1, &h) || !h.kind)
		return r;
	/* The use above keeps the record alive. */
	if (h.device >= 0 && h.other)
		name_descriptor(*(int *)out, h.other);
	else if (h.device >= 0) {
		uint64_t key = new_key();
		if (name_descriptor(*(int *)out, key) && account_exported(h.device, key, h.bytes))
			holdings_name(handle, key);
	}
	last_use(handle);
	return r;
}

/* The device on which memory is; -1: none, as for the host's. */
static CUdevice device_of(CUhandle memory)
{
	CUresult (*properties)(CUallocation *, CUhandle) = REAL(cuda, cuMemGetAllocationPropertiesFromHandle);
	CUallocation p;
	bool on_device = properties && properties(&p, memory) == CUDA_SUCCESS && p.location.type == LOCATION_DEVICE;
	return on_device ? p.location.id : -1;
}

/* Memory of another container, or of another machine (a fabric handle), counts there. */
EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *out, void *handle, int type)
{
	CUresult (*real)(CUhandle *, void *, int) = REAL(cuda, cuMemImportFromShareableHandle);
	NEED(real);
	uint64_t bytes, key = limits_get() && type == HANDLE_DESCRIPTOR ? key_of_descriptor((int)(intptr_t)handle) : 0;
	CUresult r = real(out, handle, type);
	if (r != CUDA_SUCCESS)
		return r;
	overhead_imported();
	int limit = key ? memory_limit(limit_of(device_of(*out))) : -1;
	struct holding h = {.kind = PHYSICAL, .key = *out, .device = limit, .other = key, .uses = 1};
	if (limit >= 0 && account_imported(limit, key, &bytes)) {
		h.bytes = bytes;
		if (!holdings_put(&h))
			account_let_go(limit, key);
	}
	return r;
}

/* A multicast object keeps the memory that is bound to it. It has no memory itself; its handle is used like that of memory. */
EXPORT CUresult cuMulticastCreate(CUhandle *out, const void *what)
{
	CUresult (*real)(CUhandle *, const void *) = REAL(cuda, cuMulticastCreate);
	NEED(real);
	CUresult r = real(out, what);
	if (r == CUDA_SUCCESS && limits_get())
		holdings_put(&(struct holding){.kind = PHYSICAL, .key = *out, .device = -1, .uses = 1});
	return r;
}

/* The name of a binding among the holdings. */
static uint64_t binding(CUhandle multicast, CUdevice device, size_t offset)
{
	return (multicast * 0x9e3779b97f4a7c15u ^ (uint64_t)(unsigned int)device) * 0x9e3779b97f4a7c15u ^ offset;
}

static void bind(CUhandle multicast, CUdevice device, size_t offset, CUhandle memory)
{
	struct holding h;
	struct holding b = {.kind = BINDING, .key = binding(multicast, device, offset), .bytes = multicast, .device = -1, .other = memory};
	if (holdings_put(&b))
		holdings_use(memory, 1, &h);
}

/* The first versions name no device: it is that of the memory. CUDA 13.1 added the others. */
EXPORT CUresult cuMulticastBindMem(CUhandle multicast, size_t offset, CUhandle memory, size_t from, size_t size, unsigned long long flags)
{
	CUresult (*real)(CUhandle, size_t, CUhandle, size_t, size_t, unsigned long long) = REAL(cuda, cuMulticastBindMem);
	NEED(real);
	CUresult r = real(multicast, offset, memory, from, size, flags);
	if (r == CUDA_SUCCESS && limits_get())
		bind(multicast, device_of(memory), offset, memory);
	return r;
}

EXPORT CUresult cuMulticastBindMem_v2(CUhandle multicast, CUdevice device, size_t offset, CUhandle memory, size_t from, size_t size,
				      unsigned long long flags)
{
	CUresult (*real)(CUhandle, CUdevice, size_t, CUhandle, size_t, size_t, unsigned long long) = REAL(cuda, cuMulticastBindMem_v2);
	NEED(real);
	CUresult r = real(multicast, device, offset, memory, from, size, flags);
	if (r == CUDA_SUCCESS && limits_get())
		bind(multicast, device, offset, memory);
	return r;
}

EXPORT CUresult cuMulticastBindAddr(CUhandle multicast, size_t offset, CUdeviceptr at, size_t size, unsigned long long flags)
{
	CUresult (*real)(CUhandle, size_t, CUdeviceptr, size_t, unsigned long long) = REAL(cuda, cuMulticastBindAddr);
	struct holding mapping;
	NEED(real);
	CUresult r = real(multicast, offset, at, size, flags);
	if (r == CUDA_SUCCESS && limits_get() && holdings_look(MAPPING, at, &mapping))
		bind(multicast, device_of(mapping.other), offset, mapping.other);
	return r;
}

EXPORT CUresult cuMulticastBindAddr_v2(
	CUhandle multicast, CUdevice device, size_t offset, CUdeviceptr at, size_t size, unsigned long long flags)
{
	CUresult (*real)(CUhandle, CUdevice, size_t, CUdeviceptr, size_t, unsigned long long) = REAL(cuda, cuMulticastBindAddr_v2);
	struct holding mapping;
	NEED(real);
	CUresult r = real(multicast, device, offset, at, size, flags);
	if (r == CUDA_SUCCESS && limits_get() && holdings_look(MAPPING, at, &mapping))
		bind(multicast, device, offset, mapping.other);
	return r;
}

EXPORT CUresult cuMulticastUnbind(CUhandle multicast, CUdevice device, size_t offset, size_t size)
{
	CUresult (*real)(CUhandle, CUdevice, size_t, size_t) = REAL(cuda, cuMulticastUnbind);
	struct holding h;
	NEED(real);
	CUresult r = real(multicast, device, offset, size);
	if (r == CUDA_SUCCESS && limits_get() && holdings_take(BINDING, binding(multicast, device, offset), &h))
		last_use(h.other);
	return r;
}
