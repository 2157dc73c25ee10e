/* A client of libnvidia-ml.so.1: client LIBRARY written FUNCTION SIZE prints how many bytes of its structure the function reached into;
 * client LIBRARY slow prints how many milliseconds nvmlDeviceGetName took while signals came in; client LIBRARY late ROOT prints what
 * nvmlInit gives before and after the node comes to ROOT. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static void ignore(int signal)
{
	(void)signal;
}

static long milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *device;
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
	int (*find)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	if (strcmp(argv[2], "late") == 0) {
		int before = init();
		setenv("FAKEFABRIC_ROOT", argv[3], 1);
		int after = init();
		printf("%d %d\n", after, before);
		return 0;
	}
	if (init() != 0 || find(0, &device) != 0)
		return 3;
	if (strcmp(argv[2], "written") == 0) {
		unsigned char out[256];
		int reached = 0;
		memset(out, 0xa5, sizeof out);
		int (*get)(void *, void *) = (int (*)(void *, void *))dlsym(library, argv[3]);
		int result = get(device, out);
		for (int i = 0; i < (int)sizeof out; i++)
			if (out[i] != 0xa5)
				reached = i + 1;
		printf("%d %d\n", result, reached);
		return 0;
	}
	char name[96];
	int (*get_name)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))dlsym(library, "nvmlDeviceGetName");
	struct sigaction action = {.sa_handler = ignore};
	struct itimerval every = {{0, 20000}, {0, 20000}};
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	long begin = milliseconds();
	int result = get_name(device, name, sizeof name);
	printf("%d %ld\n", result, milliseconds() - begin);
	return 0;
}
