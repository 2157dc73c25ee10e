/*
 * Memory that the driver keeps in stock: that of a memory pool, or that of a device's graphs. What programs allocate from a stock says little about what it
 * takes of the GPU: the driver allocates more at a time, and keeps what was freed (CUDA's programming guide: "Stream-Ordered Memory Allocator", "Graph Memory
 * Nodes"). So a stock is charged with what the driver says that it has reserved. Before it may grow, what it may grow by is reserved; afterwards the driver is
 * asked. What it serves from its reserve is charged to nobody.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum stock_kind { STOCK_POOL = 1, STOCK_GRAPHS };

struct stock {
	pthread_mutex_t lock;
	_Atomic int kind;	  /* 0: the record is free */
	_Atomic uint64_t key;	  /* a pool's handle, or a device */
	_Atomic int limit;
	_Atomic uint64_t charged; /* what the account has for it */
	_Atomic uint64_t used;	  /* what the allocations from a pool were given */
	uint64_t count;		  /* these allocations */
	int drawing;		  /* calls that may let it grow now */
	bool gone;		  /* the pool was destroyed, and some of its allocations are left */
	_Atomic unsigned int trims;
	struct stock *next;
};

/* The stock of a pool, or of a device's graphs, which is charged to a limit. NULL: there is no memory for its record. */
struct stock *stocks_of(enum stock_kind kind, uint64_t key, int limit);

/* The same where it is known already, else NULL. */
struct stock *stocks_find(enum stock_kind kind, uint64_t key);

/* A call that may let a stock grow. */
struct draw {
	struct stock *from;
	uint64_t bytes, promised;
};

/* Before the call: from a pool, an allocation of so many bytes. False: the stock would grow past the limit; nothing is to be done then. */
bool stocks_begin(struct draw *d, struct stock *from, uint64_t bytes);

/* The same for a stock that grows by so many bytes at most. */
bool stocks_begin_growth(struct draw *d, struct stock *from, uint64_t growth);

/* After the call; whether it took its bytes. False: the stock has grown past the limit, which is charged nevertheless. */
bool stocks_end(struct draw *d, bool taken);

/* An allocation from a pool was freed. */
void stocks_freed(struct stock *s, uint64_t bytes);

/* A pool is about to be destroyed. It is charged until its last allocation is freed. */
void stocks_destroyed(struct stock *s);

/* The driver has refused to destroy it. */
void stocks_kept(struct stock *s, uint64_t key);

/* Asks the driver what a stock has reserved, and charges that. */
void stocks_settle(struct stock *s);

/* The same for all that may have given something back. */
void stocks_settle_all(void);

/* The same for all, when a context has ended. */
void stocks_reset(void);

/* The program has trimmed a stock. */
void stocks_trimmed(struct stock *s);

/* Gives back what a stock has reserved and does not use. */
void stocks_trim(struct stock *s);

/* The same for all of a limit. True: something was given back. */
bool stocks_reclaim(int limit);

/* Reserves; where it does not fit, what stocks do not use is given back for it. */
bool stocks_reserve(int limit, uint64_t bytes);

/* Forgets all stocks, which after a fork are the parent's. */
void stocks_forget(void);
