/*
 * A rank of a job: each step is 2 ms of work and a collective, a kernel that waits on the GPU until those of all ranks are there. Prints
 * how many steps it made and how many milliseconds they and the longest of them took: gang LIBRARY DEVICE JOB RANKS SECONDS, with a JOB
 * below 16.
 */
#include "cuda.h"

int main(int argc, char **argv)
{
	void *library = argc == 6 ? dlopen(argv[1], RTLD_NOW) : NULL, *work, *collective;
	char name[64], text[256];
	if (!library)
		return 2;
	FUNCTIONS(library);
	snprintf(name, sizeof name, "meets_%d_of_%d_10us", atoi(argv[3]), atoi(argv[4]));
	snprintf(text, sizeof text, ".version 6.3\n.target sm_75\n.visible .entry w_2ms()\n{\n\tret;\n}\n.visible .entry %s()\n{\n\tret;\n}\n",
		name);
	DO(cuInit(0));
	DO(cuDevicePrimaryCtxRetain(&context, atoi(argv[2])));
	DO(cuCtxSetCurrent(context));
	DO(cuModuleLoadData(&module, text));
	DO(cuModuleGetFunction(&work, module, "w_2ms"));
	DO(cuModuleGetFunction(&collective, module, name));
	LAUNCH(collective, NULL); /* all ranks are there */
	DO(cuCtxSynchronize());
	/* All ranks make the same number of steps: the last one could wait for ever else. Of 2 ms each, as many as the time has. */
	long steps = (long)(atof(argv[5]) * 1e3 / 2), made = 0;
	double began = now(), longest = 0;
	for (; made < steps; made++) {
		double first = now();
		LAUNCH(work, NULL);
		LAUNCH(collective, NULL);
		DO(cuCtxSynchronize());
		longest = now() - first > longest ? now() - first : longest;
	}
	printf("%ld %.0f %.0f\n", made, now() - began, longest);
	return 0;
}
