/* Whether the node mounted a file into the container. A program in the container cannot mount, and an image cannot bring mounts. */
#pragma once
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x00002000
#endif

/*
 * Reports whether a file is mounted by itself over the directory that has it; above is that directory's device. Linux reports it since 5.8.
 * Before, a file on another device counts as mounted. That overlooks a mounted file on the container's own file system. And it counts an
 * image's file where the image's layers are file systems of their own, because overlayfs then gives such files other devices.
 */
static inline bool mounts_has(int directory, const char *name, dev_t above)
{
	struct statx x;
	struct stat s;
	/* Direct system calls: the C library's statx needs glibc 2.28, and its fstatat 2.33. */
	if (syscall(SYS_statx, directory, name, AT_SYMLINK_NOFOLLOW, 0, &x) == 0 && x.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)
		return x.stx_attributes & STATX_ATTR_MOUNT_ROOT;
	return syscall(SYS_newfstatat, directory, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_dev != above;
}
