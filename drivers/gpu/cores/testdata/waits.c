/*
 * Rounds: a kernel of one stream ends only after one of another stream, which is launched so many microseconds later. Prints the
 * milliseconds of the longest round, and of nine in ten: waits LIBRARY ROUNDS LATER
 */
#include <unistd.h>

#include "cuda.h"

static int compare(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b ? -1 : 1;
}

int main(int argc, char **argv)
{
	void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL, *waits, *sets, *a, *b;
	if (!library)
		return 2;
	FUNCTIONS(library);
	LOAD(cuStreamCreate, void **, unsigned);
	LOAD(cuStreamSynchronize, void *);
	BEGIN(0, ENTRY("waits_20_100us") ENTRY("sets_20_100us"));
	DO(cuModuleGetFunction(&waits, module, "waits_20_100us"));
	DO(cuModuleGetFunction(&sets, module, "sets_20_100us"));
	DO(cuStreamCreate(&a, 1));
	DO(cuStreamCreate(&b, 1));
	int rounds = atoi(argv[2]);
	double *took = calloc((size_t)rounds, sizeof *took);
	for (int i = 0; i < rounds; i++) {
		double began = now();
		LAUNCH(waits, a);
		usleep((useconds_t)atoi(argv[3]));
		LAUNCH(sets, b);
		DO(cuStreamSynchronize(b));
		DO(cuStreamSynchronize(a));
		took[i] = now() - began;
	}
	DO(cuCtxSynchronize());
	qsort(took, (size_t)rounds, sizeof *took, compare);
	printf("%.1f %.1f\n", took[rounds - 1], took[rounds * 9 / 10]);
	return 0;
}
