/* Pools, graphs that allocate, contexts and modules. */
#pragma once

void test_stocks(void);
