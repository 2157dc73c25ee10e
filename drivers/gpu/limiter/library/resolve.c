/* The three ways in which programs find functions: symbols, where this library's come first; dlsym; and cuGetProcAddress. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "hooks.h"

typedef void *(*dlsym_function)(void *, const char *);

/* The C library's dlsym, which this library's dlsym hides, in its versions of x86-64 and arm64. */
static dlsym_function real_dlsym(void)
{
	static void *_Atomic found;
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	void *f = atomic_load_explicit(&found, memory_order_relaxed);
	for (size_t i = 0; !f && i < sizeof versions / sizeof versions[0]; i++)
		f = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	atomic_store_explicit(&found, f, memory_order_relaxed);
	return (dlsym_function)f;
}

static void *symbol_of(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
	dlsym_function look = real_dlsym();
	return handle && look ? look(handle, name) : NULL;
}

void *real_cuda(const char *exported)
{
	return symbol_of("libcuda.so.1", exported);
}

void *real_nvml(const char *exported)
{
	return symbol_of("libnvidia-ml.so.1", exported);
}

/* Before glibc 2.34 it is in libpthread, which CUDA's driver loads. */
void *real_thread(void)
{
	dlsym_function look = real_dlsym();
	void *found = look ? look(RTLD_DEFAULT, "pthread_create") : NULL;
	return found ? found : symbol_of("libpthread.so.0", "pthread_create");
}

struct entry {
	const char *base, *exported;
	void *hook;
	int per_thread;
};

#define PLAIN(base, exported, arguments) {#base, #exported, (void *)exported, 0},
#define THREAD(base, exported, arguments) {#base, #exported, (void *)exported, 1},
static const struct entry cuda_table[] = {CUDA_HOOKS(PLAIN, THREAD)};
static const struct entry other_table[] = {PROC_HOOKS(PLAIN) NVML_HOOKS(PLAIN)};

void *hook_of(const char *exported)
{
	for (size_t i = 0; i < sizeof cuda_table / sizeof cuda_table[0]; i++)
		if (strcmp(cuda_table[i].exported, exported) == 0)
			return cuda_table[i].hook;
	for (size_t i = 0; i < sizeof other_table / sizeof other_table[0]; i++)
		if (strcmp(other_table[i].exported, exported) == 0)
			return other_table[i].hook;
	return NULL;
}

EXPORT void *dlsym(void *handle, const char *name)
{
	dlsym_function look = real_dlsym();
	if ((name[0] == 'c' && name[1] == 'u') || strncmp(name, "nvml", 4) == 0) {
		void *hook = hook_of(name);
		/*
		 * A handle must not return functions that it does not have. Other intercepting libraries look up by RTLD_NEXT and get the driver's
		 * function.
		 */
		if (hook && handle != RTLD_NEXT && look(handle, name))
			return hook;
	}
	/* A jump, so that RTLD_NEXT and RTLD_DEFAULT refer to the caller. */
	return look(handle, name);
}

/* Functions of one base name with other arguments than the first, and the CUDA versions that introduced them (cudaTypedefs.h). */
static const struct {
	const char *exported;
	int version;
} later[] = {
	{"cuCtxCreate_v3", 11040},
	{"cuCtxCreate_v4", 12050},
	{"cuCtxSynchronize_v2", 13000},
	{"cuGraphInstantiate_v2", 11000},
	{"cuGraphInstantiateWithFlags", 12000},
	{"cuGraphExecUpdate_v2", 12000},
	{"cuMulticastBindMem_v2", 13010},
	{"cuMulticastBindAddr_v2", 13010},
};

static int version_of(const struct entry *e)
{
	for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
		if (strcmp(later[i].exported, e->exported) == 0)
			return later[i].version;
	return 0;
}

/* Rates how well a hook matches a lookup; 0: not at all. */
static int fit(const struct entry *e, const char *symbol, const void *found, int version, int per_thread)
{
	if (strcmp(e->base, symbol) != 0)
		return strcmp(e->exported, symbol) == 0;
	if (e->per_thread && !per_thread)
		return 0;
	if (real_cuda(e->exported) == found)
		return 1 << 20; /* certainly this one */
	/* A driver older than the requested version returns its newest. */
	if (version_of(e) > version || (version_of(e) && !real_cuda(e->exported)))
		return 0;
	return 2 + version_of(e) + (e->per_thread ? 1 : 0);
}

/* Replaces the driver's function of a base name by ours. */
static void replace(const char *symbol, void **out, int version, unsigned long long flags)
{
	if (strcmp(symbol, "cuGetProcAddress_v2") == 0) {
		*out = (void *)cuGetProcAddress_v2;
		return;
	}
	if (strcmp(symbol, "cuGetProcAddress") == 0) {
		*out = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
		return;
	}
	if (version < 3020) /* 32-bit functions, which take other arguments */
		return;
	void *found = *out;
	int best = 0;
	for (size_t i = 0; i < sizeof cuda_table / sizeof cuda_table[0]; i++) {
		const struct entry *e = &cuda_table[i];
		int now = fit(e, symbol, found, version, (flags & GET_PROC_ADDRESS_PER_THREAD) != 0);
		if (now > best) {
			best = now;
			*out = e->hook;
		}
	}
}

EXPORT int cuGetProcAddress(const char *symbol, void **out, int version, unsigned long long flags)
{
	int (*real)(const char *, void **, int, unsigned long long) = REAL(cuda, cuGetProcAddress);
	if (!real)
		return NOT_THERE;
	int r = real(symbol, out, version, flags);
	if (r == CUDA_SUCCESS && symbol && out && *out)
		replace(symbol, out, version, flags);
	return r;
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status)
{
	int (*real)(const char *, void **, int, unsigned long long, int *) = REAL(cuda, cuGetProcAddress_v2);
	if (!real)
		return NOT_THERE;
	int r = real(symbol, out, version, flags, status);
	if (r == CUDA_SUCCESS && symbol && out && *out)
		replace(symbol, out, version, flags);
	return r;
}
