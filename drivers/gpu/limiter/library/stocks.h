/*
 * Memory that the driver keeps in stock: of a memory pool, or of a device's graphs. Allocations from a stock do not show its GPU memory:
 * the driver allocates more at a time, and keeps freed memory (CUDA's programming guide: "Stream-Ordered Memory Allocator", "Graph Memory
 * Nodes"). So a stock is charged with the driver's reserved bytes. Before it may grow, the possible growth is reserved; afterwards the
 * driver is queried. Allocations from the reserve are not charged.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum stock_kind { STOCK_POOL = 1, STOCK_GRAPHS };

struct stock {
	pthread_mutex_t lock;
	_Atomic int kind;	  /* 0: free record */
	_Atomic uint64_t key;	  /* a pool's handle, or a device */
	_Atomic int limit;
	_Atomic uint64_t charged; /* its bytes in the account */
	_Atomic uint64_t used;	  /* bytes of allocations from a pool */
	uint64_t count;		  /* these allocations */
	int drawing;		  /* calls in progress that may let it grow */
	bool gone;		  /* the pool was destroyed, and some allocations are left */
	_Atomic unsigned int trims;
	struct stock *next;
};

/* The stock of a pool, or of a device's graphs, charged to a limit; NULL: no memory for its record. */
struct stock *stocks_of(enum stock_kind kind, uint64_t key, int limit);

/* The same if it exists, else NULL. */
struct stock *stocks_find(enum stock_kind kind, uint64_t key);

/* A call that may let a stock grow. */
struct draw {
	struct stock *from;
	uint64_t bytes, promised;
};

/* Before the call, for an allocation of this size from a pool. Returns false when the stock would exceed the limit; do not call then. */
bool stocks_begin(struct draw *d, struct stock *from, uint64_t bytes);

/* The same for a stock that grows by at most this many bytes. */
bool stocks_begin_growth(struct draw *d, struct stock *from, uint64_t growth);

/* After the call, with whether it took its bytes. Returns false when the stock exceeds the limit, which is charged nevertheless. */
bool stocks_end(struct draw *d, bool taken);

/* An allocation from a pool was freed. */
void stocks_freed(struct stock *s, uint64_t bytes);

/* A pool will be destroyed. It is charged until its last allocation is freed. */
void stocks_destroyed(struct stock *s);

/* The driver refused to destroy it. */
void stocks_kept(struct stock *s, uint64_t key);

/* Queries the driver's reserved bytes of a stock and charges them. */
void stocks_settle(struct stock *s);

/* The same for all that may have shrunk. */
void stocks_settle_all(void);

/* The same for all, when a context has ended. */
void stocks_reset(void);

/* The program has trimmed a stock. */
void stocks_trimmed(struct stock *s);

/* Releases a stock's reserved and unused bytes. */
void stocks_trim(struct stock *s);

/* The same for all of a limit. Returns true when any were released. */
bool stocks_reclaim(int limit);

/* Reserves; if it does not fit, it first releases unused bytes of stocks. */
bool stocks_reserve(int limit, uint64_t bytes);

/* Forgets all stocks: after a fork they belong to the parent. */
void stocks_forget(void);
