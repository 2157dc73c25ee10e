/* A program that binds memory to a multicast object by each function, found by its symbol and by cuGetProcAddress. */
#include <dlfcn.h>
#include <stdio.h>

typedef int memory_1(unsigned long long, size_t, unsigned long long, size_t, size_t, unsigned long long);
typedef int memory_2(unsigned long long, int, size_t, unsigned long long, size_t, size_t, unsigned long long);
typedef int address_1(unsigned long long, size_t, unsigned long long, size_t, unsigned long long);
typedef int address_2(unsigned long long, int, size_t, unsigned long long, size_t, unsigned long long);

/* Amounts of more than 32 bits. */
#define OFFSET 0x200000000
#define FROM 0x300000000
#define SIZE 0x400000000

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*look)(const char *, void **, int, unsigned long long, int *) = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
	void *found[4];
	setvbuf(stdout, NULL, _IONBF, 0);
	if (!look || look("cuMulticastBindMem", &found[0], 12010, 0, NULL) || look("cuMulticastBindMem", &found[1], 13010, 0, NULL) ||
	    look("cuMulticastBindAddr", &found[2], 12010, 0, NULL) || look("cuMulticastBindAddr", &found[3], 13010, 0, NULL))
		return 1;
	for (int symbols = 0; symbols < 2; symbols++) {
		((memory_1 *)found[0])(1, OFFSET, 2, FROM, SIZE, 5);
		((memory_2 *)found[1])(1, 7, OFFSET, 2, FROM, SIZE, 5);
		((address_1 *)found[2])(1, OFFSET, 2, SIZE, 5);
		((address_2 *)found[3])(1, 7, OFFSET, 2, SIZE, 5);
		found[0] = dlsym(driver, "cuMulticastBindMem");
		found[1] = dlsym(driver, "cuMulticastBindMem_v2");
		found[2] = dlsym(driver, "cuMulticastBindAddr");
		found[3] = dlsym(driver, "cuMulticastBindAddr_v2");
	}
	return 0;
}
