/* A small client of libcuda.so.1, found at run time: the machine that builds this need not have one. */
#pragma once

struct cuda_answer {
	const char *step; /* the call that failed, or NULL */
	int code;
	int driver;
	int devices;
	char name[128];
	unsigned char uuid[16];
	unsigned long long memory;
};

/*
 * Initialises CUDA, opens the first device, makes a context on it, allocates and frees a MiB, and waits on standard input while hold is not
 * 0.
 */
void cuda_ask(const char *library, int hold, struct cuda_answer *answer);
