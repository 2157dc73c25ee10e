#pragma once

/* What a process says of contexts and modules that cannot be counted. It forks before this process has said anything. */
void test_overhead(void);
