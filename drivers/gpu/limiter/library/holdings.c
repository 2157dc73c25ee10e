#define _GNU_SOURCE
#include "holdings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* With this many stripes, threads rarely wait for the same one. */
#define STRIPES 256

/* Initial lists in a stripe. It gets more when it has more holdings than lists. */
#define FIRST_LISTS 4

struct node {
	struct holding holding;
	uint64_t hash;
	struct node *next;
};

static struct stripe {
	pthread_mutex_t lock;
	struct node **lists;
	size_t size, count; /* lists, and holdings in them */
} stripes[STRIPES];

static uint64_t hash_of(enum kind kind, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 32;
}

static struct stripe *lock_stripe(uint64_t hash)
{
	struct stripe *s = &stripes[hash % STRIPES];
	pthread_mutex_lock(&s->lock);
	return s;
}

static struct node **list_of(const struct stripe *s, uint64_t hash)
{
	return &s->lists[hash / STRIPES & (s->size - 1)];
}

/* Doubles a stripe's lists. On lack of memory the lists become longer instead; returns false when there are none yet. */
static bool grow(struct stripe *s)
{
	struct stripe larger = {.size = s->size ? s->size * 2 : FIRST_LISTS};
	larger.lists = calloc(larger.size, sizeof *larger.lists);
	if (!larger.lists)
		return s->size > 0;
	for (size_t i = 0; i < s->size; i++)
		for (struct node *n = s->lists[i], *next; n; n = next) {
			struct node **list = list_of(&larger, n->hash);
			next = n->next;
			n->next = *list;
			*list = n;
		}
	free(s->lists);
	s->lists = larger.lists;
	s->size = larger.size;
	return true;
}

bool holdings_put(const struct holding *h)
{
	struct node *n = malloc(sizeof *n);
	if (!n)
		return false;
	n->holding = *h;
	n->hash = hash_of(h->kind, h->key);
	struct stripe *s = lock_stripe(n->hash);
	bool there = s->count < s->size || grow(s);
	if (there) {
		struct node **list = list_of(s, n->hash);
		n->next = *list;
		*list = n;
		s->count++;
	}
	pthread_mutex_unlock(&s->lock);
	if (!there)
		free(n);
	return there;
}

/* The place of a holding; NULL: none. The caller holds the stripe's lock. */
static struct node **find(const struct stripe *s, enum kind kind, uint64_t key, uint64_t hash)
{
	if (!s->size)
		return NULL;
	for (struct node **at = list_of(s, hash); *at; at = &(*at)->next)
		if ((*at)->holding.kind == kind && (*at)->holding.key == key)
			return at;
	return NULL;
}

/* Unlinks the node at a place. The caller holds the stripe's lock. */
static void unlink_at(struct stripe *s, struct node **at, struct holding *out)
{
	struct node *gone = *at;
	*out = gone->holding;
	*at = gone->next;
	s->count--;
	free(gone);
}

bool holdings_take(enum kind kind, uint64_t key, struct holding *out)
{
	uint64_t hash = hash_of(kind, key);
	struct stripe *s = lock_stripe(hash);
	struct node **at = find(s, kind, key, hash);
	if (at)
		unlink_at(s, at, out);
	pthread_mutex_unlock(&s->lock);
	return at != NULL;
}

bool holdings_look(enum kind kind, uint64_t key, struct holding *out)
{
	uint64_t hash = hash_of(kind, key);
	struct stripe *s = lock_stripe(hash);
	struct node **at = find(s, kind, key, hash);
	if (at)
		*out = (*at)->holding;
	pthread_mutex_unlock(&s->lock);
	return at != NULL;
}

void holdings_name(uint64_t key, uint64_t name)
{
	uint64_t hash = hash_of(PHYSICAL, key);
	struct stripe *s = lock_stripe(hash);
	struct node **at = find(s, PHYSICAL, key, hash);
	if (at)
		(*at)->holding.other = name;
	pthread_mutex_unlock(&s->lock);
}

bool holdings_use(uint64_t key, int by, struct holding *out)
{
	uint64_t hash = hash_of(PHYSICAL, key);
	struct stripe *s = lock_stripe(hash);
	struct node **at = find(s, PHYSICAL, key, hash);
	bool last = false;
	if (at) {
		(*at)->holding.uses += (unsigned int)by;
		last = (*at)->holding.uses == 0;
		if (last)
			unlink_at(s, at, out);
		else
			*out = (*at)->holding;
	}
	pthread_mutex_unlock(&s->lock);
	return last;
}

/* Moves a stripe's matching holdings to a list. */
static void collect(struct stripe *s, bool (*match)(const struct holding *, uint64_t), uint64_t what, struct node **found)
{
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->size; i++)
		for (struct node **at = &s->lists[i]; *at;) {
			struct node *n = *at;
			if (!match(&n->holding, what)) {
				at = &n->next;
				continue;
			}
			*at = n->next;
			n->next = *found;
			*found = n;
			s->count--;
		}
	pthread_mutex_unlock(&s->lock);
}

void holdings_take_all(bool (*match)(const struct holding *, uint64_t), uint64_t what, void (*taken)(const struct holding *))
{
	struct node *found = NULL;
	for (int i = 0; i < STRIPES; i++)
		collect(&stripes[i], match, what, &found);
	while (found) {
		struct node *n = found;
		found = n->next;
		taken(&n->holding);
		free(n);
	}
}

void holdings_forget(void)
{
	memset(stripes, 0, sizeof stripes); /* the child leaks the nodes, once for each fork */
	for (int i = 0; i < STRIPES; i++)
		pthread_mutex_init(&stripes[i].lock, NULL); /* another thread of the parent may have held it */
}
