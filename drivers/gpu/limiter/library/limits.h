/* What a container may use of its GPUs: a file that the node's plugin mounts read-only, so that nothing in the container changes it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef LIMITS_FILE
#define LIMITS_FILE "/usr/local/vgpu/limits"
#endif

/*
 * Further files of the same kind, one for each claim that the container uses: the amounts that two of them give of one GPU are added. Only what is mounted there
 * counts, which a program in the container cannot do.
 */
#ifndef LIMITS_DIRECTORY
#define LIMITS_DIRECTORY LIMITS_FILE ".d"
#endif

/* The most GPUs that a container has, which is also what the region for monitors has room for. */
#define MOST_DEVICES 16

/* "GPU-" and 36 characters, and a NUL. */
#define UUID_BYTES 41

struct limit {
	char uuid[UUID_BYTES];
	uint64_t memory; /* bytes; 0: no limit */
	bool several;	 /* the sum of several shares */
	bool elsewhere;	 /* the driver itself limits the memory: it is neither counted nor shown here */
	unsigned int cores; /* percent of the GPU's SMs; 0: no limit */
};

struct limits {
	int count;
	bool closed; /* allocate nothing where nothing can be accounted */
	struct limit devices[MOST_DEVICES];
};

/* Reads limits from text of so many bytes. False: a part of the text is malformed. */
bool limits_parse(const char *text, size_t length, struct limits *out);

/* Adds further limits to those that a container has. False: there are more GPUs than can be counted. */
bool limits_join(struct limits *have, const struct limits *more);

/* The limits of this container, read once; NULL where it has none. */
const struct limits *limits_get(void);

/* The number of a GPU among the limits, -1 for one that has none. */
int limits_find(const char *uuid);
