/* Kernels, which modules have by name. */
#pragma once
#include <stdbool.h>

#include "cuda.h"

/* The act of a kernel when its time is over: it ends; adds one to a flag; waits until the flag was added to as often as kernels have waited
 * for it; or waits until as many kernels as there are parties have come so far. */
enum kernel_end { KERNEL_ENDS, KERNEL_SETS, KERNEL_WAITS, KERNEL_MEETS };

#define KERNEL_FLAGS 64

struct kernel {
	unsigned long long microseconds;
	enum kernel_end waits;
	unsigned int flag, parties;
	bool parameters; /* it has some */
	struct kernel *next;
};

/* Whether a launch gives a kernel the parameters that it has. */
bool kernel_has(const struct kernel *k, void **parameters, void **extra);
