/* Events. */
#pragma once
#include <stdatomic.h>

struct event {
	_Atomic unsigned long long at; /* microseconds since the epoch; 0: it was never recorded */
	atomic_bool waits;	       /* what was launched before it has not ended, and waits */
};
