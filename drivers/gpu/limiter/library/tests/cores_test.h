/* The unit tests of the limit of cores. */
#pragma once

void test_cores(void);

/* The cost of a launch with a limit of cores and without, printed. */
void bench_cores(void);
