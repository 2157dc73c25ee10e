/* Prints the limits that the library reads while the process has no descriptor left, and afterwards, with the number of GPU 0 among them.
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "devices.h"
#include "hooks.h"

static CUresult uuid(CUuuid *out, CUdevice device)
{
	memset(out->bytes, device + 1, sizeof out->bytes);
	return CUDA_SUCCESS;
}

void *real_cuda(const char *exported)
{
	return strcmp(exported, "cuDeviceGetUuid_v2") == 0 ? uuid : NULL;
}

static void print(void)
{
	const struct limits *l = limits_get();
	if (l)
		printf("%d GPUs, closed %d, limit %d\n", l->count, l->closed, limit_of(0));
	else
		printf("no limits\n");
}

int main(void)
{
	struct rlimit had, none;
	if (getrlimit(RLIMIT_NOFILE, &had) != 0)
		return 1;
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = had.rlim_max};
	if (setrlimit(RLIMIT_NOFILE, &none) != 0)
		return 1;
	print();
	if (setrlimit(RLIMIT_NOFILE, &had) != 0)
		return 1;
	print();
	return 0;
}
