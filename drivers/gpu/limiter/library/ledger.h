/*
 * The file in which all processes of a container, or of all containers of a claim's share, count their memory. It has a total for each GPU,
 * and for each process a slot with what it has and what it is about to add (pending). Every change has an order of steps in which a death
 * between two steps leaves the total too high and never too low (account.c).
 *
 * Two kinds of locks of the file say who lives:
 *
 * - A process has the lock on its slot's byte as a lock of the open file description, which is kept by the process's mapping of the file
 *   and by nothing else: the descriptor is closed at once, and the mapping is not copied into children (MADV_DONTFORK), neither by fork nor
 *   by a bare clone. So the kernel drops the lock when the process's memory goes, in any way and in any PID namespace, and no child, and no
 *   descriptor that the program closes, changes that. Only a fork by another thread during ledger_open, which takes microseconds, has a
 *   copy.
 * - The lock on the head keeps others out while slots are taken, cleared and recounted. It is a lock of the process, which no child has a
 *   part of.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "limits.h"

#define LEDGER_SLOTS 1024

struct ledger_device {
	_Atomic uint64_t total;
	_Atomic uint32_t dirty; /* the total may be too high */
	char uuid[UUID_BYTES];
	char unused[11]; /* fills a cache line */
};

struct ledger_slot {
	_Atomic uint64_t pending[MOST_DEVICES];
	_Atomic uint64_t has[MOST_DEVICES];
	_Atomic uint32_t taken;
	uint32_t unused[15];
};

/* A process that holds exported physical memory, by its allocation or an import. One of the holders pays: its slot has the bytes. */
struct ledger_holder {
	uint64_t key; /* the memory's key in this file; 0: free record */
	uint64_t bytes;
	uint32_t slot, uses, device;
	uint32_t pays;
};

#define LEDGER_HOLDERS 4096

/* The file. gpufabric.io/drivers/gpu/limiter/account reads it at these offsets. */
struct totals {
	_Atomic uint64_t magic;
	_Atomic uint32_t stop; /* totals are being computed again: do not change them, wait for the lock on the head */
	_Atomic uint32_t high; /* slots from here on were never used */
	uint64_t limits;       /* checksum of the limits that the file was made for */
	uint64_t unused[5];
	struct ledger_device devices[MOST_DEVICES];
	struct ledger_slot slots[LEDGER_SLOTS];
	uint32_t holders_high; /* records from here on were never used */
	uint32_t holders_unused[15];
	struct ledger_holder holders[LEDGER_HOLDERS];
};

_Static_assert(sizeof(struct ledger_device) == 64 && sizeof(struct ledger_slot) == 320, "the reader's");
_Static_assert(sizeof(struct totals) == 459904, "the reader's, and that of the file that the node makes");

/* The file as this process sees it. */
struct ledger {
	char path[128];
	dev_t device; /* identity of the mapped file, to detect a replaced one */
	ino_t inode;
	int file; /* open while the process holds the lock on the head, else -1 */
	int slot;
	struct totals *totals;
};

/*
 * BUSY: another process holds the lock on the head, or the program has no descriptor left. FULL: no slot is free. UNUSABLE: it was made for
 * other limits, or is not such a file.
 */
enum ledger_opened { LEDGER_OPENED, LEDGER_UNUSABLE, LEDGER_BUSY, LEDGER_FULL };

/*
 * Opens the file, with a slot for this process. If no live process uses it, it is reset. make: create a missing file. dead clears the slot
 * of an ended process.
 */
enum ledger_opened ledger_open(
	struct ledger *l, const char *path, bool make, const struct limits *limits, bool patient, void (*dead)(struct totals *, int slot));

/*
 * Takes the lock on the head. patient: wait up to HEAD_NANOSECONDS. Returns false when another process holds it, or the file is no longer
 * in its place.
 */
bool ledger_enter(struct ledger *l, bool patient);
void ledger_leave(struct ledger *l);

/* Reports whether a slot's process is alive. The caller holds the lock on the head. */
bool ledger_alive(const struct ledger *l, int slot);

/* Maps a file of a directory, created if missing, for this process and not its children; NULL: not usable. */
void *ledger_map(const char *path, size_t size, bool make, int *file);
