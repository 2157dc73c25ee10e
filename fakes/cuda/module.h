/* Kernels, which modules have by name. */
#pragma once
#include <stdbool.h>

#include "cuda.h"

struct kernel {
	unsigned long long microseconds;
	bool parameters; /* it has some */
	struct kernel *next;
};

/* Whether a launch gives a kernel the parameters that it has. */
bool kernel_has(const struct kernel *k, void **parameters, void **extra);
