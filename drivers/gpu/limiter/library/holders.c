#define _GNU_SOURCE
#include "holders.h"

static uint32_t high(const struct totals *t)
{
	return t->holders_high < LEDGER_HOLDERS ? t->holders_high : LEDGER_HOLDERS;
}

struct ledger_holder *holders_find(struct totals *t, uint64_t key, int slot)
{
	for (uint32_t i = 0; i < high(t); i++)
		if (t->holders[i].key == key && t->holders[i].slot == (uint32_t)slot)
			return &t->holders[i];
	return NULL;
}

struct ledger_holder *holders_any(struct totals *t, uint64_t key)
{
	for (uint32_t i = 0; i < high(t); i++)
		if (t->holders[i].key == key)
			return &t->holders[i];
	return NULL;
}

bool holders_add(struct totals *t, const struct ledger_holder *h)
{
	for (uint32_t i = 0; i < LEDGER_HOLDERS; i++) {
		if (i < high(t) && t->holders[i].key)
			continue;
		t->holders[i] = *h;
		if (i >= high(t))
			t->holders_high = i + 1;
		return true;
	}
	return false;
}

const struct ledger_holder *holders_remove(struct totals *t, struct ledger_holder *h)
{
	struct ledger_holder gone = *h;
	h->key = 0;
	struct ledger_holder *heir = gone.pays ? holders_any(t, gone.key) : NULL;
	/* Another program may have written the file: its numbers are not trusted. */
	if (!heir || heir->slot >= LEDGER_SLOTS || heir->device >= MOST_DEVICES)
		return NULL;
	atomic_fetch_add(&t->slots[heir->slot].has[heir->device], gone.bytes);
	heir->pays = 1;
	return heir;
}

void holders_bury(struct totals *t, int slot)
{
	for (uint32_t i = 0; i < high(t); i++)
		if (t->holders[i].key && t->holders[i].slot == (uint32_t)slot)
			holders_remove(t, &t->holders[i]);
}
