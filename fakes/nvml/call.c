#define _GNU_SOURCE
#include "call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"
#include "state.h"

static int initialised;
static int trace_file = -1;

static void delay(uint32_t function)
{
	struct ff_delay delays[FF_MAX_DELAYS];
	uint32_t count = ff_state_delays();
	if (!count || count > FF_MAX_DELAYS)
		return;
	if (!ff_state_copy(offsetof(struct ff_node, delays), delays, sizeof delays))
		return;
	uint64_t us = 0;
	for (uint32_t i = 0; i < count; i++)
		if (delays[i].function == function || delays[i].function == 0)
			us += delays[i].microseconds;
	if (us) {
		struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
		while (nanosleep(&t, &t) != 0 && errno == EINTR) {
			/* a signal is no reason to be fast */
		}
		ff_state_pin(); /* the state may be another by now */
	}
}

nvmlReturn_t ff_call(uint32_t function, bool implemented)
{
	if (__atomic_load_n(&initialised, __ATOMIC_RELAXED) <= 0)
		return NVML_ERROR_UNINITIALIZED;
	ff_state_pin();
	delay(function);
	return implemented ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t ff_lifecycle(uint32_t function, bool implemented)
{
	if (initialised > 0) {
		ff_state_pin();
		delay(function);
	}
	return implemented ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static void open_trace(void)
{
	const char *path = getenv("FAKEFABRIC_TRACE");
	if (path && *path && trace_file < 0)
		trace_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

void ff_traced(const char *function, nvmlReturn_t result, bool implemented)
{
	ff_state_unpin();
	if (trace_file < 0)
		return;
	char line[256];
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	int n = snprintf(line, sizeof line, "%lld.%06ld\t%ld\t%.64s\t%s\t%d\t%s\n", (long long)now.tv_sec, now.tv_nsec / 1000, (long)getpid(),
			 program_invocation_short_name, function, (int)result, implemented ? "implemented" : "stub");
	/* One write per line, so that lines of several processes do not mix. A full disk loses the trace, not the caller. */
	if (n > 0 && (size_t)n < sizeof line && write(trace_file, line, (size_t)n) < 0)
		return;
}

nvmlReturn_t impl_nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	open_trace();
	if (!ff_state_open())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	/* nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM detects a driver/library version mismatch". The state has the version of the kernel's
	 * modules. */
	char library[80], kernel[sizeof ((struct ff_node *)0)->driver_version];
	if (ff_library_version(library, sizeof library) && ff_state_copy(offsetof(struct ff_node, driver_version), kernel, sizeof kernel) &&
	    strncmp(library, kernel, sizeof kernel) != 0)
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	if (__atomic_add_fetch(&initialised, 1, __ATOMIC_RELAXED) == 1)
		ff_state_client(true);
	return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlInit_v2(void)
{
	return impl_nvmlInitWithFlags(0);
}

nvmlReturn_t impl_nvmlInit(void)
{
	return impl_nvmlInitWithFlags(0);
}

nvmlReturn_t impl_nvmlShutdown(void)
{
	int n = __atomic_load_n(&initialised, __ATOMIC_RELAXED);
	while (n > 0)
		if (__atomic_compare_exchange_n(&initialised, &n, n - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			if (n == 1)
				ff_state_client(false);
			return NVML_SUCCESS;
		}
	return NVML_ERROR_UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct {
		nvmlReturn_t code;
		const char *text;
	} texts[] = {
		{NVML_SUCCESS, "Success"},
		{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
		{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
		{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
		{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
		{NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
		{NVML_ERROR_NOT_FOUND, "Not Found"},
		{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
		{NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
		{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
		{NVML_ERROR_TIMEOUT, "Timeout"},
		{NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
		{NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
		{NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
		{NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
		{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
		{NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
		{NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
		{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
		{NVML_ERROR_IN_USE, "In use by another client"},
		{NVML_ERROR_MEMORY, "Insufficient Memory"},
		{NVML_ERROR_NO_DATA, "No data"},
		{NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
		{NVML_ERROR_DEPRECATED, "Deprecated"},
		{NVML_ERROR_NOT_READY, "Not Ready"},
		{NVML_ERROR_UNKNOWN, "Unknown Error"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
		if (texts[i].code == result)
			return texts[i].text;
	return "Unknown Error";
}
