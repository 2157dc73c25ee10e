/* Messages for the owner of the program. Each is written once in a process, on standard error. */
#pragma once
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define words_once(sentence)                                                              \
	do {                                                                              \
		static atomic_flag said = ATOMIC_FLAG_INIT;                               \
		static const char line[] = "gpufabric: " sentence "\n";                  \
		if (!atomic_flag_test_and_set(&said) && write(2, line, sizeof line - 1) < 0) \
			(void)0; /* nobody listens */                                     \
	} while (0)
