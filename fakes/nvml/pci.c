#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"

/* Where sysfs keeps a function: .../pci0000:16/0000:16:02.0/0000:17:00.0, a directory for each bridge above it. */
static bool place(const char *id, char path[PATH_MAX])
{
	unsigned int domain, bus, device, function = 0;
	char root[PATH_MAX], link[PATH_MAX];
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3 || !ff_state_root(root))
		return false;
	return snprintf(link, sizeof link, "%.3900s/sys/bus/pci/devices/%04x:%02x:%02x.%x", root, domain, bus, device, function) <
			   (int)sizeof link &&
		   realpath(link, path) != NULL;
}

static int numa_node(const char *path)
{
	char name[PATH_MAX];
	int node = -1;
	snprintf(name, sizeof name, "%.4000s/numa_node", path);
	FILE *f = fopen(name, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1)
		node = -1;
	fclose(f);
	return node;
}

static unsigned int directories(const char *path)
{
	unsigned int n = 0;
	for (; *path; path++)
		n += *path == '/';
	return n;
}

bool ff_pci_ancestor(const char *one, const char *other, nvmlGpuTopologyLevel_t *level)
{
	char a[PATH_MAX], b[PATH_MAX];
	if (!place(one, a) || !place(other, b))
		return false;
	size_t same = 0, last = 0;
	for (; a[same] && a[same] == b[same]; same++)
		if (a[same] == '/')
			last = same;
	/* The last directory that both are below, and what lies between it and each of them. */
	unsigned int deepest = directories(a + last) > directories(b + last) ? directories(a + last) : directories(b + last);
	a[last] = 0;
	const char *ancestor = strrchr(a, '/');
	if (ancestor && strncmp(ancestor, "/pci", 4) == 0) {
		*level = NVML_TOPOLOGY_HOSTBRIDGE;
		return true;
	}
	if (ancestor && strchr(ancestor, ':')) {
		*level = deepest <= 2 ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_MULTIPLE;
		return true;
	}
	a[last] = '/';
	*level = numa_node(a) >= 0 && numa_node(a) == numa_node(b) ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
	return true;
}

int ff_pci_numa_node(const char *id)
{
	char path[PATH_MAX];
	return place(id, path) ? numa_node(path) : -1;
}
