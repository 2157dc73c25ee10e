/*
 * Prints the limits that the library reads from its directory. With "mount", one file is mounted there and another one is not. With
 * "layers", the directory is an overlay of two file systems, one of which has a file of limits.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "limits.h"

static int put(const char *path, const char *text)
{
	int file = open(path, O_CREAT | O_WRONLY, 0644);
	return file < 0 || write(file, text, strlen(text)) < 0 || close(file) != 0;
}

/* A file that is mounted, and one of the container. */
static int mounts(void)
{
	const char mounted[] = LIMITS_DIRECTORY "/mounted", node[] = LIMITS_FILE ".node";
	return put(mounted, "") || put(LIMITS_DIRECTORY "/planted", "gpufabric-limits 1\nGPU-01010101 0 0\n") ||
	       put(node, "gpufabric-limits 1\nGPU-01010101 4096 0\n") || mount(node, mounted, NULL, MS_BIND, NULL) != 0;
}

/* Two layers, the lower of which has a file. */
static int overlays(void)
{
	static const char first[] = LIMITS_FILE ".first", second[] = LIMITS_FILE ".second";
	return mkdir(first, 0755) != 0 || mkdir(second, 0755) != 0 || mount("first", first, "tmpfs", 0, NULL) != 0 ||
	       mount("second", second, "tmpfs", 0, NULL) != 0 ||
	       put(LIMITS_FILE ".second/planted", "gpufabric-limits 1\nGPU-01010101 0 0\n") ||
	       mount("layers", LIMITS_DIRECTORY, "overlay", MS_RDONLY, "lowerdir=" LIMITS_FILE ".first:" LIMITS_FILE ".second") != 0;
}

int main(int count, char **arguments)
{
	if (mkdir(LIMITS_DIRECTORY, 0755) != 0 || count != 2 || (strcmp(arguments[1], "mount") == 0 ? mounts() : overlays())) {
		perror(LIMITS_DIRECTORY);
		return 2;
	}
	const struct limits *l = limits_get();
	for (int i = 0; l && i < l->count; i++)
		printf("%s %llu\n", l->devices[i].uuid, (unsigned long long)l->devices[i].memory);
	return 0;
}
