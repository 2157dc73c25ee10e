#define _GNU_SOURCE
#include "cgroup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP2 0x63677270 /* linux/magic.h: CGROUP2_SUPER_MAGIC */

bool ff_cgroup_named(const char *path, uint64_t *id)
{
	struct statfs in;
	struct stat directory;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return false;
	/* The call itself: the C library's fstat would need a newer one than older images have. */
	bool found = fstatfs(fd, &in) == 0 && in.f_type == CGROUP2 && syscall(SYS_fstat, fd, &directory) == 0;
	if (found)
		*id = directory.st_ino;
	close(fd);
	return found;
}

/* The cgroup v2 of this process, as /proc/self/cgroup has it: "0::/kubepods.slice/..."; empty at the root of its namespace. */
static bool own(char path[PATH_MAX])
{
	char line[PATH_MAX];
	bool found = false;
	FILE *f = fopen("/proc/self/cgroup", "re");
	while (f && !found && fgets(line, sizeof line, f))
		found = strncmp(line, "0::/", 4) == 0 && strncmp(line, "0::/..", 6) != 0; /* a process outside its cgroup namespace sees nothing */
	if (f)
		fclose(f);
	if (found) {
		line[strcspn(line, "\n")] = 0;
		snprintf(path, PATH_MAX, "%s", strcmp(line, "0::/") == 0 ? "" : line + 3);
	}
	return found;
}

void ff_cgroups_mine(uint64_t ids[FF_MAX_CGROUPS])
{
	/* systemd's places: cgroup v2 alone, and beside the hierarchies of version 1. */
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char below[PATH_MAX], path[PATH_MAX + 32];
	uint64_t root;
	memset(ids, 0, FF_MAX_CGROUPS * sizeof *ids);
	if (!own(below))
		return;
	for (size_t m = 0; m < sizeof mounts / sizeof mounts[0]; m++) {
		size_t shortest = strlen(mounts[m]);
		if (!ff_cgroup_named(mounts[m], &root))
			continue;
		snprintf(path, sizeof path, "%s%s", mounts[m], below);
		for (int i = 0; i < FF_MAX_CGROUPS && strlen(path) >= shortest; i++) {
			if (!ff_cgroup_named(path, &ids[i]))
				return;
			*strrchr(path, '/') = 0;
		}
		return;
	}
}

bool ff_cgroup_of(const struct ff_process *p, uint64_t id)
{
	for (int i = 0; i < FF_MAX_CGROUPS; i++)
		if (p->cgroups[i] == id)
			return p->pid && id;
	return false;
}
