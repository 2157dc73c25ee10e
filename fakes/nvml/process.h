/* Processes on GPUs. An entry whose process has ended counts for nothing. */
#pragma once
#include "state.h"

/* Which PID namespace this process is in: the low bits of its inode, 0 where that cannot be told. */
uint32_t ff_pid_namespace(void);

/* Lets processes of other PID namespaces know that this one lives; within a change. */
void ff_process_hold(void);

/* Whether the entry is in use by a process that may still live. */
bool ff_process_alive(const struct ff_process *p);

/* Frees the entries of processes that have ended. */
void ff_sweep(struct ff_gpu *gpu);
