/* The tests of the gate's decisions, by a clock of their own. */
#pragma once

void test_gate(void);
