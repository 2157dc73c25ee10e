/* The driver of the unit tests: two GPUs. */
#pragma once
#include <stdint.h>

#define DRIVER_TOTAL ((uint64_t)48 << 30)

extern _Atomic uint64_t driver_allocated[2]; /* bytes, by GPU */
extern _Atomic int driver_fails;	     /* every allocation fails */

/* Makes a GPU the calling thread's current one; and which that is. */
void driver_use(int device);
int driver_current(void);
