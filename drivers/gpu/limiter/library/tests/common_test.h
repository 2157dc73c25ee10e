#pragma once

/* Two containers of one share. It forks before this process reads any limits. */
void test_common(void);
