/* The limits of a container's GPUs: a file that the node's plugin mounts read-only, so that programs in the container cannot change it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef LIMITS_FILE
#define LIMITS_FILE "/usr/local/vgpu/limits"
#endif

/*
 * More files of the same format, one for each claim that the container uses: amounts of one GPU are added. Only mounted files count,
 * because a program in the container cannot mount.
 */
#ifndef LIMITS_DIRECTORY
#define LIMITS_DIRECTORY LIMITS_FILE ".d"
#endif

/* The maximum number of GPUs of a container, which is also the size of the region for monitors. */
#define MOST_DEVICES 16

/* "GPU-" and 36 characters, and a NUL. */
#define UUID_BYTES 41

struct limit {
	char uuid[UUID_BYTES];
	uint64_t memory; /* bytes; 0: no limit */
	bool several;	 /* the sum of several shares */
	bool elsewhere;	 /* the driver limits the memory: the library neither counts nor shows it */
	unsigned int cores; /* percent of the GPU's SMs; 0: no limit */
};

struct limits {
	int count;
	bool closed; /* deny allocations when accounting is not possible */
	struct limit devices[MOST_DEVICES];
};

/* Parses limits from text of this many bytes. Returns false when a part of the text is malformed. */
bool limits_parse(const char *text, size_t length, struct limits *out);

/* Adds limits to those of a container. Returns false when there are more GPUs than the maximum. */
bool limits_join(struct limits *have, const struct limits *more);

/* The limits of this container, read once; NULL: none. While the process lacks descriptors to read them they are closed, without a GPU. */
const struct limits *limits_get(void);

/* Reports whether limits_get returns the same from now on. */
bool limits_known(void);

/* The number of a GPU among the limits; -1: no limit. */
int limits_find(const char *uuid);
