/* What every exported function does around its work; called from the generated exports.c. */
#pragma once
#include <nvml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* ff_call refuses the call before nvmlInit, waits as the node's delay table says, and answers NOT_SUPPORTED when nothing is implemented. It
 * pins the state for the call; ff_traced, which follows every call, lets it go. */
nvmlReturn_t ff_call(uint32_t function, bool implemented);

/* ff_lifecycle is ff_call for nvmlInit and nvmlShutdown, which look at the count of initialisations themselves. */
nvmlReturn_t ff_lifecycle(uint32_t function, bool implemented);

/* ff_traced ends a call: it appends a line to the file that FAKEFABRIC_TRACE names, if it names one. */
void ff_traced(const char *function, nvmlReturn_t result, bool implemented);
