/* Modules: PTX as text, of which the names and parameters of the kernels are read, or a binary, in which any name is found. No kernel
 * computes anything. How long one takes is in its name (anything_250ms, anything_250us), or FAKEFABRIC_KERNEL_MS says it; else it takes 1
 * ms. After its time, sets_3_250us adds one to the node's flag 3, waits_3_250us waits until that was done as often as kernels have waited,
 * and meets_3_of_4_250us until four such kernels, of any processes, are there (stream.c).
 *
 * cuModuleLoadData takes PTX that ends with a NUL, a cubin (an ELF file) or a fatbin (docs.nvidia.com/cuda/cuda-driver-api, group MODULE).
 * PTX begins with .version and then has .target (docs.nvidia.com/cuda/parallel-thread-execution, directives). What is neither is an invalid
 * image. */
#define _GNU_SOURCE
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "module.h"
#include "stock.h"

struct module {
	struct context *context;
	size_t bytes; /* of the device's memory */
	char *text;   /* PTX without its comments; NULL: a binary */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels;

static bool binary(const unsigned char *image)
{
	static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fatbin[] = {0x50, 0xed, 0x55, 0xba}, wrapped[] = {0xb1, 0x43, 0x62, 0x46};
	const unsigned char *all[] = {elf, fatbin, wrapped};
	for (int i = 0; i < 3; i++) {
		int same = 0;
		while (same < 4 && image[same] == all[i][same]) /* no byte is read behind a NUL: it is no byte of any of them */
			same++;
		if (same == 4)
			return true;
	}
	return false;
}

/* A copy with a blank for each comment. */
static char *without_comments(const char *text)
{
	char *copy = malloc(strlen(text) + 1), *to = copy;
	while (copy && *text) {
		const char *end = NULL;
		if (strncmp(text, "//", 2) == 0)
			end = strchr(text, '\n');
		else if (strncmp(text, "/*", 2) == 0)
			end = (end = strstr(text + 2, "*/")) ? end + 2 : NULL;
		else {
			*to++ = *text++;
			continue;
		}
		*to++ = ' ';
		text = end ? end : text + strlen(text);
	}
	if (copy)
		*to = '\0';
	return copy;
}

static const char *blanks(const char *s)
{
	while (isspace((unsigned char)*s))
		s++;
	return s;
}

/* The text behind a directive, NULL where it does not stand here. */
static const char *behind(const char *text, const char *directive)
{
	text = blanks(text);
	size_t n = strlen(directive);
	return strncmp(text, directive, n) == 0 && isspace((unsigned char)text[n]) ? blanks(text + n) : NULL;
}

static bool valid(const char *text)
{
	unsigned int major, minor;
	int used = 0;
	const char *version = behind(text, ".version");
	return version && sscanf(version, "%u.%u%n", &major, &minor, &used) == 2 && behind(version + used, ".target");
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	NEED_CONTEXT();
	NEED(out && image, CUDA_ERROR_INVALID_VALUE);
	struct module *m = calloc(1, sizeof *m);
	NEED(m, CUDA_ERROR_OUT_OF_MEMORY);
	CUresult r = CUDA_SUCCESS;
	if (!binary(image)) {
		m->text = without_comments(image);
		if (!m->text)
			r = CUDA_ERROR_OUT_OF_MEMORY;
		else if (*blanks(m->text) != '.')
			r = CUDA_ERROR_INVALID_IMAGE;
		else if (!valid(m->text))
			r = CUDA_ERROR_INVALID_PTX;
	}
	m->context = current;
	m->bytes = context_overhead("FAKEFABRIC_MODULE_MIB");
	if (r == CUDA_SUCCESS)
		r = device_use(current->device, (long long)m->bytes);
	if (r == CUDA_SUCCESS) {
		current->modules += m->bytes;
		*out = m;
		return r;
	}
	free(m->text);
	free(m);
	return r;
}

EXPORT CUresult cuModuleUnload(CUmodule m)
{
	NEED_INIT();
	NEED(m, CUDA_ERROR_INVALID_VALUE);
	if (!m->context->destroyed) { /* else it went with its context */
		m->context->modules -= m->bytes;
		device_use(m->context->device, -(long long)m->bytes);
	}
	free(m->text);
	free(m);
	return CUDA_SUCCESS;
}

/* The microseconds of a kernel: the time at the end of its name, or the environment's, or 1 ms. */
static unsigned long long duration(const char *name)
{
	const char *ms = getenv("FAKEFABRIC_KERNEL_MS"), *tail = strrchr(name, '_');
	char unit[3];
	unsigned long v;
	if (tail && sscanf(tail, "_%lu%2s", &v, unit) == 2 && strcmp(unit, "ms") == 0)
		return v * 1000ull;
	if (tail && sscanf(tail, "_%lu%2s", &v, unit) == 2 && strcmp(unit, "us") == 0)
		return v;
	return ms && sscanf(ms, "%lu", &v) == 1 ? v * 1000ull : 1000;
}

/* Reads from the beginning of a kernel's name how it ends: it meets others at a flag, waits for a flag, or sets one. */
static void find_end(const char *name, struct kernel *k)
{
	unsigned int flag, parties = 0;
	if (sscanf(name, "meets_%u_of_%u", &flag, &parties) == 2 && parties)
		k->waits = KERNEL_MEETS;
	else if (sscanf(name, "waits_%u", &flag) == 1)
		k->waits = KERNEL_WAITS;
	else if (sscanf(name, "sets_%u", &flag) == 1)
		k->waits = KERNEL_SETS;
	else
		return;
	k->flag = flag % KERNEL_FLAGS;
	k->parties = parties;
}

/* Finds a kernel's declaration, which is .entry NAME or .entry NAME (PARAMETERS). */
static bool declared(const char *text, const char *name, bool *parameters)
{
	size_t n = strlen(name);
	for (const char *at = text; n && (at = strstr(at, ".entry")); at++) {
		const char *found = behind(at, ".entry");
		if (!found || strncmp(found, name, n) != 0 || isalnum((unsigned char)found[n]) || (found[n] && strchr("_$", found[n])))
			continue;
		found = blanks(found + n);
		*parameters = *found == '(' && *blanks(found + 1) == '.';
		return true;
	}
	return false;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
	bool parameters = false;
	NEED_INIT();
	NEED(out && m && name, CUDA_ERROR_INVALID_VALUE);
	NEED(!m->text || declared(m->text, name, &parameters), CUDA_ERROR_NOT_FOUND);
	struct kernel *k = calloc(1, sizeof *k);
	NEED(k, CUDA_ERROR_OUT_OF_MEMORY);
	find_end(name, k);
	k->microseconds = duration(name);
	k->parameters = parameters;
	pthread_mutex_lock(&lock);
	k->next = kernels;
	kernels = k;
	pthread_mutex_unlock(&lock);
	*out = k;
	return CUDA_SUCCESS;
}

/* Both ways to give parameters at once are refused too (cuLaunchKernel's documentation). */
bool kernel_has(const struct kernel *k, void **parameters, void **extra)
{
	return (!k->parameters || parameters || extra) && !(parameters && extra);
}
