#define _GNU_SOURCE
#include "limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mounts.h"
#include "process.h"
#include "words.h"

/* A line for each GPU, the first line, and "closed". */
#define MOST_BYTES 4096

static const char head[] = "gpufabric-limits 1\n";

/* Reads a whole number, which has to end at end. */
static bool number(const char *text, const char *end, uint64_t most, uint64_t *out)
{
	uint64_t value = 0;
	if (text == end)
		return false;
	for (; text < end; text++) {
		if (*text < '0' || *text > '9')
			return false;
		unsigned int digit = (unsigned int)(*text - '0');
		if (value > (most - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*out = value;
	return true;
}

static bool named(const char *text, size_t length)
{
	if (length < 12 || length >= UUID_BYTES || memcmp(text, "GPU-", 4) != 0)
		return false;
	for (size_t i = 4; i < length; i++)
		if (!strchr("0123456789abcdefABCDEF-", text[i]) || !text[i])
			return false;
	return true;
}

/* GPU-... MEMORY CORES; a MEMORY of - is limited elsewhere. */
static bool device(const char *line, const char *end, struct limits *out)
{
	const char *first = memchr(line, ' ', (size_t)(end - line));
	const char *second = first ? memchr(first + 1, ' ', (size_t)(end - first - 1)) : NULL;
	uint64_t memory = 0, cores;
	bool elsewhere = second && second - first == 2 && first[1] == '-';
	if (!second || out->count == MOST_DEVICES || !named(line, (size_t)(first - line)) ||
	    (!elsewhere && !number(first + 1, second, (uint64_t)1 << 47, &memory)) || !number(second + 1, end, 100, &cores))
		return false;
	for (int i = 0; i < out->count; i++)
		if (strlen(out->devices[i].uuid) == (size_t)(first - line) && memcmp(out->devices[i].uuid, line, (size_t)(first - line)) == 0)
			return false;
	struct limit *d = &out->devices[out->count++];
	*d = (struct limit){.memory = memory, .elsewhere = elsewhere, .cores = (unsigned int)cores};
	memcpy(d->uuid, line, (size_t)(first - line));
	return true;
}

bool limits_parse(const char *text, size_t length, struct limits *out)
{
	const char *end = text + length;
	memset(out, 0, sizeof *out);
	if (length < sizeof head - 1 || memcmp(text, head, sizeof head - 1) != 0)
		return false;
	for (const char *line = text + sizeof head - 1; line < end;) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		if (!stop)
			return false; /* cut */
		if (stop - line == 6 && memcmp(line, "closed", 6) == 0)
			out->closed = true;
		else if (!device(line, stop, out))
			return false;
		line = stop + 1;
	}
	return out->count > 0;
}

/* The sum of two amounts; 0 is unlimited. */
static uint64_t both(uint64_t a, uint64_t b, uint64_t most)
{
	if (a == 0 || b == 0)
		return 0;
	return a + b < most ? a + b : most;
}

bool limits_join(struct limits *have, const struct limits *more)
{
	have->closed = have->closed || more->closed;
	for (int i = 0; i < more->count; i++) {
		const struct limit *m = &more->devices[i];
		int at = 0;
		while (at < have->count && strcmp(have->devices[at].uuid, m->uuid) != 0)
			at++;
		if (at == MOST_DEVICES)
			return false;
		struct limit *h = &have->devices[at];
		if (at == have->count) {
			*h = *m;
			have->count++;
		} else {
			h->several = true;
			h->elsewhere = h->elsewhere || m->elsewhere;
			h->memory = both(h->memory, m->memory, (uint64_t)1 << 47);
			h->cores = (unsigned int)both(h->cores, m->cores, 100);
		}
	}
	return true;
}

static struct limits here;
static atomic_int state; /* 0: not read, 1: none, 2: read */

/* While they cannot be read: every allocation is denied, and the next one tries again. */
static const struct limits unreadable = {.closed = true};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Reports whether opening a file failed for want of descriptors or memory, which may be there later. */
static bool for_now(void)
{
	return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
}

/*
 * Adds the limits of one file, in an open directory or by its whole path. Returns false when it exists and cannot be parsed, and sets later
 * when it cannot be opened for now.
 */
static bool read_file(int directory, const char *name, bool *found, bool *later)
{
	static char text[MOST_BYTES + 1];
	static struct limits more;
	struct stat s;
	int file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (file < 0) {
		*later = *later || for_now();
		if (errno != ENOENT && directory == AT_FDCWD && !for_now())
			words_once("cannot read " LIMITS_FILE ": it limits nothing in this container");
		return true; /* a link in the directory: the container itself made it */
	}
	/* Direct system call: the C library's fstat needs glibc 2.33. */
	if (directory != AT_FDCWD && (syscall(SYS_fstat, file, &s) != 0 || !S_ISREG(s.st_mode))) {
		close(file);
		return true;
	}
	ssize_t length = read(file, text, sizeof text);
	close(file);
	*found = true;
	return length >= 0 && length <= MOST_BYTES && limits_parse(text, (size_t)length, &more) && limits_join(&here, &more);
}

static bool mounted(int directory, const char *name, dev_t above)
{
#ifdef LIMITS_ANYWHERE
	(void)directory, (void)name, (void)above;
	return true; /* tests mount nothing */
#else
	return mounts_has(directory, name, above);
#endif
}

/* Adds the limits of every file that is mounted into the directory. */
static bool read_directory(bool *found, bool *later)
{
	struct stat s;
	bool good = true;
	DIR *d = opendir(LIMITS_DIRECTORY);
	if (!d) {
		*later = *later || for_now();
		return true;
	}
	dev_t on = syscall(SYS_fstat, dirfd(d), &s) == 0 ? s.st_dev : 0;
	for (struct dirent *e; good && (e = readdir(d));)
		if (e->d_name[0] != '.' && mounted(dirfd(d), e->d_name, on))
			good = read_file(dirfd(d), e->d_name, found, later);
	closedir(d);
	/* Sorted, because all processes of the container must use the same numbers, whatever the directory's order is. */
	for (int i = 1; i < here.count; i++)
		for (int j = i; j > 0 && strcmp(here.devices[j - 1].uuid, here.devices[j].uuid) > 0; j--) {
			struct limit l = here.devices[j];
			here.devices[j] = here.devices[j - 1];
			here.devices[j - 1] = l;
		}
	return good;
}

static int read_here(void)
{
	bool found = false, later = false;
	bool good = read_file(AT_FDCWD, LIMITS_FILE, &found, &later) && read_directory(&found, &later);
	if (good && later) {
		memset(&here, 0, sizeof here);
		return 0;
	}
	if (!good) {
		/* The node wrote a valid file, so another one is mounted in its place. Deny every allocation. */
		words_once("a file of limits at " LIMITS_FILE " is none: nothing can be allocated on a GPU; tell the administrator of the node");
		here = (struct limits){.closed = true};
		return 2;
	}
	return found ? 2 : 1;
}

/* Another thread of the parent may have been reading them. */
static void forget_reading(void)
{
	pthread_mutex_init(&lock, NULL);
	if (atomic_load(&state) == 0)
		memset(&here, 0, sizeof here);
}

FORGET_IN_CHILD(forget_reading);

const struct limits *limits_get(void)
{
	int now = atomic_load_explicit(&state, memory_order_acquire);
	if (now == 0) {
		pthread_mutex_lock(&lock);
		now = atomic_load(&state);
		if (now == 0) {
			now = read_here();
			atomic_store_explicit(&state, now, memory_order_release);
		}
		pthread_mutex_unlock(&lock);
	}
	return now == 2 ? &here : now == 0 ? &unreadable : NULL;
}

bool limits_known(void)
{
	return limits_get() != &unreadable;
}

int limits_find(const char *uuid)
{
	const struct limits *l = limits_get();
	for (int i = 0; l && i < l->count; i++)
		if (strcmp(l->devices[i].uuid, uuid) == 0)
			return i;
	return -1;
}
