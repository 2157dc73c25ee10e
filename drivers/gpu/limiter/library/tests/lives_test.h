/* Whose memory counts, and for how long. */
#pragma once
void test_lives(void);
