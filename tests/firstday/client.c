#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Calls a function by its name, and leaves with its name where it is missing or fails. */
#define CALL(name, types, ...)                                        \
	do {                                                          \
		int(*f) types = (int(*) types)dlsym(library, name);   \
		answer->step = name;                                  \
		if (!f) {                                             \
			answer->code = -2;                            \
			return;                                       \
		}                                                     \
		if ((answer->code = f(__VA_ARGS__)) != 0)             \
			return;                                       \
	} while (0)

void cuda_ask(const char *path, int hold, struct cuda_answer *answer)
{
	size_t total = 0;
	void *context = NULL;
	unsigned long long block = 0;
	int device = 0;
	memset(answer, 0, sizeof *answer);
	answer->step = "dlopen";
	answer->code = -1;
	void *library = dlopen(path, RTLD_NOW);
	if (!library)
		return;
	CALL("cuInit", (unsigned int), 0);
	CALL("cuDriverGetVersion", (int *), &answer->driver);
	CALL("cuDeviceGetCount", (int *), &answer->devices);
	CALL("cuDeviceGet", (int *, int), &device, 0);
	CALL("cuDeviceGetName", (char *, int, int), answer->name, (int)sizeof answer->name, device);
	CALL("cuDeviceGetUuid_v2", (void *, int), answer->uuid, device);
	CALL("cuDeviceTotalMem_v2", (size_t *, int), &total, device);
	answer->memory = total;
	CALL("cuCtxCreate_v2", (void **, unsigned int, int), &context, 0, device);
	CALL("cuMemAlloc_v2", (unsigned long long *, size_t), &block, 1 << 20);
	if (hold) {
		char line;
		/* The other side reads that the context exists, and ends this by closing the pipe. */
		if (write(STDOUT_FILENO, "holding\n", 8) == 8)
			while (read(STDIN_FILENO, &line, 1) > 0)
				;
	}
	CALL("cuMemFree_v2", (unsigned long long), block);
	CALL("cuCtxDestroy_v2", (void *), context);
	answer->step = NULL;
}
