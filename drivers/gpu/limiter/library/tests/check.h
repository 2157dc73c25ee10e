/* Shared parts of the tests: a container's files, and a check that prints where it failed. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account.h"

#define CHECK(condition, ...)                                                      \
	do {                                                                       \
		if (!(condition)) {                                                \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
			fprintf(stderr, __VA_ARGS__);                              \
			fputc('\n', stderr);                                       \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

/* Makes the container's directories, empty, with these limits. */
static inline void container(const char *limits)
{
	mkdir(TESTS_DIRECTORY, 0755);

	unlink(OWN_DIRECTORY "/account");
	unlink(REGION_DIRECTORY "/cudevshr.cache");
	unlink(LIMITS_FILE);
	if (!limits)
		return;
	FILE *f = fopen(LIMITS_FILE, "w");
	CHECK(f && fputs(limits, f) >= 0 && fclose(f) == 0, "write " LIMITS_FILE);
}
