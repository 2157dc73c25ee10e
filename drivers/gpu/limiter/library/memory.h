/* Shared parts of the functions that allocate and free. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "holdings.h"
#include "hooks.h"
#include "stocks.h"

/*
 * The driver allocates in steps of this size (CUDA's programming guide promises at least 256; allocations have been seen 512 apart). Above
 * its granule of physical memory it takes whole granules (cuMemGetAllocationGranularity answers 2 MiB for every GPU so far).
 */
#define MEMORY_STEP ((uint64_t)512)
#define MEMORY_GRANULE ((uint64_t)2 << 20)

/* Rounds up as the driver does. An amount above 2^47 becomes 2^47, which fits no GPU either. */
static inline uint64_t memory_rounded(uint64_t bytes)
{
	uint64_t step = bytes > MEMORY_GRANULE ? MEMORY_GRANULE : MEMORY_STEP;
	return bytes > (uint64_t)1 << 47 ? (uint64_t)1 << 47 : (bytes + step - 1) & ~(step - 1);
}

/* A device without a limit of its own is not limited. If the limits cannot be read, every device denies allocations. */
static inline bool memory_refused(void)
{
	const struct limits *l = limits_get();
	return l && l->count == 0;
}

/* The number of the limit that counts a device's memory; -1: none. */
static inline int memory_limit(int limit)
{
	return limit >= 0 && limits_get()->devices[limit].elsewhere ? -1 : limit;
}

/* The bytes of a holding are free. */
static inline void memory_freed(const struct holding *h)
{
	if (h->stock)
		stocks_freed(h->stock, h->bytes);
	else
		account_release(h->device, h->bytes);
}

#define NEED(f)           \
	if (!(f))         \
		return NOT_THERE

/*
 * Removes a record before the driver frees, because the driver may give the address to another thread at once. Restores it if the driver
 * refused.
 */
#define MEMORY_FREE(kind, key, call)                     \
	do {                                             \
		struct holding h;                        \
		bool had = holdings_take(kind, key, &h); \
		CUresult r = call;                       \
		if (had && r == CUDA_SUCCESS)            \
			memory_freed(&h);                \
		else if (had)                            \
			holdings_put(&h);                \
		return r;                                \
	} while (0)
