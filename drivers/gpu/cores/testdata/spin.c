/* Launches kernels of a millisecond for so many seconds, and prints how many, and how many milliseconds passed until the GPU had done them:
 * spin LIBRARY SECONDS */
#include "cuda.h"

int main(int argc, char **argv)
{
	void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL, *kernel;
	if (!library)
		return 2;
	FUNCTIONS(library);
	BEGIN(0, ENTRY("k_1ms"));
	DO(cuModuleGetFunction(&kernel, module, "k_1ms"));
	long count = 0;
	double began = now();
	while (now() - began < atof(argv[2]) * 1e3) {
		LAUNCH(kernel, NULL);
		if (++count % 32 == 0) /* the stand-in has no bound of its own for what is queued */
			DO(cuCtxSynchronize());
	}
	DO(cuCtxSynchronize());
	printf("%ld %.0f\n", count, now() - began);
	return 0;
}
