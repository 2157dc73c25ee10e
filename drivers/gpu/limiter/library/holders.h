/*
 * Exported physical memory belongs to every process that holds it, and is counted once, for one of them, while any does. The records are in
 * the account's file. The caller of each function holds the lock on the head.
 */
#pragma once
#include "ledger.h"

/* A slot's record of a memory; NULL: none. */
struct ledger_holder *holders_find(struct totals *t, uint64_t key, int slot);

/* Any slot's record of a memory; NULL: none. */
struct ledger_holder *holders_any(struct totals *t, uint64_t key);

/* Adds a record. Returns false when there is no room. */
bool holders_add(struct totals *t, const struct ledger_holder *h);

/*
 * Removes a record. If it paid, another holder of the memory pays from now on, and its slot gets the bytes. Returns that holder; NULL:
 * none.
 */
const struct ledger_holder *holders_remove(struct totals *t, struct ledger_holder *h);

/* Removes the records of a slot. */
void holders_bury(struct totals *t, int slot);
