/* The memory that all processes of a container have together. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

#ifndef ACCOUNT_DIRECTORY
#define ACCOUNT_DIRECTORY "/tmp/vgpu"
#endif

/*
 * Two files lie in the directory. gpufabric.account holds a total for each GPU, to which a process adds before it allocates, and for each process
 * what it is about to add (pending). cudevshr.cache is HAMi-core's shared region 1.2, which existing monitors read; what a process has, is counted
 * there and nowhere else.
 *
 * A process holds a lock (of an open file description) on one byte for its slot. The kernel drops it at any death, also by kill -9, and whatever
 * the PID namespaces are. Of every change the order is such that a death between two steps leaves the total too high and never too low. What is too
 * high is found when somebody would be denied: the slots of the dead are cleared, and the total is summed up again from the living, while nobody has
 * anything pending.
 */

/* Adds bytes to what the container has of a GPU. False: it does not fit, and nothing was added. */
bool account_reserve(int device, uint64_t bytes);

/* Takes bytes away that this process reserved. */
void account_release(int device, uint64_t bytes);

/* What the container has of a GPU, in bytes, without what processes had that have ended. */
uint64_t account_used(int device);
