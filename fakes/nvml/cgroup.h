/* Control groups of version 2: which one a path names, and in which this process is. */
#pragma once
#include "state.h"

/* ff_cgroup_named gives the inode of a cgroup's directory, which no other cgroup ever has; false where the path is no directory of cgroup
 * v2. */
bool ff_cgroup_named(const char *path, uint64_t *id);

/* ff_cgroups_mine fills in this process's cgroup and then those above it, as far as it sees them; the rest is 0. A container sees its own
 * alone, as the root of its namespace. */
void ff_cgroups_mine(uint64_t ids[FF_MAX_CGROUPS]);

/* ff_cgroup_of tells whether a process is in a cgroup, or in one below it. */
bool ff_cgroup_of(const struct ff_process *p, uint64_t id);
