#pragma once

/* Messages of a process about contexts and modules that cannot be counted. It forks before this process has written any. */
void test_overhead(void);
