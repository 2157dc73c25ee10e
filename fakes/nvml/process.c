#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

uint32_t ff_pid_namespace(void)
{
	static uint32_t mine;
	char text[64] = "";
	unsigned long inode;
	/* The link's text has the inode; stat would need a newer C library than older images have. */
	if (!mine && readlink("/proc/self/ns/pid", text, sizeof text - 1) > 0 && sscanf(text, "pid:[%lu]", &inode) == 1)
		mine = (uint32_t)inode;
	return mine;
}

/* The byte of the state file that a process keeps locked. The kernel gives it up with the process, whatever ends it, and shows that in
 * every namespace. */
static uint64_t place(uint32_t namespace, uint32_t pid)
{
	return (uint64_t)(namespace & 0x3fffffff) << 32 | pid;
}

void ff_process_hold(void)
{
	ff_state_hold(place(ff_pid_namespace(), (uint32_t)getpid()));
}

bool ff_process_alive(const struct ff_process *p)
{
	if (!p->pid)
		return false;
	if (p->namespace == ff_pid_namespace())
		return kill((pid_t)p->pid, 0) == 0 || errno != ESRCH;
	return !p->namespace || ff_state_held(place(p->namespace, p->pid));
}

void ff_sweep(struct ff_gpu *gpu)
{
	for (int i = 0; i < FF_MAX_PROCESSES; i++)
		if (gpu->processes[i].pid && !ff_process_alive(&gpu->processes[i]))
			memset(&gpu->processes[i], 0, sizeof gpu->processes[i]);
}
