#define _GNU_SOURCE
#include "holdings.h"

#include <pthread.h>
#include <stdlib.h>

/* Threads rarely meet in one of so many stripes. */
#define STRIPES 256

struct node {
	struct holding holding;
	struct node *next;
};

static struct {
	pthread_mutex_t lock;
	struct node *first;
} stripes[STRIPES] = {[0 ... STRIPES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static unsigned int stripe(enum kind kind, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;
	return (unsigned int)(h >> 56);
}

bool holdings_put(const struct holding *h)
{
	struct node *n = malloc(sizeof *n);
	unsigned int s = stripe(h->kind, h->key);
	if (!n)
		return false;
	n->holding = *h;
	pthread_mutex_lock(&stripes[s].lock);
	n->next = stripes[s].first;
	stripes[s].first = n;
	pthread_mutex_unlock(&stripes[s].lock);
	return true;
}

/* Unlinks the node at a place. The caller holds the stripe's lock. */
static void unlink_at(struct node **at, struct holding *out)
{
	struct node *gone = *at;
	*out = gone->holding;
	*at = gone->next;
	free(gone);
}

bool holdings_take(enum kind kind, uint64_t key, struct holding *out)
{
	unsigned int s = stripe(kind, key);
	bool found = false;
	pthread_mutex_lock(&stripes[s].lock);
	for (struct node **at = &stripes[s].first; *at && !found; at = found ? at : &(*at)->next)
		if ((*at)->holding.kind == kind && (*at)->holding.key == key) {
			unlink_at(at, out);
			found = true;
			break;
		}
	pthread_mutex_unlock(&stripes[s].lock);
	return found;
}

bool holdings_use(uint64_t key, int by, struct holding *out)
{
	unsigned int s = stripe(PHYSICAL, key);
	bool last = false;
	pthread_mutex_lock(&stripes[s].lock);
	for (struct node **at = &stripes[s].first; *at; at = &(*at)->next)
		if ((*at)->holding.kind == PHYSICAL && (*at)->holding.key == key) {
			(*at)->holding.uses += (unsigned int)by;
			if ((*at)->holding.uses == 0) {
				unlink_at(at, out);
				last = true;
			}
			break;
		}
	pthread_mutex_unlock(&stripes[s].lock);
	return last;
}

/* Removes the first holding that matches, and returns it. */
static bool take_if(bool (*match)(const struct holding *, uint64_t, uint64_t), uint64_t a, uint64_t b, struct holding *out)
{
	for (int s = 0; s < STRIPES; s++) {
		pthread_mutex_lock(&stripes[s].lock);
		for (struct node **at = &stripes[s].first; *at; at = &(*at)->next)
			if (match(&(*at)->holding, a, b)) {
				unlink_at(at, out);
				pthread_mutex_unlock(&stripes[s].lock);
				return true;
			}
		pthread_mutex_unlock(&stripes[s].lock);
	}
	return false;
}

static bool mapped(const struct holding *h, uint64_t from, uint64_t length)
{
	return h->kind == MAPPING && h->key >= from && h->key - from < length;
}

static bool in_context(const struct holding *h, uint64_t context, uint64_t unused)
{
	(void)unused;
	return h->context && (uint64_t)(uintptr_t)h->context == context;
}

bool holdings_take_mapping(uint64_t from, uint64_t length, struct holding *out)
{
	return take_if(mapped, from, length, out);
}

bool holdings_take_context(void *context, struct holding *out)
{
	return take_if(in_context, (uint64_t)(uintptr_t)context, 0, out);
}

void holdings_forget(void)
{
	for (int s = 0; s < STRIPES; s++) {
		pthread_mutex_init(&stripes[s].lock, NULL); /* another thread of the parent may have held it */
		stripes[s].first = NULL;		    /* the nodes leak in the child, once for each fork */
	}
}
