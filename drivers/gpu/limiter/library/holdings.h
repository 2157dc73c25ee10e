/* What this process has allocated: of each thing, how much was reserved for it. */
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
	void *context;    /* it goes with this context; NULL: with none */
	uint64_t other;   /* of a mapping: the physical memory's handle */
	unsigned int uses; /* of physical memory: handles and mappings */
};

/* Notes a thing. False: there is no memory for the note. */
bool holdings_put(const struct holding *h);

/* Takes a thing out, false where it is not noted. */
bool holdings_take(enum kind kind, uint64_t key, struct holding *out);

/* Changes the uses of physical memory by one, up or down; true where the last one went, and then it is taken out. */
bool holdings_use(uint64_t key, int by, struct holding *out);

/* Takes one mapping in a range out. */
bool holdings_take_mapping(uint64_t from, uint64_t length, struct holding *out);

/* Takes one thing of a context out. */
bool holdings_take_context(void *context, struct holding *out);

/* Forgets everything: it is the parent's, before fork. */
void holdings_forget(void);
