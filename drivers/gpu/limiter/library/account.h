/* The memory that all processes of a container, or of all containers of a share, have together. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

#ifndef ACCOUNT_DIRECTORY
#define ACCOUNT_DIRECTORY "/tmp/vgpu"
#endif

/*
 * A directory of the same kind, by a GPU's UUID, that all containers of a claim's share have. It counts where it is mounted, and where the container has
 * no other share of that GPU: with several, the container's own directory counts their sum.
 */
#ifndef COMMON_DIRECTORY
#define COMMON_DIRECTORY "/usr/local/vgpu/accounts.d"
#endif

/*
 * Two files lie in a directory. gpufabric.account holds a total for each GPU, to which a process adds before it allocates, and for each process
 * what it is about to add (pending). cudevshr.cache is HAMi-core's shared region 1.2, which existing monitors read; only there it is counted what
 * each process has.
 *
 * A process holds a lock (of an open file description) on one byte for its slot. The kernel drops the lock when the process ends, also by kill -9,
 * and in any PID namespace. Every change has an order of steps in which a death between two steps leaves the total too high and never too low. A total
 * that is too high is found when an allocation would be denied: the slots of ended processes are cleared, and the total is recounted from the
 * processes that live, while no change is pending.
 */

/* Adds bytes to what is taken of a GPU's limit. False: it does not fit, and nothing was added. */
bool account_reserve(int device, uint64_t bytes);

/* Releases bytes that this process reserved. They stay counted where another process, which is stopped, keeps the lock on the totals. */
void account_release(int device, uint64_t bytes);

/* What the driver has taken already is added even where it does not fit: the account says what is. False: nothing can be counted. */
bool account_charge(int device, uint64_t bytes);

/* Memory that no allocation of the program stands for. */
enum overhead { OVERHEAD_CONTEXT, OVERHEAD_MODULE };

/* Says how much of it this process has, in bytes of each kind; one thread does at a time. False: nothing can be counted. */
bool account_overhead(int device, const uint64_t bytes[2]);

/* What this process has of a GPU: in all, and as overhead. */
void account_mine(int device, uint64_t *total, uint64_t overhead[2]);

/* What all living processes have of a GPU's limit, in bytes. */
uint64_t account_used(int device);
