#define _GNU_SOURCE
#include "turns.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "words.h"

#define MILLISECOND 1000000ll

/* A turn of a process that found no arbiter. */
#define ALONE (20 * MILLISECOND)

/* The shortest time between two searches for the arbiter. */
#define SEARCH (1000 * MILLISECOND)

/* An arbiter that lets a question wait for so long, in milliseconds, is taken for dead. */
#define PATIENCE 2000

/* The longest turn that is believed. */
#define MOST (1000 * MILLISECOND)

int64_t turns_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void turns_forget(struct turns *t)
{
	if (t->file >= 0)
		close(t->file);
	*t = (struct turns){.file = -1};
}

/* Gives the arbiter up for a while. */
static void lose(struct turns *t)
{
	if (t->file >= 0)
		close(t->file);
	t->file = -1;
	t->tried = turns_now();
}

static bool say(struct turns *t, enum turn_kind kind, const char *uuid, int64_t nanoseconds)
{
	struct turn_message m = {.kind = kind, .nanoseconds = (uint64_t)nanoseconds};
	if (uuid)
		strncpy(m.uuid, uuid, sizeof m.uuid - 1);
	return send(t->file, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof m;
}

/* Receives a packet. 0: none came in time; -1: there is no arbiter any more. */
static int hear(struct turns *t, struct turn_message *m)
{
	struct pollfd p = {.fd = t->file, .events = POLLIN};
	int r;
	do
		r = poll(&p, 1, PATIENCE);
	while (r < 0 && errno == EINTR);
	if (r <= 0)
		return r;
	return recv(t->file, m, sizeof *m, MSG_DONTWAIT) == sizeof *m ? 1 : -1;
}

/* Connects to a socket, and says which GPU it is about. */
static bool reach(struct turns *t, const struct sockaddr_un *at, const struct limit *of)
{
	t->file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (t->file >= 0 && connect(t->file, (const struct sockaddr *)at, sizeof *at) == 0 && say(t, TURN_HELLO, of->uuid, 0))
		return true;
	lose(t);
	return false;
}

static bool connected(struct turns *t, const struct limit *of)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX}, claims = at;
	if (t->file >= 0)
		return true;
	if (t->tried && turns_now() - t->tried < SEARCH)
		return false;
	t->tried = turns_now();
	_Static_assert(sizeof TURNS_SOCKET <= sizeof at.sun_path, "the path of a socket is short");
	memcpy(at.sun_path, TURNS_SOCKET, sizeof TURNS_SOCKET);
	/* Only where a test puts the directory is the path too long for a socket's. */
	int length = snprintf(claims.sun_path, sizeof claims.sun_path, TURNS_DIRECTORY "/%s/socket", of->uuid);
	return (length < (int)sizeof claims.sun_path && reach(t, &claims, of)) || reach(t, &at, of);
}

static int64_t length_of(const struct turn_message *m)
{
	return m->nanoseconds < MOST ? (int64_t)m->nanoseconds : MOST;
}

/* Asks for a turn and waits for it. 0: the arbiter does not answer. Others may have long turns, so an arbiter that is only busy says so when it is asked again. */
static int64_t ask(struct turns *t)
{
	struct turn_message m;
	bool again = false;
	if (!say(t, TURN_WANT, NULL, 0))
		return 0;
	for (;;) {
		int r = hear(t, &m);
		if (r < 0 || (r == 0 && (again || !say(t, TURN_WANT, NULL, 0))))
			return 0;
		again = r == 0;
		if (r > 0 && m.kind == TURN_GRANT && m.nanoseconds > 0)
			return length_of(&m);
	}
}

int64_t turns_take(struct turns *t, const struct limit *of)
{
	for (;;) {
		if (connected(t, of)) {
			int64_t length = ask(t);
			if (length > 0) {
				t->began = turns_now();
				return length;
			}
			lose(t);
		}
		words_once("nobody on the node gives turns on a GPU at the moment: each process holds itself to its percentage of the cores");
		int64_t now = turns_now(), left = t->after - now;
		if (left <= 0) {
			t->began = now;
			return ALONE;
		}
		left = left < SEARCH ? left : SEARCH;
		nanosleep(&(struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000}, NULL);
	}
}

int64_t turns_more(struct turns *t, const struct limit *of)
{
	struct turn_message m;
	if (t->file < 0)
		return of->cores >= 100 ? ALONE : 0;
	if (!say(t, TURN_MORE, NULL, 0)) {
		lose(t);
		return 0;
	}
	for (;;) {
		if (hear(t, &m) <= 0) {
			lose(t);
			return 0;
		}
		if (m.kind == TURN_GRANT)
			return length_of(&m);
		if (m.kind == TURN_CLOSE)
			return 0;
	}
}

void turns_give(struct turns *t, const struct limit *of, int64_t worked)
{
	int64_t now = turns_now();
	if (t->file >= 0 && say(t, TURN_DONE, NULL, worked))
		return;
	if (t->file >= 0)
		lose(t);
	if (of->cores)
		t->after = now + (now - t->began) * (100 - (int64_t)of->cores) / of->cores;
}
