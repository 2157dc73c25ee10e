#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Linux 3.15; the headers of glibc 2.17 lack them. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define MAGIC 0x67706661626c6d32u /* gpfablm2 */
#define LOCK_HEAD 0
#define LOCK_SLOT(i) (4096 + (i))

/*
 * The maximum wait for the lock on the head, which others hold for microseconds. A stopped process (in a debugger, or a frozen cgroup)
 * holds it until it continues. Then allocations may be refused, and freed memory may stay counted, but the program runs.
 */
#ifndef HEAD_NANOSECONDS
#define HEAD_NANOSECONDS 5000000000ll
#endif
#define HEAD_POLL_NANOSECONDS 100000

static bool lock(int file, int command, short type, off_t at)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	int r;
	do
		r = fcntl(file, command, &l);
	while (r < 0 && errno == EINTR);
	return r == 0;
}

/* Reports whether another open file description holds one of these slots' locks. */
static bool any_alive(int file, int from, int count)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT(from), .l_len = count};
	return fcntl(file, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

bool ledger_alive(const struct ledger *l, int slot)
{
	return slot == l->slot || any_alive(l->file, slot, 1);
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Takes the lock on the head. Linux has no time limit for file locks, so it polls. */
static bool take_head(int file, bool patient)
{
	const struct timespec pause = {.tv_nsec = HEAD_POLL_NANOSECONDS};
	int64_t until = now() + (patient ? HEAD_NANOSECONDS : 0);
	bool taken;
	while (!(taken = lock(file, F_SETLK, F_WRLCK, LOCK_HEAD)) && now() < until)
		nanosleep(&pause, NULL);
	return taken;
}

/* Direct system call: the C library's fstat needs glibc 2.33. */
static bool status(int file, struct stat *s)
{
	return syscall(SYS_fstat, file, s) == 0;
}

/*
 * Allocates a file's bytes, so that a full disk is not a SIGBUS later. On some kernels signals would interrupt that. A file longer than
 * RLIMIT_FSIZE raises SIGXFSZ, which would end the program, so the signal is removed here.
 */
static bool reserve_space(int file, size_t size)
{
	const struct timespec none = {0};
	sigset_t all, before, had, long_file;
	int r;
	sigfillset(&all);
	sigemptyset(&long_file);
	sigaddset(&long_file, SIGXFSZ);
	sigprocmask(SIG_BLOCK, &all, &before);
	sigpending(&had);
	do
		r = posix_fallocate(file, 0, (off_t)size);
	while (r == EINTR);
	if (r == EFBIG && !sigismember(&had, SIGXFSZ))
		while (sigtimedwait(&long_file, NULL, &none) < 0 && errno == EINTR)
			;
	sigprocmask(SIG_SETMASK, &before, NULL);
	return r == 0;
}

/*
 * Makes a complete file, open to all users of the containers, before it gets its name. Returns false when that fails. If another process
 * was faster, its file stays.
 */
static bool make_file(const char *path, size_t size)
{
	char self[32], directory[128];
	const char *slash = strrchr(path, '/');
	snprintf(directory, sizeof directory, "%.*s", (int)(slash - path), path);
	int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
	bool named = file < 0; /* a file system without O_TMPFILE: the file has its name at once */
	if (named)
		file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
	if (file < 0)
		return errno == EEXIST;
	snprintf(self, sizeof self, "/proc/self/fd/%d", file);
	bool made = fchmod(file, 0666) == 0 && reserve_space(file, size) &&
		    (named || linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 || errno == EEXIST);
	if (!made && named)
		unlink(path);
	close(file);
	return made;
}

static int open_file(const char *path)
{
	return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/*
 * Extends a file that is too short. A longer one stays: a later version made it, and truncating it would crash its users. It is opened
 * without O_CREAT, which fs.protected_regular of Linux refuses for another user's file in a sticky directory.
 */
void *ledger_map(const char *path, size_t size, bool make, int *file)
{
	struct stat s;
	errno = 0;
	*file = open_file(path);
	if (*file < 0 && errno == ENOENT && make && make_file(path, size))
		*file = open_file(path);
	if (*file < 0)
		return NULL;
	if (status(*file, &s) && S_ISREG(s.st_mode) && reserve_space(*file, size)) {
		void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
		if (at != MAP_FAILED && madvise(at, size, MADV_DONTFORK) == 0)
			return at;
		if (at != MAP_FAILED)
			munmap(at, size);
	}
	close(*file);
	*file = -1;
	return NULL;
}

bool ledger_enter(struct ledger *l, bool patient)
{
	struct stat s;
	l->file = open_file(l->path);
	if (l->file < 0)
		return false;
	if (status(l->file, &s) && s.st_dev == l->device && s.st_ino == l->inode && take_head(l->file, patient)) {
		/* The process that set it held the lock, so it has died. */
		atomic_store(&l->totals->stop, 0);
		return true;
	}
	close(l->file);
	l->file = -1;
	return false;
}

/* Closing the descriptor releases the process's lock. The mapping keeps the lock on its slot. */
void ledger_leave(struct ledger *l)
{
	close(l->file);
	l->file = -1;
}

/* A checksum of the limits (FNV-1a). It shows whether the file was made for other limits. */
static uint64_t sum_of(const struct limits *l)
{
	uint64_t h = 14695981039346656037u;
	for (int i = 0; i < l->count; i++) {
		const struct limit *d = &l->devices[i];
		for (const char *c = d->uuid; *c; c++)
			h = (h ^ (unsigned char)*c) * 1099511628211u;
		h = (h ^ d->memory) * 1099511628211u;
		h = (h ^ d->elsewhere) * 1099511628211u;
	}
	return h;
}

/* Starts to count in a file that no live process uses, whatever a crash left in it. Returns false when it was made for other limits. */
static bool begin(struct ledger *l, const struct limits *limits)
{
	if (any_alive(l->file, 0, LEDGER_SLOTS))
		return atomic_load(&l->totals->magic) == MAGIC && l->totals->limits == sum_of(limits);
	/* A slot is cleared when it is taken, so that a single process does not touch them all. */
	memset((void *)l->totals->devices, 0, sizeof l->totals->devices);
	atomic_store(&l->totals->high, 0);
	l->totals->holders_high = 0;
	for (int i = 0; i < limits->count; i++)
		memcpy(l->totals->devices[i].uuid, limits->devices[i].uuid, UUID_BYTES);
	l->totals->limits = sum_of(limits);
	atomic_store(&l->totals->magic, MAGIC);
	return true;
}

/* Takes a slot. Returns false when none is free. */
static bool take_slot(struct ledger *l, void (*dead)(struct totals *, int slot))
{
	for (int i = 0; i < LEDGER_SLOTS; i++) {
		struct ledger_slot *s = &l->totals->slots[i];
		if (!lock(l->file, F_OFD_SETLK, F_WRLCK, LOCK_SLOT(i)))
			continue; /* another's */
		if ((uint32_t)i < atomic_load(&l->totals->high) && atomic_load(&s->taken))
			dead(l->totals, i);
		memset((void *)s, 0, sizeof *s);
		atomic_store(&s->taken, 1);
		if (atomic_load(&l->totals->high) < (uint32_t)i + 1)
			atomic_store(&l->totals->high, (uint32_t)i + 1);
		l->slot = i;
		return true;
	}
	return false;
}

enum ledger_opened ledger_open(
	struct ledger *l, const char *path, bool make, const struct limits *limits, bool patient, void (*dead)(struct totals *, int slot))
{
	enum ledger_opened opened = LEDGER_UNUSABLE;
	struct stat s;
	l->slot = -1;
	l->totals = ledger_map(path, sizeof *l->totals, make, &l->file);
	if (!l->totals)
		return errno == EMFILE || errno == ENFILE ? LEDGER_BUSY : LEDGER_UNUSABLE;
	snprintf(l->path, sizeof l->path, "%s", path);
	if (status(l->file, &s)) {
		l->device = s.st_dev;
		l->inode = s.st_ino;
		if (!take_head(l->file, patient))
			opened = LEDGER_BUSY;
		else if (begin(l, limits)) {
			atomic_store(&l->totals->stop, 0);
			opened = take_slot(l, dead) ? LEDGER_OPENED : LEDGER_FULL;
		}
	}
	ledger_leave(l);
	if (opened != LEDGER_OPENED) {
		munmap(l->totals, sizeof *l->totals);
		l->totals = NULL;
	}
	return opened;
}
