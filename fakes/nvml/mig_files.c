#define _GNU_SOURCE
#include "mig_files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "state.h"

/* Minors follow a fixed table; package tree computes the same. */
static unsigned int minor_of(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	return 3 + gpu * 15 * 9 + gi * 9 + (ci == FF_NONE ? 0 : 1 + ci);
}

static bool directory(char *path, unsigned int gpu, unsigned int gi, unsigned int ci)
{
	char root[PATH_MAX];
	int n;
	if (!ff_state_root(root))
		return false;
	if (ci == FF_NONE)
		n = snprintf(path, PATH_MAX, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", root, gpu, gi);
	else
		n = snprintf(path, PATH_MAX, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/ci%u", root, gpu, gi, ci);
	return n < PATH_MAX - 16;
}

static bool device(char *path, unsigned int minor)
{
	char root[PATH_MAX];
	return ff_state_root(root) && snprintf(path, PATH_MAX, "%s/dev/nvidia-caps/nvidia-cap%u", root, minor) < PATH_MAX;
}

/* The major of nvidia-caps is that of the node that is there from the start. */
static dev_t caps_device(unsigned int minor)
{
	char path[PATH_MAX];
	struct stat s;
	/* By system call: the C library's stat is newer than the C library of older images. */
	if (!device(path, 1) || syscall(SYS_newfstatat, AT_FDCWD, path, &s, 0) != 0 || !S_ISCHR(s.st_mode))
		return 0;
	return makedev(major(s.st_rdev), minor);
}

void ff_mig_files_add(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	unsigned int minor = minor_of(gpu, gi, ci);
	if (!directory(dir, gpu, gi, ci) || (mkdir(dir, 0755) != 0 && access(dir, W_OK) != 0))
		return;
	snprintf(path, sizeof path, "%s/access", dir);
	FILE *f = fopen(path, "we");
	if (!f)
		return;
	fprintf(f, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
	fclose(f);
	if (!device(path, minor))
		return;
	dev_t d = caps_device(minor);
	if (d && syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0666, d) == 0) {
		chmod(path, 0666);
		return;
	}
	int fd = open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0666);
	if (fd >= 0)
		close(fd);
}

void ff_mig_files_remove(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	if (directory(dir, gpu, gi, ci)) {
		snprintf(path, sizeof path, "%s/access", dir);
		unlink(path);
		rmdir(dir);
	}
	if (device(path, minor_of(gpu, gi, ci)))
		unlink(path);
}
