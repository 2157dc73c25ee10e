/* The unit tests of turns on a GPU. */
#pragma once

void test_cores(void);

/* What a launch costs with a limit of cores and without, printed. */
void bench_cores(void);
