/* This process's allocations, with the bytes reserved for each. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind { MEMORY = 1, PHYSICAL, MAPPING, BINDING, ARRAY };

struct holding {
	enum kind kind;
	uint64_t key; /* an address, or a handle */
	uint64_t bytes; /* of a mapping: its length; of a binding: its multicast object */
	int device; /* number of the limit; -1: none */
	void *context;    /* freed with this context; NULL: none */
	uint64_t other;   /* of a mapping or binding: the physical memory's handle; of exported physical memory: its key in the account */
	struct stock *stock; /* its pool; NULL: none */
	unsigned int uses; /* of physical memory: handles and mappings */
};

/* Records a holding. Returns false on lack of memory. */
bool holdings_put(const struct holding *h);

/* Removes a holding. Returns false when it does not exist. */
bool holdings_take(enum kind kind, uint64_t key, struct holding *out);

/* Finds a holding. Returns false when it does not exist. */
bool holdings_look(enum kind kind, uint64_t key, struct holding *out);

/* Sets the account's key of physical memory. */
void holdings_name(uint64_t key, uint64_t name);

/*
 * Adds one to the uses of physical memory, or subtracts one. Returns true when that was the last use and the holding was removed. out is
 * the holding, if it exists.
 */
bool holdings_use(uint64_t key, int by, struct holding *out);

/* Removes the matching holdings and passes each to taken. It scans all. */
void holdings_take_all(bool (*match)(const struct holding *, uint64_t), uint64_t what, void (*taken)(const struct holding *));

/* Forgets all holdings: after a fork they belong to the parent. */
void holdings_forget(void);
