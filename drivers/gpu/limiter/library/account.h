/* The memory that all processes of a container, or of all containers of a share, use together. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

/*
 * The file in which the container counts (ledger.h). The node mounts it, so that a program that cleans a directory cannot remove it.
 * Without such a mount the library makes the file in OWN_DIRECTORY, a file system of the container's own, or beside the region for
 * monitors.
 */
#ifndef ACCOUNT_FILE
#define ACCOUNT_FILE "/usr/local/vgpu/account"
#endif
#ifndef OWN_DIRECTORY
#define OWN_DIRECTORY "/usr/local/vgpu/own"
#endif

/* The path where existing monitors expect cudevshr.cache, HAMi-core's shared region 1.2 (region.h). */
#ifndef REGION_DIRECTORY
#define REGION_DIRECTORY "/tmp/vgpu"
#endif

/*
 * Files of the same format, by GPU UUID, that all containers of a claim's share use. Such a file is used if it is mounted and the container
 * has no other share of that GPU: with several shares, the container's own file counts their sum.
 */
#ifndef COMMON_DIRECTORY
#define COMMON_DIRECTORY "/usr/local/vgpu/accounts.d"
#endif

/* Reserves bytes of a GPU's limit. Returns false, without reserving, when they do not fit. */
bool account_reserve(int device, uint64_t bytes);

/* Releases bytes that this process reserved. They stay counted while a stopped process keeps the lock on the totals. */
void account_release(int device, uint64_t bytes);

/* Adds memory that the driver has already taken, even when it exceeds the limit. Returns false when counting is not possible. */
bool account_charge(int device, uint64_t bytes);

/* Memory without an allocation of the program. */
enum overhead { OVERHEAD_CONTEXT, OVERHEAD_MODULE };

/* Sets this process's amount of each kind, in bytes. Call from one thread at a time. Returns false when counting is not possible. */
bool account_overhead(int device, const uint64_t bytes[2]);

/* The GPU memory of this process: total and overhead. */
void account_mine(int device, uint64_t *total, uint64_t overhead[2]);

/* The bytes of a GPU's limit that all live processes use. */
uint64_t account_used(int device);

/*
 * Records that physical memory which this process has charged was exported under a key, unique in the account. It is counted once, while
 * any process holds it. Returns false when it cannot be tracked and so counts for this process.
 */
bool account_exported(int device, uint64_t key, uint64_t bytes);

/* Records an import by this process. Returns false when the key is unknown here, and the memory counts where it was allocated. */
bool account_imported(int device, uint64_t key, uint64_t *bytes);

/* Records the end of one export or import by this process. */
void account_let_go(int device, uint64_t key);
