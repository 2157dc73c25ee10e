/* A libcuda.so.1 that prints the arguments by which memory is bound to a multicast object. */
#include <stdio.h>
#include <string.h>

int cuMulticastBindMem(unsigned long long object, size_t offset, unsigned long long memory, size_t from, size_t size,
		       unsigned long long flags)
{
	printf("memory %llx %zx %llx %zx %zx %llx\n", object, offset, memory, from, size, flags);
	return 0;
}

int cuMulticastBindMem_v2(unsigned long long object, int device, size_t offset, unsigned long long memory, size_t from, size_t size,
			  unsigned long long flags)
{
	printf("memory of %d %llx %zx %llx %zx %zx %llx\n", device, object, offset, memory, from, size, flags);
	return 0;
}

int cuMulticastBindAddr(unsigned long long object, size_t offset, unsigned long long at, size_t size, unsigned long long flags)
{
	printf("address %llx %zx %llx %zx %llx\n", object, offset, at, size, flags);
	return 0;
}

int cuMulticastBindAddr_v2(unsigned long long object, int device, size_t offset, unsigned long long at, size_t size,
			   unsigned long long flags)
{
	printf("address of %d %llx %zx %llx %zx %llx\n", device, object, offset, at, size, flags);
	return 0;
}

/* A program's calls must not find the library's functions here. */
#pragma GCC visibility push(hidden)
extern __typeof(cuMulticastBindMem) memory_1 __attribute__((alias("cuMulticastBindMem")));
extern __typeof(cuMulticastBindMem_v2) memory_2 __attribute__((alias("cuMulticastBindMem_v2")));
extern __typeof(cuMulticastBindAddr) address_1 __attribute__((alias("cuMulticastBindAddr")));
extern __typeof(cuMulticastBindAddr_v2) address_2 __attribute__((alias("cuMulticastBindAddr_v2")));
#pragma GCC visibility pop

int cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status)
{
	int second = version >= 13010;
	(void)flags, (void)status;
	*out = NULL;
	if (strcmp(symbol, "cuMulticastBindMem") == 0)
		*out = second ? (void *)memory_2 : (void *)memory_1;
	if (strcmp(symbol, "cuMulticastBindAddr") == 0)
		*out = second ? (void *)address_2 : (void *)address_1;
	return *out ? 0 : 500;
}
