/* A container's files with random bytes, and limits of random text: no crash, and never more than the limit. fuzz SECONDS [SEED] */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

/* The target of a link in the container: it must never be written. */
#define DECOY TESTS_DIRECTORY "/decoy"

static void scribble(const char *path, unsigned int *seed)
{
	struct stat s;
	if (lstat(path, &s) == 0 && !S_ISREG(s.st_mode))
		return; /* it was replaced before */
	int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
	CHECK(file >= 0 && fstat(file, &s) == 0, "%s", path);
	switch (rand_r(seed) % 4) {
	case 0: /* cut, or longer */
		CHECK(ftruncate(file, rand_r(seed) % 3000000) == 0, "cut %s", path);
		break;
	case 1: /* something else altogether */
		unlink(path);
		CHECK(rand_r(seed) % 2 ? symlink(DECOY, path) == 0 : mkfifo(path, 0600) == 0, "replace %s", path);
		break;
	default:
		for (int i = rand_r(seed) % 64; i > 0; i--) {
			unsigned char b[8];
			off_t size = s.st_size > 16 ? s.st_size : 4096, at = i % 2 ? rand_r(seed) % 4096 : rand_r(seed) % size;
			for (size_t j = 0; j < sizeof b; j++)
				b[j] = (unsigned char)rand_r(seed);
			CHECK(pwrite(file, b, sizeof b, at) == sizeof b, "write %s", path);
		}
	}
	close(file);
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 1, rounds = 0;
	unsigned int seed = argc > 2 ? (unsigned int)atoi(argv[2]) : (unsigned int)time(NULL);
	printf("seed %u\n", seed);
	fflush(stdout);
	container(NULL);
	int decoy = open(DECOY, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
	CHECK(decoy >= 0, "make " DECOY);
	close(decoy);
	for (time_t end = time(NULL) + seconds; time(NULL) < end; rounds++) {
		static const char good[] = "gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 30\nclosed\n";
		char text[sizeof good];
		struct limits l;
		memcpy(text, good, sizeof good);
		for (int i = rand_r(&seed) % 6; i > 0; i--)
			text[(size_t)rand_r(&seed) % sizeof good] = (char)rand_r(&seed);
		limits_parse(text, (size_t)rand_r(&seed) % sizeof good, &l);

		container("gpufabric-limits 1\nGPU-01010101-0101-0101-0101-010101010101 1073741824 0\n");
		for (int turn = 0; turn < 3; turn++) { /* each a process of its own; it finds what the last one left, and what was then done to that */
			pid_t pid = fork();
			if (pid == 0) {
				uint64_t has = 0;
				if (!freopen("/dev/null", "w", stderr))
					_exit(3);
				for (int i = 0; i < 100; i++)
					if (account_reserve(0, (uint64_t)1 << 24))
						has += (uint64_t)1 << 24;
				_exit(has <= (uint64_t)1 << 30 ? 0 : 2);
			}
			int status;
			CHECK(waitpid(pid, &status, 0) == pid && status == 0, "round %d, turn %d ended with %d", rounds, turn, status);
			scribble(turn ? REGION_DIRECTORY "/cudevshr.cache" : OWN_DIRECTORY "/account", &seed);
		}
	}
	struct stat s;
	CHECK(stat(DECOY, &s) == 0 && s.st_size == 0, "a link was followed");
	printf("%d rounds\n", rounds);
	return 0;
}
