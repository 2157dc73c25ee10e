/* What this process has allocated, with the bytes that were reserved for each allocation. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind { MEMORY = 1, PHYSICAL, MAPPING, ARRAY };

struct holding {
	enum kind kind;
	uint64_t key; /* an address, or a handle */
	uint64_t bytes;
	int device;
	void *context;    /* it is freed with this context; NULL: with none */
	uint64_t other;   /* of a mapping: the physical memory's handle */
	struct stock *stock; /* the pool that it is from, NULL: none */
	unsigned int uses; /* of physical memory: handles and mappings */
};

/* Records a holding. False: there is no memory for the record. */
bool holdings_put(const struct holding *h);

/* Removes a holding. False: there is no such holding. */
bool holdings_take(enum kind kind, uint64_t key, struct holding *out);

/* Changes the uses of physical memory by one, up or down. True: that was the last use, and the holding is removed. */
bool holdings_use(uint64_t key, int by, struct holding *out);

/* Removes one mapping in a range. */
bool holdings_take_mapping(uint64_t from, uint64_t length, struct holding *out);

/* Removes one holding of a context. */
bool holdings_take_context(void *context, struct holding *out);

/* Forgets all holdings, which after a fork are the parent's. */
void holdings_forget(void);
