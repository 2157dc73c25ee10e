/*
 * A process's turns on a GPU: it asks the node's arbiter (gpufabric.io/drivers/gpu/cores), over a socket that the node mounts read-only into the container, and
 * waits until it has one. Where the arbiter does not answer, the process holds itself to its percentage: after a turn it waits for as long as the others are
 * entitled to.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

#ifndef TURNS_SOCKET
#define TURNS_SOCKET "/usr/local/vgpu/turns/socket"
#endif

/* The sockets of claims: GPU-.../socket for each GPU of which the container has a share by a claim. */
#ifndef TURNS_DIRECTORY
#define TURNS_DIRECTORY "/usr/local/vgpu/turns.d"
#endif

enum turn_kind { TURN_HELLO = 1, TURN_WANT, TURN_MORE, TURN_DONE, TURN_GRANT, TURN_WAIT, TURN_CLOSE };

/* A packet, of which each is sent whole. HELLO names the GPU; GRANT has the length of the turn; DONE says how long the GPU worked for the process in it, 0: not known. */
struct turn_message {
	uint32_t kind, unused;
	uint64_t nanoseconds;
	char uuid[48];
};

struct turns {
	int file;	/* the connection, -1: none */
	int64_t tried;	/* when the arbiter was last looked for, 0: never */
	int64_t began;	/* this turn */
	int64_t after;	/* without an arbiter: no turn before */
};

/* Nanoseconds of a clock that is never set. */
int64_t turns_now(void);

/* Waits for a turn of a GPU. Returns its length in nanoseconds. */
int64_t turns_take(struct turns *t, const struct limit *of);

/* Asks for more at the end of a turn. Returns the length, 0 where it is another's turn. */
int64_t turns_more(struct turns *t, const struct limit *of);

/* Gives a turn back, in which the GPU worked for so many nanoseconds; the process has nothing on the GPU any more. */
void turns_give(struct turns *t, const struct limit *of, int64_t worked);

/* Forgets the connection, which after a fork is the parent's. */
void turns_forget(struct turns *t);
