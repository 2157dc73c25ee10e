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

/* Whether the node's devices are device nodes; where nobody could make any, they are plain files. By system call: the C library's stat is
 * newer than the C library of older images. */
static bool has_devices(const char *root)
{
	char path[PATH_MAX];
	struct stat s;
	return snprintf(path, PATH_MAX, "%s/dev/nvidiactl", root) < PATH_MAX && syscall(SYS_newfstatat, AT_FDCWD, path, &s, 0) == 0 &&
		   S_ISCHR(s.st_mode);
}

/* The major of nvidia-caps in proc/devices; 0 where it is not there. */
static unsigned int caps_major(const char *root)
{
	char path[PATH_MAX], line[128], name[64];
	unsigned int found = 0, n;
	if (snprintf(path, PATH_MAX, "%s/proc/devices", root) >= PATH_MAX)
		return 0;
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof line, f))
		if (sscanf(line, "%u %63s", &n, name) == 2 && strcmp(name, "nvidia-caps") == 0)
			found = n;
	if (f)
		fclose(f);
	return found;
}

/* Makes a capability's node in this process's /dev, if it may: the kernel module makes none (see tree.MakeMIGNodes). It stays when the
 * instance goes. */
static void make_node(unsigned int minor)
{
	char root[PATH_MAX], path[PATH_MAX];
	unsigned int major;
	if (!ff_state_root(root) || snprintf(path, PATH_MAX, "%s/dev/nvidia-caps", root) >= PATH_MAX)
		return;
	mkdir(path, 0755);
	if (snprintf(path, PATH_MAX, "%s/dev/nvidia-caps/nvidia-cap%u", root, minor) >= PATH_MAX)
		return;
	if (!has_devices(root)) {
		int fd = open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0666);
		if (fd >= 0)
			close(fd);
	} else if ((major = caps_major(root)) != 0 && syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0666, makedev(major, minor)) == 0) {
		chmod(path, 0666);
	}
}

void ff_mig_files_add(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	unsigned int minor = minor_of(gpu, gi, ci);
	make_node(minor);
	if (!directory(dir, gpu, gi, ci) || (mkdir(dir, 0755) != 0 && access(dir, W_OK) != 0))
		return;
	snprintf(path, sizeof path, "%s/access", dir);
	FILE *f = fopen(path, "we");
	if (!f)
		return;
	fprintf(f, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
	fclose(f);
}

void ff_mig_files_remove(unsigned int gpu, unsigned int gi, unsigned int ci)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	if (directory(dir, gpu, gi, ci)) {
		snprintf(path, sizeof path, "%s/access", dir);
		unlink(path);
		rmdir(dir);
	}
}
